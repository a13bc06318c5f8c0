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

using Pair = conditional<kind == Kind::bfloat16, __nv_bfloat162, __half2>;  // of a word
Pair pair_of(unsigned word) { return reinterpret_cast<const Pair&>(word); }
unsigned word_of(Pair pair) { return reinterpret_cast<const unsigned&>(pair); }

// Both elements of a word as they are packed.  The square of a 16-bit element is exact in float32, or too small for
// bfloat16, so one 16-bit multiplication rounds it as float32 arithmetic would.
unsigned activated(unsigned word) {
    if (!SQUARED) return word;
    const Pair positive = __hmax2_nan(pair_of(word), Pair{});
    return word_of(__hmul2(positive, positive));
}

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

constexpr int kWarps = 8;  // of a block

// What the warps of a block choose with, in shared memory: the tables of fixed_tile.cuh, and tiles that wait to be
// searched, one of each lane at most.
struct Tables {
    uint4 select[kChoices + 1];
    unsigned codes[kChoices + 1], pairs[96];
    unsigned char legal[96];
    alignas(8) unsigned short waiting[kWarps][32][16];

    void fill() {
        for (int i = threadIdx.x; i <= kChoices; i += blockDim.x) {
            select[i] = *(const uint4*)kTileChoices.select[i];
            codes[i] = kTileChoices.codes[i];
            if (i < 96) legal[i] = kTileChoices.legal[i], pairs[i] = kTileChoices.pairs[i];
        }
    }
};

// A thread's elements, four tiles: left above, right above, left below, right below.
struct Square {
    int row, column;  // of its corner in the matrix
    bool whole;       // all of it is inside
    unsigned words[8][4];
    unsigned choices;   // a byte for each tile
    unsigned searched;  // a bit for each tile that was searched in float32, because integers could not

    // Reads its rows of the matrix at `x`, and chooses the masks.  The tables are filled while the loads are in flight.
    Square(const char* x, long long x_row, int top, int left, int m, int k, Tables& tables) {
        const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
        row = top + 32 * (warp >> 1) + 8 * (lane >> 3), column = left + 64 * (warp & 1) + 8 * (lane & 7);
        whole = row + 8 <= m && column + 8 <= k;
        load(x + row * x_row + column * 2ll, x_row, m - row, k - column);
        tables.fill();
        __syncthreads();

        choices = searched = 0;
#pragma unroll
        for (int t = 0; t < 4; t++) {
            const int r = t / 2 * 4, w = t % 2 * 2;
            const unsigned tile[4][2] = {{words[r][w], words[r][w + 1]}, {words[r + 1][w], words[r + 1][w + 1]},
                                         {words[r + 2][w], words[r + 2][w + 1]},
                                         {words[r + 3][w], words[r + 3][w + 1]}};
            bool sure;
            const unsigned choice = choose_tile<kind>(tile, sure);
            choices |= (row + r < m && column + 2 * w < k ? choice : kOutside) << 8 * t;
            searched |= (unsigned)!sure << t;
        }
        if (__any_sync(~0u, searched)) {
            const JointSearch<kind> search(tables.pairs, tables.legal);
#pragma unroll
            for (int t = 0; t < 4; t++) search_jointly(t, search, tables.waiting[warp]);
        }
    }

    // The whole warp searches tile t of those lanes that are not sure of it, one after the other.
    void search_jointly(int t, const JointSearch<kind>& search, unsigned short (&waiting)[32][16]) {
        const bool mine = searched >> t & 1;
        const unsigned lanes = __ballot_sync(~0u, mine);
        const int place = __popc(lanes & (1u << (threadIdx.x & 31)) - 1);
        if (mine) {
            for (int r = 0; r < 4; r++) {
                const unsigned* word = words[t / 2 * 4 + r] + t % 2 * 2;
                *(uint2*)&waiting[place][4 * r] = make_uint2(word[0], word[1]);
            }
            choices &= ~(255u << 8 * t);
        }
        __syncwarp();
        for (int i = 0; i < __popc(lanes); i++) {
            const unsigned choice = search.choice(waiting[i]);
            if (mine && i == place) choices |= choice << 8 * t;
        }
        __syncwarp();
    }

