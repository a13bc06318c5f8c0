// like: compress a matrix at the positions of another one, whose codes are given.
//
//   codes  canonical metadata [batch, m, ceil(k/8)] (CODES 0) or packed (CODES 1)      (read)
//   x      [batch, m, k]  new elements; ALIGNMENT 16: contiguous rows on 16-byte
//                         boundaries (by columns 4: words), 0: any strides             (read)
//   values [batch, m, 2 ceil(k/4)]  rows `pitch` bytes apart, a multiple of 16       (written)
//   old    values of the same shape; rows on 16-byte boundaries; if NONZERO or DERIVATIVE (read)
//   seen   two elements, if LOOKS; cleared before                                    (written)
//   weight [batch, m, k]  the dense weight, as x; if DECAYED                         (read)
//   mask   a byte for each element, in the order of x, from a 16-byte boundary on    (read)
//   out    [batch, m, k]  as x, or x itself; of under_mask in the order of x         (written)
//
//   like_rows, like_columns  gather the stored places of x; -0.0 becomes +0.0.  NONZERO stores
//                            a zero where `old` has one, DERIVATIVE multiplies by twice the root of `old`,
//                            the derivative of squared relu where its value is `old`.  LOOKS sets seen[0] to 1
//                            if an element that is not stored is not zero, and seen[1] if one is not finite.
//                            By rows a thread gathers pieces (piece.cuh); by columns a block takes a tile
//                            through shared memory (tile.cuh).
//   masked_gradient          out = x in stored places, and in the others 0 or, if DECAYED,
//                            x + decay * weight (SR-STE, Zhou et al. 2021).
//   under_mask               out = x where a mask of bytes is not zero, and elsewhere 0; `loads` times 16
//                            bytes of elements.
//
// Macros: ELEMENT CODES ALIGNMENT NONZERO DERIVATIVE LOOKS DECAYED.
// Reference: reference.like, reference.masked_gradient, numpy.where.  Launcher: kernels/like.py.
#include "codes.cuh"
#include "subnormals.cuh"
#include "tile.cuh"

constexpr Kind kind = Kind::ELEMENT;
constexpr int ITEM = bytes_of(kind);
using P = Piece<ITEM>;
using T = Tile<ITEM>;
using Word = Lanes<ITEM>::word;

// A 32-bit word of elements with -0.0 turned into +0.0; halves of 8-byte elements are left as they are.
unsigned without_minus_zero(unsigned word) {
    if constexpr (ITEM <= 4 && kind != Kind::int8)
        return word & fill<ITEM>(nonzero<kind>(word & ~(unsigned)Lanes<ITEM>::top));
    return word;
}

// Reads a piece's stored elements from their row, whose storage is `pitch` bytes wide.
template <int ITEM, int COUNT>
void load_values(const char* row, long long pitch, int column, unsigned (&words)[COUNT]) {
    const long long start = (long long)column / 2 * ITEM;
    for (int i = 0; i < COUNT / 4; i++) {
        const uint4 four = start + 16 * i < pitch ? __ldg((const uint4*)(row + start) + i) : uint4{};
        words[4 * i] = four.x, words[4 * i + 1] = four.y, words[4 * i + 2] = four.z, words[4 * i + 3] = four.w;
    }
}

// Clears elements of `stored` where `old` has a zero of either sign.
template <int COUNT> void keep_nonzero(const unsigned (&old)[COUNT], unsigned (&stored)[COUNT]) {
    for (int i = 0; i < COUNT; i++) {
        if constexpr (ITEM == 8) {
            if ((old[i & ~1] | old[i | 1] << 1) == 0) stored[i] = 0;
        } else {
            stored[i] &= fill<ITEM>(nonzero<kind>(kind == Kind::int8 ? old[i] : old[i] & ~(unsigned)Lanes<ITEM>::top));
        }
    }
}

// Multiplies elements of `stored` by twice the root of those of `old`.
template <int COUNT> void times_derivative(const unsigned (&old)[COUNT], unsigned (&stored)[COUNT]) {
    using S = Scalar<kind>;
    using Real = typename S::real;
    const typename S::type* value = (const typename S::type*)old;
    typename S::type* gradient = (typename S::type*)stored;
    for (int i = 0; i < COUNT * 4 / ITEM; i++)
        gradient[i] = S::store(multiply(2 * root(Real(S::load(value[i]))), Real(S::load(gradient[i]))));
}

