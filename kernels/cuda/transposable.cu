// transposable: the best 4x4 masks of a matrix, and both its orientations packed in one pass.
//
//   tile_mask   x [batch, m, k] of any strides -> mask bool [batch, m, k], any strides.
//   tile_pack   x [batch, m, k], 16-bit elements, contiguous rows on 16-byte boundaries,
//               m % 4 == k % 4 == 0 -> values and packed metadata of x and of its transpose:
//                 values   [batch, m, k/2],  packed   [batch, ceil(k/128), ceil(m/64), 1024]
//                 t_values [batch, k, m/2],  t_packed [batch, ceil(m/128), ceil(k/64), 1024]
//               Rows of values are a multiple of 16 bytes apart.
//
// A thread of tile_pack has 8 x 8 elements, four tiles, so it writes eight bytes of each of its
// rows and columns; a warp has 32 x 64, a block 128 x 128: whole atoms of both metadata, which
// are gathered in shared memory.
//
// Meaning: reference.transposable_mask, reference.compress.  Launcher: kernels/transposable.py.
#include "fixed_tile.cuh"
#include "piece.cuh"

constexpr Kind kind = Kind::ELEMENT;

float magnitude_of(const char* at) {
    using S = Scalar<kind>;
    const float x = (float)S::load(*(const typename S::type*)at);
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

// An atom of packed metadata in shared memory: 16 bytes more after every 128 keep the bytes that
// a warp writes at once in different banks.
struct Atom {
    static constexpr int stride = 144;
    unsigned char bytes[8 * stride];

    // The byte with the codes of (row, column) and the next group; row + 1 is 16 bytes further, up to eight rows.
    unsigned char* at(int row, int column) {
        const int block = (column >> 4 & 1) + 2 * (row >> 4);
        return bytes + stride * block + 16 * (row & 7) + 4 * (column >> 5) + 2 * (row >> 3 & 1) + (column >> 3 & 1);
    }
    uint4 chunk(int i) const { return *(const uint4*)(bytes + stride * (i / 8) + 16 * (i % 8)); }
};

struct Shared {
    uint4 select[kChoices + 1];
    unsigned codes[kChoices + 1];
    unsigned char legal[96];
    alignas(16) Atom rows[2], columns[2];  // of x; of its transpose

    void fill() {
        for (int i = threadIdx.x; i <= kChoices; i += blockDim.x) {
            select[i] = *(const uint4*)kTileChoices.select[i];
            codes[i] = kTileChoices.codes[i];
            if (i < 96) legal[i] = kTileChoices.legal[i];
        }
    }
};

// -0.0 becomes +0.0.  Adding zero does that in one instruction, but would change NaNs.
unsigned without_minus_zero(unsigned word, bool nan) {
    if (nan) return word & fill<2>(nonzero<kind>(word & 0x7fff7fffu));
    using Pair = conditional<kind == Kind::bfloat16, __nv_bfloat162, __half2>;
    const Pair sum = __hadd2(reinterpret_cast<const Pair&>(word), Pair{});
    return reinterpret_cast<const unsigned&>(sum);
}

// Rows of eight elements, of which `rows` and `columns`, multiples of four, exist.
void load_square(const char* at, long long row_stride, int rows, int columns, unsigned (&words)[8][4]) {
    uint4 eight[8] = {};
    if (rows >= 8 && columns >= 8) {
#pragma unroll
        for (int r = 0; r < 8; r++) eight[r] = __ldg((const uint4*)(at + r * row_stride));
    } else {
        for (int r = 0; r < 8; r++) {
            if (r >= rows || columns <= 0) continue;
            const uint2 *source = (const uint2*)(at + r * row_stride), four = __ldg(source);
            const uint2 next = columns < 8 ? uint2{} : __ldg(source + 1);
            eight[r] = make_uint4(four.x, four.y, next.x, next.y);
        }
    }
    for (int r = 0; r < 8; r++)
        words[r][0] = eight[r].x, words[r][1] = eight[r].y, words[r][2] = eight[r].z, words[r][3] = eight[r].w;
}

// Where a thread's elements are.
struct Corner {
    int row, column;  // in the block

    explicit Corner(int thread) {
        const int lane = thread & 31, warp = thread >> 5;
        row = 32 * (warp >> 1) + 8 * (lane >> 3), column = 64 * (warp & 1) + 8 * (lane & 7);
    }
};

#ifndef PACK_BLOCKS
#define PACK_BLOCKS 3
#endif

extern "C" __global__ void __launch_bounds__(256, PACK_BLOCKS) tile_pack(
    const char* x, long long x_batch, long long x_row, char* values, long long pitch, uint4* packed,
    char* t_values, long long t_pitch, uint4* t_packed, long long m_, long long k_) {
    __shared__ Shared shared;
    const int m = (int)m_, k = (int)k_, k_blocks = (k + 127) / 128, m_blocks = (m + 127) / 128;
    const int left = blockIdx.x % k_blocks * 128, top = blockIdx.x / k_blocks % m_blocks * 128;
    const long long batch = blockIdx.x / k_blocks / m_blocks;
    const Corner corner(threadIdx.x);
    const int row = top + corner.row, column = left + corner.column;
    x += batch * x_batch;

    unsigned in[8][4];
    load_square(x + row * x_row + column * 2ll, x_row, m - row, k - column, in);
    shared.fill();
    __syncthreads();

    // Tiles: left above, right above, left below, right below; a byte of `choices` each.
    unsigned choices = 0, unsure = 0;
#pragma unroll
    for (int t = 0; t < 4; t++) {
        const int r = t / 2 * 4, w = t % 2 * 2;
        const unsigned tile[4][2] = {{in[r][w], in[r][w + 1]}, {in[r + 1][w], in[r + 1][w + 1]},
                                     {in[r + 2][w], in[r + 2][w + 1]}, {in[r + 3][w], in[r + 3][w + 1]}};
        bool sure;
        const bool inside = row + r < m && column + 2 * w < k;
        const unsigned choice = choose_tile<kind>(tile, sure);
        choices |= (inside ? choice : kOutside) << 8 * t;
        unsure |= (unsigned)!sure << t;
    }
    for (unsigned waiting = __ballot_sync(~0u, unsure != 0); waiting; waiting &= waiting - 1) {
        const int owner = __ffs(waiting) - 1;
        const Corner its((threadIdx.x & ~31) + owner);
        for (unsigned tiles = __shfl_sync(~0u, unsure, owner); tiles; tiles &= tiles - 1) {
            const int t = __ffs(tiles) - 1, r = top + its.row + t / 2 * 4, c = left + its.column + t % 2 * 4;
            const unsigned choice = choose_tile_together<kind>(x + r * x_row + c * 2ll, x_row, shared.codes, shared.legal);
            if ((threadIdx.x & 31) == owner) choices = (choices & ~(255u << 8 * t)) | choice << 8 * t;
        }
    }

    unsigned out[8][2], t_out[8][2], codes[4];
#pragma unroll
    for (int t = 0; t < 4; t++) {
        const int down = t / 2, across = t % 2;
        const unsigned choice = choices >> 8 * t & 255;
        const uint4 four = shared.select[choice];
        const unsigned select[4] = {four.x, four.y, four.z, four.w};
        codes[t] = shared.codes[choice];
        unsigned (*tile)[4] = in + 4 * down;
        for (int r = 0; r < 4; r++) {
            for (int w = 2 * across; w < 2 * across + 2; w++)
                tile[r][w] = without_minus_zero(tile[r][w], unsure >> t & 1);
            out[4 * down + r][across] = permute(tile[r][2 * across], tile[r][2 * across + 1], select[r]);
        }
        for (int c = 0; c < 4; c++) {
            const unsigned half = c % 2 ? 0x7632 : 0x5410, w = 2 * across + c / 2;
            t_out[4 * across + c][down] = permute(permute(tile[0][w], tile[1][w], half),
                                                  permute(tile[2][w], tile[3][w], half), select[c] >> 16);
        }
    }
    for (int i = 0; i < 8; i++) {
        if (row + i < m && column < pitch)
            *(uint2*)(values + (batch * m + row + i) * pitch + column) = make_uint2(out[i][0], out[i][1]);
        if (column + i < k && row < t_pitch)
            *(uint2*)(t_values + (batch * k + column + i) * t_pitch + row) = make_uint2(t_out[i][0], t_out[i][1]);
    }

    constexpr unsigned low = 0x0f0f0f0fu;
    unsigned char* at = shared.rows[corner.row / 64].at(corner.row % 64, corner.column);
    unsigned char* t_at = shared.columns[corner.column / 64].at(corner.column % 64, corner.row);
    for (int half = 0; half < 2; half++) {
        const unsigned rows = (codes[2 * half] & low) | (codes[2 * half + 1] << 4 & ~low);
        const unsigned columns = (codes[half] >> 4 & low) | (codes[2 + half] & ~low);
        for (int i = 0; i < 4; i++) {
            at[16 * (4 * half + i)] = (unsigned char)(rows >> 8 * i);
            t_at[16 * (4 * half + i)] = (unsigned char)(columns >> 8 * i);
        }
    }
    __syncthreads();
    const int atom = threadIdx.x / 64 % 2, chunk = threadIdx.x % 64;
    if (threadIdx.x < 128) {
        const long long m_atoms = (m + 63) / 64, m_atom = top / 64 + atom;
        if (m_atom < m_atoms)
            packed[((batch * k_blocks + left / 128) * m_atoms + m_atom) * 64 + chunk] = shared.rows[atom].chunk(chunk);
    } else {
        const long long k_atoms = (k + 63) / 64, k_atom = left / 64 + atom;
        if (k_atom < k_atoms)
            t_packed[((batch * m_blocks + top / 128) * k_atoms + k_atom) * 64 + chunk] = shared.columns[atom].chunk(chunk);
    }
}

#endif
