// sample: draw two of every four elements of a gradient without bias, and compress them.
//
//   x      [batch, m, k]  16-bit or float32 elements, any strides; ALIGNMENT 4: columns are
//                         contiguous and start on 4-byte boundaries, 16: rows, on 16-byte ones (read)
//   values [batch, m, 2 ceil(k/4)]  rows `pitch` bytes apart, a multiple of 16      (written)
//   packed [batch, ceil(k/128), ceil(m/64), 1024]  metadata, tensor core order      (written)
//   key0, key1  the 128 bits from which all numbers are made, low half first
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
// transposed in shared memory.  bfloat16 moves 3.125 bytes for each element, which takes
// half the time: arithmetic takes the rest.
//
// Macros: ELEMENT ALIGNMENT.
// Reference: reference.sample.  Launcher: kernels/sample.py.  Method: docs, packing kernels.
#include "subnormals.cuh"
#include "tile.cuh"

constexpr Kind kind = Kind::ELEMENT;
constexpr int ITEM = bytes_of(kind);
using S = Scalar<kind>;
using T = Tile<ITEM>;
using Word = Lanes<ITEM>::word;
using Wide = unsigned long long;

// Both halves of a product of 128 bits.
void multiply(Wide a, Wide b, Wide& high, Wide& low) { high = __umul64hi(a, b), low = a * b; }

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
    static constexpr int groups = T::columns / 4;  // of a row
    float number[groups][T::rows];

    // Each thread makes eight, neighbours in a row, until all are there.  Row r begins with number `flat + r * row_groups`
    // of the whole array, which need not be the first of a block of the generator.
    void fill(Wide flat, Wide row_groups, Wide key0, Wide key1) {
        const int blocks = groups / 8 + ((flat | row_groups) % 8 > 0);
#pragma unroll 1
        for (int i = threadIdx.x; i < T::rows * blocks; i += 256) {
            const int row = i % T::rows, block = i / T::rows;
            const Wide begin = flat + row * row_groups;
            const Philox philox(begin / 8 + block, key0, key1);
            const int first = 8 * block - (int)(begin % 8);
#pragma unroll
            for (int j = 0; j < 8; j++)
                if ((unsigned)(first + j) < groups) number[first + j][row] = philox.uniform(j);
        }
    }
};

// This thread's elements, as words of columns.
void load(const char* at, long long x_row, long long x_column, int rows, int columns, Word (&element)[T::span]) {
    if constexpr (ALIGNMENT == 16) {
        unsigned in[T::lanes][T::span * ITEM / 4];
        for (int j = 0; j < T::lanes; j++)
            load_elements<ITEM, ALIGNMENT>(at + j * x_row, x_column, j < rows ? columns : 0, in[j]);
        for (int c = 0; c < T::span / 4; c++) {
            unsigned group[T::lanes][ITEM];
            Word lanes[4];
            for (int j = 0; j < T::lanes; j++)
                for (int i = 0; i < ITEM; i++) group[j][i] = in[j][ITEM * c + i];
            lanes_of_rows<ITEM>(group, lanes);
            for (int i = 0; i < 4; i++) element[4 * c + i] = lanes[i];
        }
    } else {
        load_columns<ITEM, ALIGNMENT>(at, x_row, x_column, rows, columns, element);
    }
}