// Gathered elements as they are stored, beside those that are there.
template <int COUNT> void finish(const unsigned (&old)[COUNT], unsigned (&stored)[COUNT]) {
    if (NONZERO) keep_nonzero(old, stored);
#if DERIVATIVE
    times_derivative(old, stored);
#endif
    for (int i = 0; i < COUNT; i++) stored[i] = without_minus_zero(stored[i]);
    if constexpr (ITEM == 8)
        for (int i = 0; i < COUNT; i += 2)
            if ((stored[i] | stored[i + 1] << 1) == 0) stored[i + 1] = 0;
}

// What a thread has seen of x.
class Seen {
    static_assert(!LOOKS || ITEM > 1);
    static constexpr unsigned kSize = ITEM == 2 ? 0x7fff7fffu : 0x7fffffffu;  // a word without signs
    static constexpr unsigned kInfinity = kind == Kind::float16 ? 0x7c00 : kind == Kind::bfloat16 ? 0x7f80
                                        : kind == Kind::float32 ? 0x7f800000 : 0x7ff00000;
    int lost_ = 0;           // elements that are not zero, without the stored ones
    unsigned largest_ = 0;   // magnitudes: in both halves of the word for 16 bits, the upper half of one of 64

    template <int COUNT> static int nonzeros(const unsigned (&words)[COUNT]) {
        int count = 0;
        for (int i = 0; i < COUNT; i++) {
            if constexpr (ITEM == 8) count += i % 2 && (words[i - 1] | words[i] << 1) != 0;
            else count += __popc(nonzero<kind>(words[i] & kSize) & ~kSize);
        }
        return count;
    }

  public:
    template <int COUNT> void look(const unsigned (&x)[COUNT], const unsigned (&stored)[COUNT / 2]) {
        lost_ += nonzeros(x) - nonzeros(stored);
        for (int i = ITEM == 8; i < COUNT; i += ITEM == 8 ? 2 : 1)
            largest_ = ITEM == 2 ? __vmaxu2(largest_, x[i] & kSize) : max(largest_, x[i] & kSize);
    }
    // Called by whole warps.
    void tell(Scalar<kind>::type* seen) const {
        const unsigned largest = ITEM == 2 ? max(largest_ & 0xffffu, largest_ >> 16) : largest_;
        const bool lost = __any_sync(~0u, lost_), infinite = __any_sync(~0u, largest >= kInfinity);
        if ((threadIdx.x & 31) != 0) return;
        if (lost) seen[0] = Scalar<kind>::store(1.0f);
        if (infinite) seen[1] = Scalar<kind>::store(1.0f);
    }
};

// For each code, the selector of `permute` that takes the stored pair out of a group.
struct Gather {
    unsigned selector[16];

    void fill() {
        if (threadIdx.x < 16) {
            const int first = threadIdx.x & 3, second = threadIdx.x >> 2;
            selector[threadIdx.x] = ITEM == 1 ? first | second << 4
                                              : 0x1010 + first * 0x22 + second * 0x2200;
        }
    }
    // The pairs of all groups of a row.
    template <int GROUPS>
    void row(const unsigned (&x)[GROUPS * ITEM], unsigned codes, unsigned (&stored)[GROUPS * ITEM / 2]) const {
        for (int c = 0; c < GROUPS; c++) {
            const unsigned code = codes >> 4 * c & 15;
            if constexpr (ITEM == 1) {
                const unsigned pair = permute(x[c], 0, selector[code]) & 0xffffu;
                stored[c / 2] = c % 2 ? stored[c / 2] | pair << 16 : pair;
            } else if constexpr (ITEM == 2) {
                stored[c] = permute(x[2 * c], x[2 * c + 1], selector[code]);
            } else {
                constexpr int width = ITEM / 4;
                for (int w = 0; w < width; w++) {
                    const unsigned* at = x + 4 * c * width + w;
                    stored[2 * c * width + w] = pick(at, width, code & 3);
                    stored[(2 * c + 1) * width + w] = pick(at, width, code >> 2);
                }
            }
        }
    }
    static unsigned pick(const unsigned* at, int width, unsigned place) {
        return place == 0 ? at[0] : place == 1 ? at[width] : place == 2 ? at[2 * width] : at[3 * width];
    }
};