    // `rows` and `columns`, multiples of four, exist.
    void load(const char* at, long long row_stride, int rows, int columns) {
        uint4 eight[8] = {};
        if (whole) {
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
        for (int r = 0; r < 8; r++) {
            words[r][0] = activated(eight[r].x), words[r][1] = activated(eight[r].y);
            words[r][2] = activated(eight[r].z), words[r][3] = activated(eight[r].w);
        }
    }

    // -0.0 becomes +0.0.  Adding zero does that in one instruction, but would change NaNs; a tile with a NaN is never
    // searched by integers.
    void drop_minus_zeros() {
        if (searched) {
            for (int i = 0; i < 32; i++) {
                unsigned& word = words[i / 4][i % 4];
                word &= fill<2>(nonzero<kind>(word & 0x7fff7fffu));
            }
        } else {
            for (int i = 0; i < 32; i++) {
                unsigned& word = words[i / 4][i % 4];
                word = word_of(__hadd2(pair_of(word), Pair{}));
            }
        }
    }
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

extern "C" __global__ void PACK_BOUNDS tile_pack(
    const char* x, long long x_batch, long long x_row, char* values, long long pitch, uint4* packed,
    char* t_values, long long t_pitch, uint4* t_packed, long long m_, long long k_) {
    __shared__ Tables tables;
    __shared__ Atom row_atoms[2], column_atoms[2];  // of x; of its transpose
    const int m = (int)m_, k = (int)k_;
    const Block block(m, k);
    Square square(x + block.batch * x_batch, x_row, block.top, block.left, m, k, tables);
    if (!SQUARED) square.drop_minus_zeros();  // a square has no sign

    unsigned out[8][2], t_out[8][2], codes[4];
#pragma unroll
    for (int t = 0; t < 4; t++) {
        const int down = t / 2, across = t % 2;
        const unsigned choice = square.choices >> 8 * t & 255;
        const uint4 four = tables.select[choice];
        const unsigned select[4] = {four.x, four.y, four.z, four.w};
        codes[t] = tables.codes[choice];
        const unsigned (*tile)[4] = square.words + 4 * down;
        for (int r = 0; r < 4; r++)
            out[4 * down + r][across] = permute(tile[r][2 * across], tile[r][2 * across + 1], select[r]);
        for (int c = 0; c < 4; c++) {
            const unsigned half = c % 2 ? 0x7632 : 0x5410, w = 2 * across + c / 2;
            t_out[4 * across + c][down] = permute(permute(tile[0][w], tile[1][w], half),
                                                  permute(tile[2][w], tile[3][w], half), select[c] >> 16);
        }
    }
    char* at = values + (block.batch * m + square.row) * pitch + square.column;
    char* t_at = t_values + (block.batch * k + square.column) * t_pitch + square.row;
    const int rows = square.whole ? 8 : square.column < pitch ? m - square.row : 0;
    const int columns = square.whole ? 8 : square.row < t_pitch ? k - square.column : 0;
    store_rows(at, pitch, rows, out);
    store_rows(t_at, t_pitch, columns, t_out);

    constexpr unsigned low = 0x0f0f0f0fu;
    const int row = square.row - block.top, column = square.column - block.left;
    unsigned char* code_at = row_atoms[row / 64].at(row % 64, column);
    unsigned char* t_code_at = column_atoms[column / 64].at(column % 64, row);
    for (int half = 0; half < 2; half++) {
        const unsigned rows = (codes[2 * half] & low) | (codes[2 * half + 1] << 4 & ~low);
        const unsigned columns = (codes[half] >> 4 & low) | (codes[2 + half] & ~low);
        for (int i = 0; i < 4; i++) {
            code_at[16 * (4 * half + i)] = (unsigned char)(rows >> 8 * i);
            t_code_at[16 * (4 * half + i)] = (unsigned char)(columns >> 8 * i);
        }
    }
    __syncthreads();
    const int atom = threadIdx.x / 64 % 2, chunk = threadIdx.x % 64;
    if (threadIdx.x < 128) {
        const long long m_atoms = (m + 63) / 64, m_atom = block.top / 64 + atom;
        if (m_atom < m_atoms)
            packed[((block.batch * block.across + block.left / 128) * m_atoms + m_atom) * 64 + chunk] =
                row_atoms[atom].chunk(chunk);
    } else {
        const long long k_atoms = (k + 63) / 64, k_atom = block.left / 64 + atom;
        if (k_atom < k_atoms)
            t_packed[((block.batch * block.down + block.top / 128) * k_atoms + k_atom) * 64 + chunk] =
                column_atoms[atom].chunk(chunk);
    }
}

#endif
