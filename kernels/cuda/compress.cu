// compress: choose two of every four elements, store them and their places, in one pass.
//
//   x        [batch, m, k]  elements, any strides                                   (read)
//   chosen   [batch, m, k]  RULE 1: scores, float or double; RULE 2: bool mask      (read)
//   values   [batch, m, 2 ceil(k/4)]  rows `pitch` bytes apart, a multiple of 16    (written)
//   metadata [batch, m, ceil(k/8)]    canonical codes, if METADATA                  (written)
//   packed   [batch, ceil(k/128), ceil(m/64), 1024]  tensor core order, if PACKED   (written)
//   status   [2]  uint64, RULE 2 and 3, cleared before: ~(lowest flat index) of the groups with
//                 more than two elements to keep, so that atomicMax finds it, and the number of
//                 such groups; 0: none                                              (updated)
//
// RULE 0 keeps the two largest magnitudes, 1 the two best scores, 2 what the mask says, 3 the
// non-zeros.  VALUES 0 writes no values.  Memory-bound: bfloat16 moves 3.125 bytes for each element.
//
// Macros: ELEMENT RULE ALIGNMENT VALUES METADATA PACKED; SCORE, the type of scores; CHOSEN_ALIGNED, whether four
// neighbours of `chosen` can be read at once.
//
//   compress_rows     ALIGNMENT of rows in bytes, or 0 for any strides.  Every thread compresses
//                     pieces by itself (piece.cuh), without shared memory.
//   compress_columns  m is the contiguous axis, so a 32-bit word of x already has elements of one
//                     column and neighbouring rows, the lanes of lanes.cuh.  Only the results are
//                     transposed, in shared memory (tile.cuh).
//
// Reference: reference.compress.  Launcher: kernels/compress.py.  Method: docs, packing kernels.
#include "codes.cuh"
#include "score_key.cuh"
#include "tile.cuh"

enum Rule { kMagnitude, kScores, kMask, kCheck };

constexpr Kind kind = Kind::ELEMENT;
constexpr int ITEM = bytes_of(kind);
using Word = Lanes<ITEM>::word;
constexpr Word TOP = Lanes<ITEM>::top;

// Flag where an element is not zero, whatever its sign.
Word nonzero_element(Word x) { return nonzero<kind>(kind == Kind::int8 ? x : x & ~TOP); }

// Groups of this thread that had more than two elements to keep.
struct Excess {
    int count = 0;
    long long first = 0x7fffffffffffffffll;

    // `history` has a flag for each of the last STEPS steps, as `append` leaves them.  index(lane, step) is the flat
    // index of a group, which grows with the step.
    template <int STEPS, class Index> void note(Word history, Index index) {
        if (!(RULE == kMask || RULE == kCheck) || history == 0) return;
        for (int j = 0; j < Lanes<ITEM>::count; j++) {
            const unsigned steps = (unsigned)(history >> (8 * ITEM * (j + 1) - STEPS)) & ((1u << STEPS) - 1);
            if (steps) first = min(first, index(j, __ffs(steps) - 1));
            count += __popc(steps);
        }
    }
    // One pair of atomics for a block, and only if it found such a group.
    void report(unsigned long long* status) {
        __shared__ unsigned long long least, total;
        if (!__syncthreads_or(count)) return;
        if (threadIdx.x == 0) least = ~0ull, total = 0;
        __syncthreads();
        if (count) {
            atomicMin(&least, (unsigned long long)first);
            atomicAdd(&total, (unsigned long long)count);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            atomicMax(status, ~least);
            atomicAdd(status + 1, total);
        }
    }
};

// Keeps flags of at most two elements of each group; returns a flag where there were more.
Word choose(Word (&x)[4], Word (&keep)[4]) {
    if constexpr (RULE == kMagnitude) {
        largest_two<kind>(x, keep);
        return 0;
    } else if constexpr (RULE == kScores) {
        for (int i = 0; i < 4; i++) keep[i] &= nonzero_element(x[i]);
        return 0;
    } else if constexpr (RULE == kMask) {  // a kept zero keeps its slot, as +0.0
        for (int i = 0; i < 4; i++) x[i] &= fill<ITEM>(nonzero_element(x[i]));
        return drop_excess(keep) & TOP;
    } else {
        for (int i = 0; i < 4; i++) keep[i] = nonzero_element(x[i]);
        return drop_excess(keep) & TOP;
    }
}

