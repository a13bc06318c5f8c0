// transposable: the best 4x4 masks of a matrix, and both its orientations packed in one pass.
//
//   tile_mask   x [batch, m, k] of any strides -> mask bool [batch, m, k], any strides.
//   tile_pack   x [batch, m, k], 16-bit elements, contiguous rows on 16-byte boundaries,
//               m % 4 == k % 4 == 0 -> values and packed metadata of x and of its transpose:
//                 values   [batch, m, k/2],  packed   [batch, ceil(k/128), ceil(m/64), 1024]
//                 t_values [batch, k, m/2],  t_packed [batch, ceil(m/128), ceil(k/64), 1024]
//               Rows of values are a multiple of 16 bytes apart.
//
// A block of tile_pack has 64 x 128 elements, a thread 4 x 16 of them, four tiles.  Its rows of
// x are complete; what belongs to the transpose goes through shared memory, rows exchanged and
// 16-byte chunks rotated by the thread's place so that no two threads meet in a bank.
//
// Meaning: reference.transposable_mask, reference.compress.  Launcher: kernels/transposable.py.
#include "best_tile.cuh"
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

#if SHARED_BYTES  // tile_pack is asked for

// Two magnitudes of a word as floats.
void magnitudes(unsigned word, float& low, float& high) {
    word &= 0x7fff7fff;
    if constexpr (kind == Kind::bfloat16) {
        low = __int_as_float(word << 16), high = __int_as_float(word & 0xffff0000u);
    } else {
        __half_raw half;
        half.x = (unsigned short)word, low = __half2float(__half(half));
        half.x = (unsigned short)(word >> 16), high = __half2float(__half(half));
    }
}

struct Shared {
    UpperRows upper[36];
    uint2 choice[16];                  // of a row's mask: permute selector, code
    alignas(16) float scratch[128 * kScratch];
    alignas(16) unsigned pairs[128 * 16];  // of the transpose: stored pair of (row, tile row)
    unsigned char t_codes[128 * 16];       // its code
    unsigned short codes[64 * 10];         // of x: four codes of (row, thread of the row)

    // Where (row of the transpose, tile row) is in `pairs` and `t_codes`.
    static int place(int t_row, int tile_row) {
        const int segment = t_row / 16;
        return 16 * (t_row ^ (segment & 1)) + (tile_row + 4 * (segment >> 1)) % 16;
    }

    void fill() {
        const int i = threadIdx.x;
        if (i < 36) upper[i].find(i);
        if (i < 16) {  // only masks of two, and 0 outside the matrix, are asked for
            const int first = i & 1 ? 0 : i & 2 ? 1 : 2, second = i & 8 ? 3 : i & 4 ? 2 : 1;
            choice[i] = i == 0 ? make_uint2(0x3210, 4)
                               : make_uint2(0x1010 + first * 0x22 + second * 0x2200, first | second << 2);
        }
    }
};

static_assert(sizeof(Shared) == SHARED_BYTES);

// Bits 0, 4, 8, 12 side by side; the products of the four shifts share no bit.
unsigned column_bits(unsigned mask) { return (mask & 0x1111u) * 0x249u >> 9 & 15u; }

// -0.0 becomes +0.0.  Adding zero does that in one instruction, but would change NaNs.
unsigned without_minus_zero(unsigned word, bool nan) {
    if (nan) return word & fill<2>(nonzero<kind>(word & 0x7fff7fffu));
    using Pair = conditional<kind == Kind::bfloat16, __nv_bfloat162, __half2>;
    const Pair sum = __hadd2(reinterpret_cast<const Pair&>(word), Pair{});
    return reinterpret_cast<const unsigned&>(sum);
}

// Five blocks share a multiprocessor where the compiler then still needs no stack.
#if __CUDA_ARCH__ == 900
#define PACK_BLOCKS 5
#else
#define PACK_BLOCKS 3
#endif

