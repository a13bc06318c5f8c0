// sample: draw two of every four elements of a gradient without bias, and compress them.
//
//   x      [batch, m, k]  16-bit or float32 elements, any strides; ALIGNMENT 4: columns are
//                         contiguous and start on 4-byte boundaries                    (read)
//   values [batch, m, 2 ceil(k/4)]  rows `pitch` bytes apart, a multiple of 16      (written)
//   packed [batch, ceil(k/128), ceil(m/64), 1024]  metadata, tensor core order      (written)
//
// An element is kept with probability p = min(1, 2 |x| / sum |x|) and divided by it: minimum
// variance without bias (Chmiel et al., Minimum variance unbiased N:M sparsity for the neural
// gradients, 2023).  Where p < 1, |x| / p is half the sum of the group, so nothing is divided.  The
// magnitudes are laid end to end, and the elements at u and 1 + u halves of their sum are kept, with u
// a uniform number in [0, 1), one for each group.  An element above half the sum is certain and stays
// as it is; then u selects the other one among the rest, which has the sum of the rest as its
// magnitude.  Subnormal numbers are not flushed.
//
// The numbers are those of NumPy's Philox 4x64-10 (Salmon et al., Parallel random numbers: as easy
// as 1, 2, 3, 2011), eight for each counter, in the order of the groups, so a GPU draws what a CPU
// draws.  Each thread makes eight for the block, through shared memory.
//
// A block takes a tile of tile.cuh, whatever the order of x; the stored elements and codes are
// transposed in shared memory.  Memory-bound: bfloat16 moves 3.125 bytes for each element.
// Reference: reference.sample.  Launcher: kernels/sample.py.  Method: docs, packing kernels.
#include "tile.cuh"

constexpr Kind kind = Kind::ELEMENT;
constexpr int ITEM = bytes_of(kind);
using S = Scalar<kind>;
using T = Tile<ITEM>;
using Word = Lanes<ITEM>::word;
using Wide = unsigned long long;

// Both halves of a product of 128 bits.
void multiply(Wide a, Wide b, Wide& high, Wide& low) {
    const unsigned a0 = (unsigned)a, a1 = (unsigned)(a >> 32), b0 = (unsigned)b, b1 = (unsigned)(b >> 32);
    const Wide least = (Wide)a0 * b0, middle = (Wide)a1 * b0 + (least >> 32), other = (Wide)a0 * b1 + (unsigned)middle;
    low = other << 32 | (unsigned)least;
    high = (Wide)a1 * b1 + (middle >> 32) + (other >> 32);
}

// Block number `count` of eight 24-bit numbers.  NumPy increments the counter before it takes the first block.
struct Philox {
    Wide word[4];

    Philox(Wide count, Wide key0, Wide key1) : word{count + 1, 0, 0, 0} {
#pragma unroll
        for (int round = 0; round < 10; round++) {
            Wide high0, low0, high1, low1;
            multiply(0xD2E7470EE14C6C93ull, word[0], high0, low0);
            multiply(0xCA5A826395121157ull, word[2], high1, low1);
            word[0] = high1 ^ word[1] ^ key0, word[1] = low1;
            word[2] = high0 ^ word[3] ^ key1, word[3] = low0;
            key0 += 0x9E3779B97F4A7C15ull, key1 += 0xBB67AE8584CAA73Bull;
        }
    }
    float uniform(int i) const {
        return (float)((unsigned)(word[i / 2] >> 32 * (i % 2)) >> 8) * 0x1p-24f;
    }
};

// Numbers of a tile's groups.
struct Draws {
    float number[T::columns / 4][T::rows];

    // A thread makes eight, neighbours in a row; `flat` counts groups of the whole array.
    void fill(Wide flat, int row, int first, Wide key0, Wide key1) {
        if (flat % 8 == 0) {
            const Philox philox(flat / 8, key0, key1);
#pragma unroll
            for (int i = 0; i < 8; i++) number[first + i][row] = philox.uniform(i);
            return;
        }
#pragma unroll 1
        for (int half = 0; half < 2; half++) {  // the eight lie in two blocks
            const Philox philox(flat / 8 + half, key0, key1);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const int at = 8 * half + i - (int)(flat % 8);
                if (at >= 0 && at < 8) number[first + at][row] = philox.uniform(i);
            }
        }
    }
};

// Element j of a word.
float lane_of(Word word, int j) {
    if constexpr (ITEM == 4) return __uint_as_float(word);
    else {
        const unsigned short bits = (unsigned short)(word >> 16 * j);
        return (float)S::load(reinterpret_cast<const typename S::type&>(bits));
    }
}

// All lanes from numbers.
Word word_of(const float (&x)[T::lanes]) {
    if constexpr (kind == Kind::float32) return __float_as_uint(x[0]);
    else if constexpr (kind == Kind::bfloat16) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(x[0], x[1]);
        return reinterpret_cast<const unsigned&>(pair);
    } else {
        const __half2 pair = __floats2half2_rn(x[0], x[1]);
        return reinterpret_cast<const unsigned&>(pair);
    }
}