// Four bytes, whose top bits flag the elements that `chosen` keeps of the group at `at`.
unsigned chosen_group(const char* at, long long stride, int valid) {
    unsigned word = 0;
    if constexpr (RULE == kMask) {
        if (CHOSEN_ALIGNED && valid >= 4) return __ldg((const unsigned*)at) << 7;
        for (int i = 0; i < 4; i++)
            if (i < valid) word |= (unsigned)(__ldg((const unsigned char*)at + i * stride)) << (8 * i + 7);
    } else if constexpr (RULE == kScores) {
        unsigned score[sizeof(SCORE)];
        load_elements<sizeof(SCORE), CHOSEN_ALIGNED ? 16 : 0>(at, stride, valid, score);
        using Key = decltype(score_key(SCORE()));
        Key key[4];
        for (int i = 0; i < 4; i++)  // what does not exist ranks last
            key[i] = i < valid ? score_key(reinterpret_cast<const SCORE*>(score)[i])
                               : Key(1) << (8 * sizeof(Key) - 1);
        unsigned keep[4];
        best_two([&](int i, int j) { return key[i] >= key[j] ? 0x80u : 0u; }, keep);
        for (int i = 0; i < 4; i++) word |= (keep[i] & 0x80u) << 8 * i;
    }
    return word;
}

struct Input {
    const char *x, *chosen;
    long long batch, row, column;                       // strides of x in bytes
    long long chosen_batch, chosen_row, chosen_column;  // strides of chosen
    const char* at(long long b, int i, int j) const { return x + b * batch + i * row + j * column; }
    const char* chosen_at(long long b, int i, int j) const {
        return chosen + b * chosen_batch + i * chosen_row + j * chosen_column;
    }
};

#define PARAMETERS                                                                              \
    const char *x, long long x_batch, long long x_row, long long x_column, const char *chosen,  \
        long long c_batch, long long c_row, long long c_column, char *values, long long pitch,  \
        unsigned char *metadata, unsigned *packed, unsigned long long *status, long long m_, long long k_

#define INPUT {x, chosen, x_batch, x_row, x_column, c_batch, c_row, c_column}

using P = Piece<ITEM>;

struct Compressed {
    unsigned values[P::rows][P::words / 2];
    unsigned codes;
};

// `group` is the flat index of the piece's first group, `row_groups` the distance of its rows.
Compressed compress_piece(const unsigned (&x)[P::rows][P::words],
                          const unsigned (&chosen)[P::rows][P::groups],
                          Excess& excess, long long group, long long row_groups) {
    Word first[P::steps], second[P::steps], bits[ITEM > 2 ? P::rows : 1] = {}, history = 0;
    for (int s = 0; s < P::steps; s++) {
        Word in[4], keep[4];
        P::spread(x, s, in);
        if constexpr (RULE == kScores || RULE == kMask) P::spread_flags(chosen, s, keep);
        history = append<ITEM>(history, choose(in, keep));
        stored_pair<kind>(in, keep, first[s], second[s]);
        Word& row_bits = bits[ITEM > 2 ? s / P::groups : 0];
        row_bits = append_code<ITEM>(row_bits, keep);
    }
    excess.note<P::steps>(history, [=](int lane, int step) {
        if (ITEM == 1) return group + 2 * lane + step;
        return group + (ITEM == 2 ? lane : step / P::groups) * row_groups + step % P::groups;
    });
    Compressed out;
    P::gather(first, second, out.values);
    out.codes = P::code_word(bits);
    return out;
}

