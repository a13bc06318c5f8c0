// n_m: prune to KEEP of every GROUP elements, compress what obeys that, and decompress it.
//
//   prune       x [batch, rows, k] -> dense of the same shape, zero but for the KEEP best of
//               every GROUP along k (WRITE_DENSE, may be x), and bool mask (WRITE_MASK).  SCORED
//               ranks by `scores`, float or double (SCORE), else magnitude; ties keep the
//               lower index, NaN ranks above infinity.
//   compress    x -> values and places (uint8) [batch, rows, KEEP ceil(k/GROUP)]: of every group, in
//               ascending order, the places of its first KEEP non-zeros or, where it has fewer,
//               of all of them and of its first zeros.  status as in compress.cu.
//   decompress  values and places -> dense, zero elsewhere.
//
// Arrays may have any strides, which are in bytes.  A thread takes a group; with BY_ROWS neighbouring
// threads take neighbouring rows, for matrices whose first axis is contiguous.  In prune a
// thread takes SPAN elements, which are whole groups.  VECTOR says that rows are contiguous and aligned, and that
// SPAN divides k, so that they are read and written 16 bytes at a time; ONE_ROW, that there is
// only one row.  The rank of an element is the number of elements that go before it, found by
// GROUP (GROUP - 1) / 2 comparisons.  prune_24, for 2:4 by magnitude, compares all groups of a
// thread at once, as lanes of words (lanes.cuh).
//
// Macros: ELEMENT GROUP KEEP BY_ROWS ONE_ROW; and for prune SPAN VECTOR SCORED SCORE WRITE_DENSE WRITE_MASK.
// Reference: reference.prune_n_m, compress_n_m, decompress_n_m.  Launcher: kernels/n_m.py.
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

// The kernel parameters of a view, and the view made of them.
#define VIEW(name) char *name##_data, long long name##_batch, long long name##_row, long long name##_column
#define TAKE(name) {name##_data, name##_batch, name##_row, name##_column}

// A thread's `size` elements, one group or several.
struct Group {
    long long batch, row, group, column;  // the first column
    int valid;                            // how many exist
    bool inside;

    Group(long long batches, long long rows, long long k, int size = GROUP) {
        const long long groups = (k + size - 1) / size, index = blockIdx.x * 256ll + threadIdx.x;
        batch = ONE_ROW ? 0 : index / (rows * groups);
        row = ONE_ROW ? 0 : BY_ROWS ? index % rows : index / groups % rows;
        group = ONE_ROW ? index : BY_ROWS ? index / rows % groups : index % groups;
        column = group * size;
        valid = (int)min((long long)size, k - column);
        inside = ONE_ROW ? index < groups : batch < batches;
    }
};

Bits load_element(const char* at) { return *(const Bits*)at; }
long long magnitude_key(Bits x) { return (long long)magnitude<kind>((Lanes<ITEM>::word)x); }

#if SCORED
using Key = decltype(score_key(SCORE()));
#else
using Key = conditional<ITEM == 8, long long, int>;
#endif

// COUNT elements of a row, of which place.valid exist; with VECTOR by 16-byte accesses, if they make up whole ones.
template <class T, int COUNT> void load_row(const View& in, const Group& place, T (&out)[COUNT]) {
    const char* at = in.at(place.batch, place.row, place.column);
    if constexpr (VECTOR && COUNT * sizeof(T) % 16 == 0) {
        load_words<16>(at, reinterpret_cast<unsigned(&)[COUNT * sizeof(T) / 4]>(out));
    } else {
#pragma unroll
        for (int i = 0; i < COUNT; i++) out[i] = i < place.valid ? *(const T*)(at + i * in.column) : T{};
    }
}
template <class T, int COUNT> void store_row(const View& out, const Group& place, const T (&in)[COUNT]) {
    char* at = out.at(place.batch, place.row, place.column);
    if constexpr (VECTOR) {
        constexpr int bytes = COUNT * sizeof(T) < 16 ? COUNT * sizeof(T) : 16;
        using C = typename Chunk<bytes>::type;
        for (int i = 0; i < COUNT * (int)sizeof(T) / bytes; i++) ((C*)at)[i] = reinterpret_cast<const C*>(in)[i];
    } else {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            if (i < place.valid) *(T*)(at + i * out.column) = in[i];
    }
}