// Sums, products and comparisons that keep subnormal numbers.  The operators of C++ would flush them, because CuPy
// compiles with -ftz=true.  Each operation is rounded on its own (no fused ones), as in the reference.
float sum(float a, float b) {
    float c;
    asm("add.rn.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}
float product(float a, float b) {
    float c;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}
bool less(float a, float b) { return __float_as_int(a) < __float_as_int(b); }  // at most one is negative

// What is kept of the group in one lane: `certain` as it is, `drawn` with magnitude `rest`.
struct Choice {
    bool certain[4], drawn[4], finite;
    float rest;

    // Of four magnitudes, which lose the certain one, and a number in [0, 1).
    Choice(float (&size)[4], float u) {
        const float total = sum(sum(size[0], size[2]), sum(size[1], size[3])), half = product(0.5f, total);
        finite = total < __int_as_float(0x7f800000);
        bool capped = false;
        for (int i = 0; i < 4; i++) {
            certain[i] = less(half, size[i]);  // at most one of them
            capped |= certain[i];
            size[i] = certain[i] ? 0 : size[i];
        }
        rest = capped ? sum(sum(size[0], size[2]), sum(size[1], size[3])) : half;
        const float first = product(u, rest), second = capped ? -1.f : sum(half, first);
        float end = 0;
        bool before_first = false, before_second = capped;  // a point lies before `end`
        for (int i = 0; i < 4; i++) {
            end = sum(end, size[i]);
            const bool now_first = i == 3 || less(first, end), now_second = i == 3 || less(second, end);
            drawn[i] = now_first != before_first || now_second != before_second;
            before_first = now_first, before_second = now_second;
        }
        drawn[3] = drawn[3] && less(0, size[3]);
    }
};

extern "C" __global__ void __launch_bounds__(256) sample_columns(
    const char* x, long long x_batch, long long x_row, long long x_column, char* values, long long pitch,
    unsigned* packed, Wide key0, Wide key1, long long m_, long long k_) {
    __shared__ T tile;
    __shared__ Draws draws;
    const int m = (int)m_, k = (int)k_;
    const TilePlace<ITEM> place(m, k);
    const int row = place.row + T::my_row(), column = place.column + T::my_column();
    const char* at = x + place.batch * x_batch + row * x_row + column * x_column;
    Word element[T::span], first[T::span / 4], second[T::span / 4], bits = 0;
#pragma unroll
    for (int i = 0; i < T::span; i++)
        element[i] = load_lanes<ITEM, ALIGNMENT>(at + i * x_column, x_row, column + i < k ? m - row : 0);

    const int draw_row = threadIdx.x % T::rows, eight = threadIdx.x / T::rows * 8;
    const long long groups = (k + 3) / 4;
    draws.fill((place.batch * m + place.row + draw_row) * groups + place.column / 4 + eight, draw_row, eight,
               key0, key1);
    __syncthreads();

#pragma unroll
    for (int c = 0; c < T::span / 4; c++) {
        Word certain[4] = {}, keep[4] = {}, group[4];
        float rest[T::lanes];
        for (int i = 0; i < 4; i++) group[i] = element[4 * c + i];
        for (int j = 0; j < T::lanes; j++) {
            const Word flag = (Word)1 << (8 * ITEM * (j + 1) - 1);
            const float number = draws.number[T::my_column() / 4 + c][T::my_row() + j];
            float size[4];
            for (int i = 0; i < 4; i++) size[i] = lane_of(group[i] & ~Lanes<ITEM>::top, j);
            const Choice choice(size, number);
            rest[j] = choice.rest;
            if (choice.finite) {
                for (int i = 0; i < 4; i++) {
                    certain[i] |= choice.certain[i] ? flag : 0;
                    keep[i] |= choice.certain[i] || choice.drawn[i] ? flag : 0;
                }
            } else {  // an infinity or a NaN: keep the largest two, which show it
                Word greedy[4];
                largest_two<kind>(group, greedy);
                for (int i = 0; i < 4; i++) certain[i] |= greedy[i] & flag, keep[i] |= greedy[i] & flag;
            }
        }
        const Word sampled = word_of(rest);
        for (int i = 0; i < 4; i++) {
            const Word own = fill<ITEM>(certain[i]) | Lanes<ITEM>::top;
            group[i] = (group[i] & own) | (sampled & ~own);
            keep[i] &= nonzero<kind>(group[i] & ~Lanes<ITEM>::top);
        }
        stored_pair<kind>(group, keep, first[c], second[c]);
        bits = append_code<ITEM>(bits, keep);
    }
    tile.put_pairs(first, second);
    tile.put_codes(&bits);
    __syncthreads();
    tile.store_values(values + (place.batch * m + place.row) * pitch, pitch,
                      (long long)place.column / 2 * ITEM, m - place.row);
    tile.store_packed(packed, place, m, k);
}