extern "C" __global__ void __launch_bounds__(128) like_rows(
    const char* x, long long x_batch, long long x_row, long long x_column, const void* codes,
    const char* old, long long old_batch, long long old_row, char* values, long long pitch,
    Scalar<kind>::type* seen, long long m_, long long k_) {
    __shared__ Gather gather;
    const int m = (int)m_, k = (int)k_;
    const Place<ITEM> place(m, k);
    Seen found;
    constexpr int pieces = Place<ITEM>::pieces, ahead = ITEM <= 2 ? pieces : 1;
    gather.fill();
    __syncthreads();

#pragma unroll 1
    for (int done = 0; done < pieces; done += ahead) {
        unsigned in[ahead][P::rows][P::words], code_words[ahead];
#pragma unroll
        for (int i = 0; i < ahead; i++) {
            code_words[i] = piece_codes<ITEM>(codes, place, done + i, m, k);
            for (int r = 0; r < P::rows; r++) {
                const int row = place.row + 4 * (done + i) + 8 * r;
                load_elements<ITEM, ALIGNMENT>(
                    x + place.batch * x_batch + row * x_row + place.column * x_column, x_column,
                    row < m ? min(max(k - place.column, 0), P::columns) : 0, in[i][r]);
            }
        }
#pragma unroll
        for (int i = 0; i < ahead; i++)
#pragma unroll
            for (int r = 0; r < P::rows; r++) {
                const int row = place.row + 4 * (done + i) + 8 * r;
                unsigned stored[P::words / 2], before[P::words / 2] = {};
                gather.row<P::groups>(in[i][r], code_words[i] >> 16 * r, stored);
                if constexpr (LOOKS) found.look(in[i][r], stored);
                if ((NONZERO || DERIVATIVE) && row < m)
                    load_values<ITEM>(old + place.batch * old_batch + row * old_row, pitch, place.column, before);
                finish(before, stored);
                if (row < m)
                    store_values<ITEM>(values + (place.batch * m + row) * pitch, pitch, place.column, stored);
            }
    }
    if constexpr (LOOKS) found.tell(seen);
}

extern "C" __global__ void __launch_bounds__(256) like_columns(
    const char* x, long long x_batch, long long x_row, long long x_column, const void* codes,
    const char* old, long long old_batch, long long old_row, char* values, long long pitch,
    Scalar<kind>::type* seen, long long m_, long long k_) {
    __shared__ T tile;
    __shared__ Gather gather;
    const int m = (int)m_, k = (int)k_;
    const TilePlace<ITEM> place(m, k);
    const int row = place.row + T::my_row(), column = place.column + T::my_column();
    const char* at = x + place.batch * x_batch + row * x_row + column * x_column;
    Word element[T::span];
    Seen found;
    load_columns<ITEM, ALIGNMENT>(at, x_row, x_column, m - row, k - column, element);
    gather.fill();
    tile.load_codes<CODES>(codes, place, m, k);
    if (NONZERO || DERIVATIVE)
        tile.load_values(old + place.batch * old_batch + place.row * old_row, old_row,
                         (long long)place.column / 2 * ITEM, (k + 3LL) / 4 * 2 * ITEM, m - place.row);
    __syncthreads();
    for (int j = 0; j < T::lanes; j++) {
        unsigned groups[T::span * ITEM / 4], stored[T::span * ITEM / 8];
        for (int c = 0; c < T::span / 4; c++) row_of_lanes<ITEM>(element + 4 * c, j, groups + c * ITEM);
        gather.row<T::span / 4>(groups, tile.get_codes(j), stored);
        if constexpr (LOOKS) found.look(groups, stored);
        unsigned before[T::span * ITEM / 8] = {};
        if (NONZERO || DERIVATIVE) tile.get_row(j, before);
        finish(before, stored);
        tile.put_row(j, stored);
    }
    __syncthreads();
    tile.store_values(values + (place.batch * m + place.row) * pitch, pitch,
                      (long long)place.column / 2 * ITEM, m - place.row);
    if constexpr (LOOKS) found.tell(seen);
}

