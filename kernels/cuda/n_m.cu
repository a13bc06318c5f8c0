// n_m: prune to KEEP of every GROUP elements, compress what obeys that, and decompress it.
//
//   prune       x [batch, rows, k] -> dense of the same shape, zero but for the KEEP best of
//               every GROUP along k (WRITE_DENSE, may be x), and bool mask (WRITE_MASK).  SCORED
//               ranks by `scores`, float or double (SCORE), else magnitude; ties keep the
//               lower index, NaN ranks above infinity.
//   compress    x -> values and places (uint8) [batch, rows, KEEP ceil(k/GROUP)]: the
//               non-zeros of every group in order, then, where there are fewer than KEEP, its
//               first zeros.  status as in compress.cu: first bad group and their number.
//   decompress  values and places -> dense, zero elsewhere.
//
// All arrays of any strides, in bytes.  A thread takes a group; BY_ROWS lets neighbouring
// threads take neighbouring rows, for matrices whose first axis is contiguous.  The rank of
// an element is the number of elements that go before it, GROUP (GROUP - 1) / 2 comparisons.
//
// Meaning: reference.prune_n_m, compress_n_m, decompress_n_m.  Launcher: kernels/n_m.py.
#include "piece.cuh"
#include "score_key.cuh"

constexpr Kind kind = Kind::ELEMENT;
constexpr int ITEM = bytes_of(kind);
using Bits = conditional<ITEM == 8, unsigned long long, Chunk<ITEM>::type>;  // of an element

struct View {
    const char* data;
    long long batch, row, column;  // strides in bytes
    char* at(long long b, long long i, long long j) const {
        return const_cast<char*>(data) + b * batch + i * row + j * column;
    }
};

struct Group {
    long long batch, row, group;
    int column, valid;  // first column; how many exist
    bool inside;

    Group(long long batches, long long rows, long long k) {
        const long long groups = (k + GROUP - 1) / GROUP, index = blockIdx.x * 256ll + threadIdx.x;
        batch = index / (rows * groups);
        row = BY_ROWS ? index % rows : index / groups % rows;
        group = BY_ROWS ? index / rows % groups : index % groups;
        column = (int)group * GROUP;
        valid = (int)min((long long)GROUP, k - column);
        inside = batch < batches;
    }
};

Bits load_element(const char* at) { return *(const Bits*)at; }
long long magnitude_key(Bits x) { return (long long)magnitude<kind>((Lanes<ITEM>::word)x); }

#if SCORED
using Key = decltype(score_key(SCORE()));
#else
using Key = conditional<ITEM == 8, long long, int>;
#endif

extern "C" __global__ void __launch_bounds__(256) prune(
    View x, View scores, View dense, View mask, long long batches, long long rows, long long k) {
    const Group place(batches, rows, k);
    if (!place.inside) return;
    Key key[GROUP];
    int rank[GROUP];
#pragma unroll
    for (int i = 0; i < GROUP; i++) {
        rank[i] = 0;
        key[i] = Key(1) << (8 * sizeof(Key) - 1);  // what does not exist ranks last
        if (i >= place.valid) continue;
#if SCORED
        key[i] = score_key(*(const SCORE*)scores.at(place.batch, place.row, place.column + i));
#else
        key[i] = (Key)magnitude_key(load_element(x.at(place.batch, place.row, place.column + i)));
#endif
    }
#pragma unroll
    for (int i = 0; i < GROUP; i++)
#pragma unroll
        for (int j = i + 1; j < GROUP; j++) {
            const bool before = key[i] >= key[j];
            rank[j] += before;
            rank[i] += !before;
        }
#pragma unroll
    for (int i = 0; i < GROUP; i++) {
        if (i >= place.valid) continue;
        const bool keep = rank[i] < KEEP;
        if (WRITE_DENSE)  // read again, from L1, rather than held in registers
            *(Bits*)dense.at(place.batch, place.row, place.column + i) =
                keep ? load_element(x.at(place.batch, place.row, place.column + i)) : Bits{};
        if (WRITE_MASK) *mask.at(place.batch, place.row, place.column + i) = keep;
    }
}

extern "C" __global__ void __launch_bounds__(256) compress(
    View x, View values, View places, unsigned long long* status,
    long long batches, long long rows, long long k) {
    const Group place(batches, rows, k);
    if (!place.inside) return;
    unsigned nonzero_bits = 0, kept = 0;
    Bits element[GROUP];
#pragma unroll
    for (int i = 0; i < GROUP; i++) {
        element[i] = Bits{};
        if (i >= place.valid) continue;
        element[i] = load_element(x.at(place.batch, place.row, place.column + i));
        nonzero_bits |= (unsigned)(magnitude_key(element[i]) != 0) << i;
    }
    const int count = __popc(nonzero_bits);
    int zeros = max(KEEP - count, 0), room = KEEP;  // zeros to store; places left
#pragma unroll
    for (int i = 0; i < GROUP; i++) {
        const bool full = nonzero_bits >> i & 1;
        const bool keep = room > 0 && (full || zeros > 0);
        kept |= (unsigned)keep << i;
        room -= keep;
        zeros -= keep && !full;
    }
    int slot = 0;
#pragma unroll
    for (int i = 0; i < GROUP; i++) {
        if (!(kept >> i & 1)) continue;
        const long long column = place.group * KEEP + slot++;
        *(Bits*)values.at(place.batch, place.row, column) = nonzero_bits >> i & 1 ? element[i] : Bits{};
        *places.at(place.batch, place.row, column) = (char)i;
    }
    if (count > KEEP) {
        const long long groups = (k + GROUP - 1) / GROUP;
        atomicMin(status, (unsigned long long)((place.batch * rows + place.row) * groups + place.group));
        atomicAdd(status + 1, 1ull);
    }
}

extern "C" __global__ void __launch_bounds__(256) decompress(
    View values, View places, View dense, long long batches, long long rows, long long k) {
    const Group place(batches, rows, k);
    if (!place.inside) return;
    unsigned kept = 0;
#pragma unroll
    for (int s = 0; s < KEEP; s++)
        kept |= 1u << (*places.at(place.batch, place.row, place.group * KEEP + s) & 31);
    int slot = 0;
#pragma unroll
    for (int i = 0; i < GROUP; i++) {
        if (i >= place.valid) continue;
        Bits element{};
        if (kept >> i & 1) element = load_element(values.at(place.batch, place.row, place.group * KEEP + slot++));
        *(Bits*)dense.at(place.batch, place.row, place.column + i) = element;
    }
}