extern "C" __global__ void __launch_bounds__(128, PACK_BLOCKS) tile_pack(
    const char* x, long long x_batch, long long x_row, char* values, long long pitch, unsigned* packed,
    char* t_values, long long t_pitch, unsigned* t_packed, long long m_, long long k_) {
    extern __shared__ uint4 memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const int m = (int)m_, k = (int)k_, k_blocks = (k + 127) / 128;
    const int m_blocks = (m + 127) / 128 * 2;  // both halves of a metadata atom of the transpose
    const int left = blockIdx.x % k_blocks * 128, top = blockIdx.x / k_blocks % m_blocks * 64;
    const long long batch = blockIdx.x / k_blocks / m_blocks;
    const int segment = threadIdx.x & 7, tile_row = threadIdx.x >> 3;
    const int row = top + 4 * tile_row, column = left + 16 * segment;

    unsigned in[4][8], out[4][4], codes[4] = {};
    for (int r = 0; r < 4; r++)
        load_elements<2, 16>(x + batch * x_batch + (row + r) * x_row + column * 2, 2,
                             row < m ? min(max(k - column, 0), 16) : 0, in[r]);
    shared.fill();
    __syncthreads();

#pragma unroll
    for (int j = 0; j < 4; j++) {
        float tile[4][4];
        bool nan;
        for (int r = 0; r < 4; r++)
            for (int h = 0; h < 2; h++) magnitudes(in[r][2 * j + h], tile[r][2 * h], tile[r][2 * h + 1]);
        unsigned mask = best_tile_or_nan(tile, shared.scratch + threadIdx.x * kScratch, shared.upper, nan);
        if (row >= m || column + 4 * j >= k) mask = 0;
        for (int r = 0; r < 4; r++) {
            for (int h = 0; h < 2; h++) in[r][2 * j + h] = without_minus_zero(in[r][2 * j + h], nan);
            const uint2 choice = shared.choice[mask >> 4 * r & 15];
            out[r][j] = permute(in[r][2 * j], in[r][2 * j + 1], choice.x);
            codes[r] |= choice.y << 4 * j;
        }
        for (int c = 0; c < 4; c++) {
            const unsigned half = c % 2 ? 0x7632 : 0x5410, word = 2 * j + c / 2;
            const uint2 choice = shared.choice[column_bits(mask >> c)];
            const int at = Shared::place(16 * segment + 4 * j + c, tile_row);
            shared.pairs[at] = permute(permute(in[0][word], in[1][word], half),
                                       permute(in[2][word], in[3][word], half), choice.x);
            shared.t_codes[at] = (unsigned char)choice.y;
        }
    }
    for (int r = 0; r < 4; r++) {
        shared.codes[10 * (4 * tile_row + r) + segment] = (unsigned short)codes[r];
        if (row < m)
            store_values<2>(values + (batch * m + row + r) * pitch, pitch, column, out[r]);
    }
    __syncthreads();

    for (int i = threadIdx.x; i < 128 * 4; i += 128) {
        const int t_row = i / 4, chunk = i % 4;
        const long long at = (long long)top + 16 * chunk;  // in bytes: two for each pair of rows
        if (left + t_row < k && at < t_pitch)
            *(uint4*)(t_values + (batch * k + left + t_row) * t_pitch + at) =
                *(const uint4*)(shared.pairs + Shared::place(t_row, 4 * chunk));
    }
    const int m_atoms = (m + 63) / 64, k_atoms = (k + 63) / 64;  // rows of x, rows of the transpose
    for (int index = threadIdx.x; index < 256 && top / 64 < m_atoms; index += 128) {
        const int quarter = index % 4 * 2 + index / 32 % 2, at = index / 64 * 16 + index / 4 % 8;
        packed[((batch * k_blocks + left / 128) * m_atoms + top / 64) * 256 + index] =
            shared.codes[10 * at + quarter] | shared.codes[10 * (at + 8) + quarter] << 16;
    }
    for (int i = threadIdx.x; i < 256; i += 128) {  // this block's half of two atoms
        const int atom = i / 128, index = i % 128 / 2 * 4 + top / 64 % 2 * 2 + i % 2;
        const int t_row = 64 * atom + index / 64 * 16 + index / 4 % 8;
        const int tile = 4 * (i % 2 * 2 + index / 32 % 2);  // the first of four tile rows
        if (left / 64 + atom >= k_atoms) continue;
        unsigned word = 0;
        for (int half = 0; half < 2; half++) {
            unsigned four = *(const unsigned*)(shared.t_codes + Shared::place(t_row + 8 * half, tile));
            four |= four >> 4;
            word |= ((four & 0xff) | (four >> 8 & 0xff00)) << 16 * half;
        }
        t_packed[((batch * (m_blocks / 2) + top / 128) * k_atoms + left / 64 + atom) * 256 + index] = word;
    }
}

#endif
