// transposable: the best 4x4 masks of a matrix, and both its orientations packed in one pass.
//
//   tile_mask   x [batch, m, k] of any strides -> mask bool [batch, m, k], any strides.
//   square_mask the same for 16-bit elements in contiguous rows on 16-byte boundaries, with
//               m % 4 == k % 4 == 0, and rows of the mask on 8-byte boundaries.
//   tile_pack   x [batch, m, k] as for square_mask -> values and packed metadata of x, or if SQUARED of
//               relu(x)^2, and of its transpose:
//                 values   [batch, m, k/2],  packed   [batch, ceil(k/128), ceil(m/64), 1024]
//                 t_values [batch, k, m/2],  t_packed [batch, ceil(m/128), ceil(k/64), 1024]
//               Rows of values are a multiple of 16 bytes apart.
//
// In the last two a thread has 8 x 8 elements, four tiles, so it writes eight bytes of each of
// its rows and columns.  A warp has 32 x 64 elements, a block 128 x 128.  These are two whole atoms
// of each metadata, which are gathered in shared memory.
//
// The tile masks: best_tile.cuh (any type), fixed_tile.cuh (16-bit elements, by integers).
//
// Macros: ELEMENT; PACK 1: 16-bit elements, with square_mask (unless SQUARED) and tile_pack; SQUARED.
// Reference: reference.transposable_mask, reference.compress.  Launcher: kernels/transposable.py.
#include "fixed_tile.cuh"
#include "narrow.cuh"
#include "piece.cuh"

constexpr Kind kind = Kind::ELEMENT;

float magnitude_of(const char* at) {
    using S = Scalar<kind>;
    const float x = narrow(S::load(*(const typename S::type*)at));
    return __int_as_float(bits(x) & 0x7fffffff);
}

extern "C" __global__ void __launch_bounds__(128) tile_mask(
    const char* x, long long x_batch, long long x_row, long long x_column,
    char* mask, long long o_batch, long long o_row, long long o_column, long long m_, long long k_) {
    __shared__ UpperRows upper[36];
    __shared__ alignas(16) float scratch[128 * kScratch];
    if (threadIdx.x < 36) upper[threadIdx.x].find(threadIdx.x);
    __syncthreads();
    const int m = (int)m_, k = (int)k_, across = (k + 3) / 4, down = (m + 3) / 4;
    const int blocks = (across + 127) / 128;
    const int column = (blockIdx.x % blocks * 128 + threadIdx.x) * 4, row = blockIdx.x / blocks % down * 4;
    const long long batch = blockIdx.x / blocks / down;
    if (column >= k) return;
    float tile[4][4];
    bool nan;
    for (int i = 0; i < 16; i++) {
        const bool inside = row + i / 4 < m && column + i % 4 < k;
        tile[i / 4][i % 4] = inside ? magnitude_of(x + batch * x_batch + (row + i / 4) * x_row
                                                   + (column + i % 4) * x_column) : 0;
    }
    const unsigned best = best_tile_or_nan(tile, scratch + threadIdx.x * kScratch, upper, nan);
    for (int i = 0; i < 16; i++)
        if (row + i / 4 < m && column + i % 4 < k)
            mask[batch * o_batch + (row + i / 4) * o_row + (column + i % 4) * o_column] = best >> i & 1;
}

#if PACK  // of 16-bit elements
#include "square.cuh"

// An atom of packed metadata in shared memory: 16 bytes more after every 128 keep the bytes that
// a warp writes at once in different banks.
struct Atom {
    static constexpr int stride = 144;
    unsigned char bytes[8 * stride];

    // The byte with the codes of (row, column) and the next group; row + 1 is 16 bytes further, up to
    // eight rows.
    unsigned char* at(int row, int column) {
        const int block = (column >> 4 & 1) + 2 * (row >> 4);
        return bytes + stride * block + 16 * (row & 7) + 4 * (column >> 5) + 2 * (row >> 3 & 1) + (column >> 3 & 1);
    }
    uint4 chunk(int i) const { return *(const uint4*)(bytes + stride * (i / 8) + 16 * (i % 8)); }
};

// Writes the first `count` of eight rows of eight bytes.
void store_rows(char* at, long long stride, int count, const unsigned (&words)[8][2]) {
    if (count >= 8) {
#pragma unroll
        for (int i = 0; i < 8; i++, at += stride) *(uint2*)at = make_uint2(words[i][0], words[i][1]);
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++, at += stride)
            if (i < count) *(uint2*)at = make_uint2(words[i][0], words[i][1]);
    }
}

// Where a block of 128 x 128 elements is.
struct Block {
    int top, left, down, across;  // down, across: how many there are
    long long batch;

    Block(int m, int k) {
        across = (k + 127) / 128, down = (m + 127) / 128;
        left = blockIdx.x % across * 128, top = blockIdx.x / across % down * 128;
        batch = blockIdx.x / across / down;
    }
};

// With these bounds the compiler needs no stack on any of the architectures.
#if __CUDA_ARCH__ == 900
#define MASK_BOUNDS __launch_bounds__(256, 3)
#else
#define MASK_BOUNDS __launch_bounds__(256)
#endif
#if SQUARED && __CUDA_ARCH__ == 900
#define PACK_BOUNDS __launch_bounds__(256, 2)
#elif SQUARED || __CUDA_ARCH__ == 800
#define PACK_BOUNDS __launch_bounds__(256)
#else
#define PACK_BOUNDS __launch_bounds__(256, 3)
#endif