// x + decay * weight, element by element of a 4-byte word (8 bytes: of a pair of words).
void decayed(const unsigned* x, const unsigned* weight, double decay, unsigned* out) {
    using S = Scalar<kind>;
    using Real = typename S::real;
    constexpr int count = ITEM == 8 ? 1 : 4 / ITEM;
    const typename S::type *a = (const typename S::type*)x, *b = (const typename S::type*)weight;
    for (int i = 0; i < count; i++)
        ((typename S::type*)out)[i] = S::store(multiply_add(Real(decay), Real(S::load(b[i])), Real(S::load(a[i]))));
}

extern "C" __global__ void __launch_bounds__(128) masked_gradient(
    const char* x, long long x_batch, long long x_row, long long x_column,
    const char* weight, long long w_batch, long long w_row, long long w_column, const void* codes,
    char* out, long long o_batch, long long o_row, long long o_column, double decay, long long m_, long long k_) {
    __shared__ Places<ITEM> places;
    const int m = (int)m_, k = (int)k_;
    const Place<ITEM> place(m, k);
    places.fill();
    __syncthreads();
#pragma unroll 1
    for (int p = 0; p < Place<ITEM>::pieces; p++) {
        const unsigned code_word = piece_codes<ITEM>(codes, place, p, m, k);
        for (int r = 0; r < P::rows; r++) {
            const int row = place.row + 4 * p + 8 * r;
            const int valid = row < m ? min(max(k - place.column, 0), P::columns) : 0;
            unsigned in[P::words], decaying[P::words];
            load_elements<ITEM, ALIGNMENT>(x + place.batch * x_batch + row * x_row + place.column * x_column,
                                           x_column, valid, in);
            if (DECAYED)
                load_elements<ITEM, ALIGNMENT>(
                    weight + place.batch * w_batch + row * w_row + place.column * w_column, w_column, valid, decaying);
            for (int c = 0; c < P::groups; c++) {
                unsigned kept[ITEM], ones[P::words / 2];
                for (int i = 0; i < P::words / 2; i++) ones[i] = ~0u;
                places.expand(ones, c, code_word >> (16 * r + 4 * c) & 15, kept);
                constexpr int width = ITEM == 8 ? 2 : 1;
                for (int w = 0; w < ITEM; w += width) {
                    unsigned other[2] = {0, 0};
                    if (DECAYED) decayed(in + c * ITEM + w, decaying + c * ITEM + w, decay, other);
                    for (int v = 0; v < width; v++) {
                        unsigned& word = in[c * ITEM + w + v];
                        word = (word & kept[w + v]) | (other[v] & ~kept[w + v]);
                    }
                }
            }
            store_elements<ITEM, ALIGNMENT>(out + place.batch * o_batch + row * o_row + place.column * o_column,
                                            o_column, valid, in);
        }
    }
}

// Words of the elements of one load under the mask, from their flags.
void select(const unsigned (&mask)[(16 / ITEM + 3) / 4], unsigned (&x)[4]) {
    for (int i = 0; i < 4; i++) {
        unsigned selector = 0;  // of each byte that of its element's flag
        for (int j = 0; j < 4; j++) selector |= (4 * i + j) / ITEM % 4 << 4 * j;
        x[i] &= permute(fill<1>(nonzero<Kind::int8>(mask[4 * i / ITEM / 4])), 0, selector);
    }
}

constexpr int kMaskThreads = 256, kLoads = 4;  // of a thread

extern "C" __global__ void __launch_bounds__(kMaskThreads) under_mask(
    const char* x, const char* mask, char* out, long long loads) {
    constexpr int elements = 16 / ITEM;
    const long long first = blockIdx.x * (long long)(kMaskThreads * kLoads) + threadIdx.x;
    unsigned in[kLoads][4], flags[kLoads][(elements + 3) / 4] = {};
#pragma unroll
    for (int i = 0; i < kLoads; i++) {
        const long long at = first + i * kMaskThreads;
        if (at >= loads) continue;
        load_words<16>(x + 16 * at, in[i]);
        if constexpr (elements >= 4) load_words<elements>(mask + elements * at, flags[i]);
        else flags[i][0] = __ldg((const unsigned short*)(mask + elements * at));
    }
#pragma unroll
    for (int i = 0; i < kLoads; i++) {
        const long long at = first + i * kMaskThreads;
        if (at >= loads) continue;
        select(flags[i], in[i]);
        *(uint4*)(out + 16 * at) = make_uint4(in[i][0], in[i][1], in[i][2], in[i][3]);
    }
}