extern "C" __global__ void __launch_bounds__(128) compress_rows(PARAMETERS) {
    const Input input = INPUT;
    const int m = (int)m_, k = (int)k_;
    const Place<ITEM> place(m, k);
    const long long groups = (k + 3) / 4, metadata_bytes = (k + 7) / 8;
    Excess excess;
    // Pieces whose loads are in flight together: 128 bytes for each thread (8-byte elements: 256); more would cost
    // registers.
    constexpr int ahead = ITEM <= 2 ? Place<ITEM>::pieces : 1;

#pragma unroll 1
    for (int done = 0; done < Place<ITEM>::pieces; done += ahead) {
        unsigned in[ahead][P::rows][P::words];
#pragma unroll
        for (int i = 0; i < ahead; i++)
            for (int r = 0; r < P::rows; r++) {
                const int row = place.row + 4 * (done + i) + 8 * r;
                const int valid = row < m ? min(max(k - place.column, 0), P::columns) : 0;
                load_elements<ITEM, ALIGNMENT>(input.at(place.batch, row, place.column), x_column, valid, in[i][r]);
            }
#pragma unroll
        for (int i = 0; i < ahead; i++) {
            const int p = done + i;
            unsigned chosen_words[P::rows][P::groups];
            if constexpr (RULE == kScores || RULE == kMask)
                for (int r = 0; r < P::rows; r++)
                    for (int c = 0; c < P::groups; c++) {
                        const int row = place.row + 4 * p + 8 * r, column = place.column + 4 * c;
                        chosen_words[r][c] = chosen_group(input.chosen_at(place.batch, row, column),
                                                          c_column, row < m ? k - column : 0);
                    }
            const long long line = place.batch * m + place.row + 4 * p;
            const Compressed out = compress_piece(in[i], chosen_words, excess,
                                                  line * groups + place.column / 4, 8 * groups);
            if (PACKED && place.inside) packed[place.packed_word(p)] = out.codes;
            for (int r = 0; r < P::rows; r++) {
                if (place.row + 4 * p + 8 * r >= m) continue;
                const long long row = line + 8 * r;
                if (VALUES) store_values<ITEM>(values + row * pitch, pitch, place.column, out.values[r]);
                if (METADATA)
                    store_canonical<ITEM>(metadata + row * metadata_bytes, metadata_bytes,
                                          place.column, out.codes >> 16 * r);
            }
        }
    }
    if (RULE == kMask || RULE == kCheck) excess.report(status);
}

using T = Tile<ITEM>;

// Flags of what `chosen` keeps of the group at `column`, in its rows.
void chosen_lanes(const Input& input, long long batch, int row, int column, int m, int k, Word (&keep)[4]) {
    for (int i = 0; i < 4; i++) keep[i] = 0;
    for (int j = 0; j < T::lanes; j++) {
        const char* at = input.chosen_at(batch, row + j, column);
        const unsigned flags = chosen_group(at, input.chosen_column, row + j < m ? k - column : 0);
        for (int i = 0; i < 4; i++) keep[i] |= (Word)(flags >> (8 * i + 7) & 1) << (8 * ITEM * (j + 1) - 1);
    }
}

extern "C" __global__ void __launch_bounds__(256) compress_columns(PARAMETERS) {
    __shared__ T tile;
    const Input input = INPUT;
    const int m = (int)m_, k = (int)k_;
    const TilePlace<ITEM> place(m, k);
    const int row = place.row + T::my_row(), column = place.column + T::my_column();
    const char* at = input.at(place.batch, row, column);
    Excess excess;
    Word element[T::span], first[T::span / 4], second[T::span / 4], history = 0;
    Word bits[ITEM == 1 ? 4 : 1] = {};

    load_columns<ITEM, ALIGNMENT>(at, x_row, x_column, m - row, k - column, element);
#pragma unroll
    for (int c = 0; c < T::span / 4; c++) {
        Word in[4], keep[4];
        for (int i = 0; i < 4; i++) in[i] = element[4 * c + i];
        if constexpr (RULE == kScores || RULE == kMask)
            chosen_lanes(input, place.batch, row, column + 4 * c, m, k, keep);
        history = append<ITEM>(history, choose(in, keep));
        stored_pair<kind>(in, keep, first[c], second[c]);
        Word& codes = bits[ITEM == 1 ? c / 2 : 0];
        codes = append_code<ITEM>(codes, keep);
    }
    const long long groups = (k + 3) / 4, group = (place.batch * m + row) * groups + column / 4;
    excess.note<T::span / 4>(history, [=](int lane, int step) { return group + lane * groups + step; });
    if (VALUES) tile.put_pairs(first, second);
    tile.put_codes(bits);
    __syncthreads();

    const int rows = m - place.row;
    const long long first_row = place.batch * m + place.row, bytes = (k + 7) / 8;
    if (VALUES)
        tile.store_values(values + first_row * pitch, pitch, (long long)place.column / 2 * ITEM, rows);
    if (METADATA) tile.store_canonical(metadata + first_row * bytes, bytes, place.column / 8, rows);
    if (PACKED) tile.store_packed(packed, place, m, k);
    if (RULE == kMask || RULE == kCheck) excess.report(status);
}