#if !SQUARED

extern "C" __global__ void MASK_BOUNDS square_mask(
    const char* x, long long x_batch, long long x_row, char* mask, long long o_batch, long long o_row,
    long long m_, long long k_) {
    __shared__ Tables tables;
    const int m = (int)m_, k = (int)k_;
    const Block block(m, k);
    const Square square(x + block.batch * x_batch, x_row, block.top, block.left, m, k, tables);
    char* out = mask + block.batch * o_batch + square.row * o_row + square.column;
#pragma unroll
    for (int r = 0; r < 8; r++) {
        unsigned kept[2];
        for (int h = 0; h < 2; h++) {
            const unsigned code = tables.codes[square.choices >> 8 * (r / 4 * 2 + h) & 255] >> 8 * (r % 4);
            kept[h] = 1u << 8 * (code & 3) | 1u << 8 * (code >> 2 & 3);
        }
        if (square.row + r >= m || square.column >= k) continue;
        if (square.column + 8 <= k) *(uint2*)(out + r * o_row) = make_uint2(kept[0], kept[1]);
        else *(unsigned*)(out + r * o_row) = kept[0];
    }
}

#endif

// A thread's tiles as they are stored: pairs of its rows and of its columns, and the codes of both, a nibble for each
// row (the lower ones) or column of a tile.
struct PackedSquare {
    unsigned rows[8][2], columns[8][2], codes[4];

    PackedSquare(const Square& square, const Tables& tables) {
#pragma unroll
        for (int t = 0; t < 4; t++) {
            const int down = t / 2, across = t % 2;
            const unsigned choice = square.choices >> 8 * t & 255;
            const uint4 four = tables.select[choice];
            const unsigned select[4] = {four.x, four.y, four.z, four.w};
            codes[t] = tables.codes[choice];
            const unsigned (*tile)[4] = square.words + 4 * down;
            for (int r = 0; r < 4; r++)
                rows[4 * down + r][across] = permute(tile[r][2 * across], tile[r][2 * across + 1], select[r]);
            for (int c = 0; c < 4; c++) {
                const unsigned half = c % 2 ? 0x7632 : 0x5410, w = 2 * across + c / 2;
                columns[4 * across + c][down] = permute(permute(tile[0][w], tile[1][w], half),
                                                        permute(tile[2][w], tile[3][w], half), select[c] >> 16);
            }
        }
    }
    // Writes the codes of eight rows and of eight columns, 16 bytes from one to the next.
    void store_codes(unsigned char* row_codes, unsigned char* column_codes) const {
        constexpr unsigned low = 0x0f0f0f0fu;
        for (int half = 0; half < 2; half++) {
            const unsigned of_rows = (codes[2 * half] & low) | (codes[2 * half + 1] << 4 & ~low);
            const unsigned of_columns = (codes[half] >> 4 & low) | (codes[2 + half] & ~low);
            for (int i = 0; i < 4; i++) {
                row_codes[16 * (4 * half + i)] = (unsigned char)(of_rows >> 8 * i);
                column_codes[16 * (4 * half + i)] = (unsigned char)(of_columns >> 8 * i);
            }
        }
    }
};

// Writes a block's two atoms, one below the other, to column `across` of those of a matrix with `rows` rows.
void store_atoms(const Atom (&atoms)[2], uint4* packed, long long across, int top, int rows) {
    const int atom = threadIdx.x / 64 % 2, chunk = threadIdx.x % 64;
    const long long down = (rows + 63) / 64, at = top / 64 + atom;
    if (at < down) packed[(across * down + at) * 64 + chunk] = atoms[atom].chunk(chunk);
}

extern "C" __global__ void PACK_BOUNDS tile_pack(
    const char* x, long long x_batch, long long x_row, char* values, long long pitch, uint4* packed,
    char* t_values, long long t_pitch, uint4* t_packed, long long m_, long long k_) {
    __shared__ Tables tables;
    __shared__ Atom row_atoms[2], column_atoms[2];  // of x; of its transpose
    const int m = (int)m_, k = (int)k_;
    const Block block(m, k);
    Square square(x + block.batch * x_batch, x_row, block.top, block.left, m, k, tables);
    if (!SQUARED) square.drop_minus_zeros();  // a square has no sign

    const PackedSquare packed_square(square, tables);
    char* at = values + (block.batch * m + square.row) * pitch + square.column;
    char* t_at = t_values + (block.batch * k + square.column) * t_pitch + square.row;
    const int rows = square.whole ? 8 : square.column < pitch ? m - square.row : 0;
    const int columns = square.whole ? 8 : square.row < t_pitch ? k - square.column : 0;
    store_rows(at, pitch, rows, packed_square.rows);
    store_rows(t_at, t_pitch, columns, packed_square.columns);

    const int row = square.row - block.top, column = square.column - block.left;
    packed_square.store_codes(row_atoms[row / 64].at(row % 64, column), column_atoms[column / 64].at(column % 64, row));
    __syncthreads();
    if (threadIdx.x < 128) store_atoms(row_atoms, packed, block.batch * block.across + block.left / 128, block.top, m);
    else store_atoms(column_atoms, t_packed, block.batch * block.down + block.top / 128, block.left, k);
}

#endif