extern "C" __global__ void __launch_bounds__(256) prune(
    VIEW(x), VIEW(scores), VIEW(dense), VIEW(mask), long long batches, long long rows, long long k) {
    const View x TAKE(x), scores TAKE(scores), dense TAKE(dense), mask TAKE(mask);
    const Group place(batches, rows, k, SPAN);
    if (!place.inside) return;
    alignas(16) Bits element[SPAN];
    alignas(16) unsigned char kept[SPAN];
    if (WRITE_DENSE || !SCORED) load_row(x, place, element);
#if SCORED
    alignas(16) SCORE score[SPAN];
    load_row(scores, place, score);
#endif
#pragma unroll
    for (int first = 0; first < SPAN; first += GROUP) {
        Key key[GROUP];
        int rank[GROUP];  // how many go before
#pragma unroll
        for (int i = 0; i < GROUP; i++) {
            rank[i] = GROUP - 1 - i;
#if SCORED
            key[i] = score_key(score[first + i]);
#else
            key[i] = (Key)magnitude_key(element[first + i]);
#endif
            if (first + i >= place.valid) key[i] = Key(1) << (8 * sizeof(Key) - 1);  // ranks last
        }
#pragma unroll
        for (int i = 0; i < GROUP; i++)
#pragma unroll
            for (int j = i + 1; j < GROUP; j++)
                if (key[i] >= key[j]) rank[j]++, rank[i]--;
#pragma unroll
        for (int i = 0; i < GROUP; i++) {
            kept[first + i] = rank[i] < KEEP;
            if (WRITE_DENSE) element[first + i] = rank[i] < KEEP ? element[first + i] : Bits{};
        }
    }
    if (WRITE_DENSE) store_row(dense, place, element);
    if (WRITE_MASK) store_row(mask, place, kept);
}

#if VECTOR && GROUP == 4 && KEEP == 2 && !SCORED

// A thread's groups as words of lanes.cuh, and the way back to rows, of elements and of flags.
template <int BYTES> struct Span {
    using Word = typename Lanes<BYTES>::word;
    static constexpr int groups = Lanes<BYTES>::count, words = groups * BYTES;

    static void spread(const unsigned (&x)[words], Word (&out)[4]) {
        if constexpr (BYTES == 1) transpose_bytes(x, out);
        else
            for (int i = 0; i < 4; i++) {
                if constexpr (BYTES == 2) out[i] = permute(x[i / 2], x[2 + i / 2], i % 2 ? 0x7632 : 0x5410);
                else if constexpr (BYTES == 4) out[i] = x[i];
                else out[i] = x[2 * i] | (Word)x[2 * i + 1] << 32;
            }
    }
    static void gather(const Word (&x)[4], unsigned (&out)[words]) {
        if constexpr (BYTES == 1) transpose_bytes(x, out);
        else
            for (int i = 0; i < 4; i++) {
                if constexpr (BYTES == 2) out[i] = permute(x[i % 2 * 2], x[i % 2 * 2 + 1], i / 2 ? 0x7632 : 0x5410);
                else if constexpr (BYTES == 4) out[i] = x[i];
                else out[2 * i] = (unsigned)x[i], out[2 * i + 1] = (unsigned)(x[i] >> 32);
            }
    }
    static void gather_flags(const Word (&keep)[4], unsigned (&out)[groups]) {
        if constexpr (BYTES == 1) transpose_bytes(keep, out);
        else
            for (int j = 0; j < groups; j++) {
                unsigned high[4];
                for (int i = 0; i < 4; i++) high[i] = (unsigned)(keep[i] >> (BYTES == 8 ? 32 : 0));
                const int top = BYTES == 2 ? 1 + 2 * j : 3, pair = top | (top + 4) << 4;
                out[j] = permute(permute(high[0], high[1], pair), permute(high[2], high[3], pair), 0x5410);
            }
        for (int j = 0; j < groups; j++) out[j] = out[j] >> 7 & 0x01010101u;
    }
};

extern "C" __global__ void __launch_bounds__(256) prune_24(
    VIEW(x), VIEW(scores), VIEW(dense), VIEW(mask), long long batches, long long rows, long long k) {
    const View x TAKE(x), dense TAKE(dense), mask TAKE(mask);
    const Group place(batches, rows, k, SPAN);
    if (!place.inside) return;
    using S = Span<ITEM>;
    static_assert(SPAN == 4 * S::groups);
    unsigned words[S::words];
    load_words<16>(x.at(place.batch, place.row, place.column), words);
    S::Word in[4], size[4], keep[4];
    S::spread(words, in);
    for (int i = 0; i < 4; i++) size[i] = magnitude<kind>(in[i]);
    best_two([&](int i, int j) { return at_least<kind>(size[i], size[j]); }, keep);
    if (WRITE_MASK) {
        unsigned flags[S::groups];
        S::gather_flags(keep, flags);
        store_row(mask, place, flags);
    }
    if (WRITE_DENSE) {
        for (int i = 0; i < 4; i++) in[i] &= fill<ITEM>(keep[i]);
        S::gather(in, words);
        store_row(dense, place, words);
    }
}

#endif

extern "C" __global__ void __launch_bounds__(256) compress(
    VIEW(x), VIEW(values), VIEW(places), unsigned long long* status,
    long long batches, long long rows, long long k) {
    const View x TAKE(x), values TAKE(values), places TAKE(places);
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
        atomicMax(status, ~(unsigned long long)((place.batch * rows + place.row) * groups + place.group));
        atomicAdd(status + 1, 1ull);
    }
}

extern "C" __global__ void __launch_bounds__(256) decompress(
    VIEW(values), VIEW(places), VIEW(dense), long long batches, long long rows, long long k) {
    const View values TAKE(values), places TAKE(places), dense TAKE(dense);
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