// Element j of a word.
float lane_of(Word word, int j) {
    if constexpr (ITEM == 4) return __uint_as_float(word);
    else if constexpr (kind == Kind::bfloat16) return __uint_as_float(j ? word & 0xffff0000u : word << 16);
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

// Each operation is rounded on its own (no fused ones), as in the reference.
float sum_of(const float (&x)[4]) { return add(add(x[0], x[2]), add(x[1], x[3])); }

// A flag, which is the top bit, that says whether a < b: neither is negative, or all bits of `a` are set.
unsigned below(float a, float b) { return __float_as_uint(a) - __float_as_uint(b); }

// The flags of the lanes in all bits of these lanes.
Word all_bits(const unsigned (&flags)[T::lanes]) {
    if constexpr (ITEM == 4) return fill<4>(flags[0]);
    else return permute(flags[0], flags[1], 0xffbb);
}

// What is drawn of a group in one lane, of four magnitudes that lost the certain one if they are `capped`, which is a flag.
struct Drawn {
    float magnitude;
    unsigned flags[4];

    Drawn(const float (&size)[4], unsigned capped, float half, float u) {
        magnitude = (int)capped < 0 ? sum_of(size) : half;
        const float two = add(size[0], size[1]), end[3] = {size[0], two, add(two, size[2])};
        const float point = multiply(u, magnitude);
        const float other = (int)capped < 0 ? __uint_as_float(~0u) : add(half, point);  // before all ends
        unsigned first[3], second[3];
        for (int i = 0; i < 3; i++) first[i] = below(point, end[i]), second[i] = below(other, end[i]);
        flags[0] = first[0] | (second[0] & ~capped);
        for (int i = 1; i < 3; i++) flags[i] = (first[i] & ~first[i - 1]) | (second[i] & ~second[i - 1]);
        flags[3] = ~(first[2] & second[2]) & below(0, size[3]);
    }
};

// Samples a group of every lane: `keep` has flags of what is stored.
void sample(Word (&group)[4], Word (&keep)[4], const float (&number)[T::lanes]) {
    Word size[4], certain[4];
    unsigned flags[4][T::lanes], capped[T::lanes], infinite[T::lanes];
    float half[T::lanes], drawn[T::lanes];
    for (int i = 0; i < 4; i++) size[i] = group[i] & ~Lanes<ITEM>::top;
    for (int j = 0; j < T::lanes; j++) {
        const float x[4] = {lane_of(size[0], j), lane_of(size[1], j), lane_of(size[2], j), lane_of(size[3], j)};
        const float total = sum_of(x);
        half[j] = multiply(0.5f, total);
        infinite[j] = below(__int_as_float(0x7f7fffff), total);  // or not a number
        for (int i = 0; i < 4; i++) flags[i][j] = below(half[j], x[i]);  // of at most one
        capped[j] = flags[0][j] | flags[1][j] | flags[2][j] | flags[3][j];
    }
    for (int i = 0; i < 4; i++) certain[i] = all_bits(flags[i]), size[i] &= ~certain[i];
    for (int j = 0; j < T::lanes; j++) {
        const float x[4] = {lane_of(size[0], j), lane_of(size[1], j), lane_of(size[2], j), lane_of(size[3], j)};
        const Drawn choice(x, capped[j], half[j], number[j]);
        drawn[j] = choice.magnitude;
        for (int i = 0; i < 4; i++) flags[i][j] = choice.flags[i];
    }
    for (int i = 0; i < 4; i++) keep[i] = certain[i] | all_bits(flags[i]);
    if (const Word lost = all_bits(infinite)) {  // keep the largest two, which show the infinity or the NaN
        Word greedy[4];
        largest_two<kind>(group, greedy);
        for (int i = 0; i < 4; i++) {
            const Word whole = fill<ITEM>(greedy[i]) & lost;
            certain[i] = whole | (certain[i] & ~lost), keep[i] = whole | (keep[i] & ~lost);
        }
    }
    const Word sampled = word_of(drawn);
    for (int i = 0; i < 4; i++) {
        const Word own = certain[i] | Lanes<ITEM>::top;
        group[i] = (group[i] & own) | (sampled & ~own);
        keep[i] &= nonzero<kind>(group[i] & ~Lanes<ITEM>::top);
    }
}

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
    load(at, x_row, x_column, m - row, k - column, element);

    const long long groups = (k + 3) / 4;
    draws.fill((place.batch * m + place.row) * groups + place.column / 4, groups, key0, key1);
    __syncthreads();

#pragma unroll
    for (int c = 0; c < T::span / 4; c++) {
        Word group[4], keep[4];
        float number[T::lanes];
        for (int i = 0; i < 4; i++) group[i] = element[4 * c + i];
        for (int j = 0; j < T::lanes; j++) number[j] = draws.number[T::my_column() / 4 + c][T::my_row() + j];
        sample(group, keep, number);
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
