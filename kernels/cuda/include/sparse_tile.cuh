// sparse_tile: one block's tile of a 2:4 product, from global memory to sums in registers.
//
// Compiled with
//   ELEMENT, B_ELEMENT           types of A and b
//   TILE_M, TILE_N, TILE_K       the tile, and the K extent of one stage, a multiple of 128
//   WARPS_M, WARPS_N, WARPS_K    warps along each axis; those along K take the K atoms of a stage in turn
//   STAGES                       depth of the cp.async ring
//   B_COLUMN                     1: b lies with K contiguous, 0: with n contiguous
//   B_ASYNC                      1: 16-byte copies of b, 0: element by element, any strides
//   WGMMA                        1: warpgroup instructions (sm_90a), 0: mma.sp
//   PROMOTE                      1: instructions sum within a stage only, and stages are added in
//                                float32: warpgroup instructions keep about 14 bits of an fp8
//                                sum (DeepSeek-V3 Technical Report, 2024, section 3.3.2)
//
// A stage holds A [TILE_M][TILE_K/2], metadata [TILE_K/128][TILE_M] x 16 bytes, in the packed
// order, and b [TILE_N][TILE_K] or [TILE_K][TILE_N].  Rows are cut into spans of 128 bytes; all
// rows of a span lie together.  A span is cut into 16-byte chunks, whose place is XORed with the
// row, so that ldmatrix has no bank conflicts.  This is also the 128-byte swizzle of warpgroup
// instructions (the 64- or 32-byte one, if rows have only so many bytes).
// What lies outside the matrices is read as zeros, with any legal codes, so every shape is right.
#pragma once
#include "mma_sp.cuh"
#include "shape.cuh"

constexpr Kind kA = Kind::ELEMENT, kB = Kind::B_ELEMENT;
constexpr int kItem = sizeof(Scalar<kA>::type);
constexpr int kWarps = WARPS_M * WARPS_N * WARPS_K, kThreads = 32 * kWarps;
constexpr int kWarpM = TILE_M / WARPS_M, kWarpN = TILE_N / WARPS_N;
constexpr int kTilesM = kWarpM / 16, kTilesN = kWarpN / 8;  // mma tiles of a warp
constexpr int kAtoms = TILE_K / 128;                        // K atoms of a stage
constexpr int kAtomSteps = 2 * kItem;                       // mma steps of a K atom
constexpr int kRowBytes = TILE_K / 2 * kItem;               // stored bytes of a row in a stage
constexpr int kAChunks = kRowBytes / 16;
constexpr int kBRows = B_COLUMN ? TILE_N : TILE_K;
constexpr int kBChunks = (B_COLUMN ? TILE_K : TILE_N) * kItem / 16;
constexpr int kABytes = TILE_M * kRowBytes;
constexpr int kMetaBytes = kAtoms * TILE_M * 16;
constexpr int kBBytes = kBRows * kBChunks * 16;
constexpr int kStageBytes = kABytes + kMetaBytes + kBBytes;
using Sum = decltype(Scalar<kA>::load({}));                 // float, or int for int8
using Sums = Sum[kTilesM][kTilesN][4];

static_assert(TILE_K % 128 == 0 && kAtoms % WARPS_K == 0);
static_assert(kWarpM % 16 == 0 && kWarpN % (kItem == 1 && !B_COLUMN ? 16 : 8) == 0);
static_assert(kWarpM == 16 || kWarpM % 32 == 0);

constexpr int smaller(int x, int y) { return x < y ? x : y; }

// Byte offset of a 16-byte chunk of row 0, where the XOR changes nothing, in a tile of `rows` rows.
template <int rows, int chunks> int span(int chunk) {
    return chunk / 8 * rows * 128 + chunk % 8 * 16;
}
// Byte offset of a 16-byte chunk, in a tile of `rows` rows of `chunks` chunks, a power of two.  The pattern of the XOR
// repeats itself after eight rows.
template <int rows, int chunks> int place(int row, int chunk) {
    constexpr int line = smaller(chunks, 8), rows_of_line = 8 / line;
    return chunk / 8 * rows * 128 + (row * line + (chunk % 8 ^ (row / rows_of_line & (line - 1)))) * 16;
}

// Calls body(i) for i = thread, thread + threads, ... below `count`.
template <int count, class Body> void deal(Body body) {
#pragma unroll
    for (int round = 0; round < (count + kThreads - 1) / kThreads; ++round) {
        const int i = round * kThreads + threadIdx.x;
        if (count % kThreads == 0 || i < count) body(i);
    }
}

template <int bytes> struct BitsOf { using type = unsigned char; };
template <> struct BitsOf<2> { using type = unsigned short; };
using Bits = BitsOf<kItem>::type;

struct Tile {
    const char *values, *meta, *b;  // of this product of the batch
    int m0, n0;

    Tile(const char* values, const char* meta, const char* b, const Shape& s, int m0, int n0, int batch)
        : values(values + batch * s.a_batch), meta(meta + batch * s.meta_batch),
          b(b + batch * s.b_batch * kItem), m0(m0), n0(n0) {}

    void load_a(unsigned stage, const Shape& s, int k0) const {
        const int row_bytes = s.values_per_row * kItem, first = k0 / 2 * kItem;
        deal<TILE_M * kAChunks>([&](int i) {
            const int row = i / kAChunks, chunk = i % kAChunks, at = first + 16 * chunk;
            const int bytes = m0 + row < s.m ? max(0, min(16, row_bytes - at)) : 0;
            const char* from = values + (bytes ? (m0 + row) * s.a_pitch + at : 0);
            copy_async(stage + place<TILE_M, kAChunks>(row, chunk), from, bytes);
        });
    }

    // Every 16 rows of an atom have 256 consecutive bytes.  Outside the matrix any legal codes will do: those at
    // `meta`.
    void load_meta(unsigned stage, const Shape& s, int k0) const {
        const int atoms_k = (s.k + 127) / 128;
        deal<kAtoms * TILE_M>([&](int i) {
            const int atom = i / TILE_M, row = i % TILE_M, kb = k0 / 128 + atom, mb = (m0 + row) / 64;
            const bool inside = mb < s.meta_atoms_m && kb < atoms_k;
            const long long at = ((long long)kb * s.meta_atoms_m + mb) * 1024 + (m0 + row) % 64 * 16;
            copy_async(stage + kABytes + 16 * i, meta + (inside ? at : 0), 16);
        });
    }

    void load_b(unsigned stage, const Shape& s, int k0) const {
        const int first = (B_COLUMN ? k0 : n0) * kItem, line = (B_COLUMN ? s.k : s.n) * kItem;
        const int row0 = B_COLUMN ? n0 : k0, rows = B_COLUMN ? s.n : s.k;
        const long long pitch = (B_COLUMN ? s.b_column : s.b_row) * kItem;
        deal<kBRows * kBChunks>([&](int i) {
            const int row = i / kBChunks, chunk = i % kBChunks, at = first + 16 * chunk;
            const int bytes = row0 + row < rows ? max(0, min(16, line - at)) : 0;
            const char* from = b + (bytes ? (row0 + row) * pitch + at : 0);
            copy_async(stage + kABytes + kMetaBytes + place<kBRows, kBChunks>(row, chunk), from, bytes);
        });
    }

    // For strides and addresses that 16-byte copies cannot take.
    void load_b_elements(char* stage, const Shape& s, int k0) const {
        constexpr int across = kBChunks * 16 / kItem;
        deal<TILE_N * TILE_K>([&](int i) {
            const int row = i / across, column = i % across;
            const int k = k0 + (B_COLUMN ? column : row), n = n0 + (B_COLUMN ? row : column);
            const Bits* from = reinterpret_cast<const Bits*>(b) + k * s.b_row + n * s.b_column;
            const int at = place<kBRows, kBChunks>(row, column * kItem / 16) + column * kItem % 16;
            *reinterpret_cast<Bits*>(stage + kABytes + kMetaBytes + at) = k < s.k && n < s.n ? *from : Bits(0);
        });
    }

    void load(char* stage, const Shape& s, int k0) const {
        const unsigned address = shared_address(stage);
        load_a(address, s, k0);
        load_meta(address, s, k0);
        if constexpr (B_ASYNC) load_b(address, s, k0);
        else load_b_elements(stage, s, k0);
    }
};

struct Lane {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int g = lane / 4, t = lane % 4;                        // row and column group of a fragment
    int warp_k = warp / (WARPS_M * WARPS_N);
    int row0 = warp % WARPS_M * kWarpM;                    // the warp's part of the tile
    int column0 = warp / WARPS_M % WARPS_N * kWarpN;

    // Place in the tile of sum q of fragment f.
    int row(int tile, int q) const { return row0 + 16 * tile + g + 8 * (q / 2); }
    int column(int f, int q) const {
        if constexpr (kItem == 1 && !B_COLUMN)  // two fragments take the even and the odd columns
            return column0 + 16 * (f / 2) + 4 * t + 2 * (q % 2) + f % 2;
        return column0 + 8 * f + 2 * t + q % 2;
    }
};

// Metadata words of this lane for all steps of one K atom.
inline void load_words(unsigned (&words)[kTilesM][kAtomSteps], unsigned meta, const Lane& w) {
    if constexpr (kItem == 2) {
        // Lanes with t < 2 hold the words of one m16 tile, the others those of the next:
        // selector 0, then 1.
#pragma unroll
        for (int tile = 0; tile < kTilesM; tile += 2) {
            const int next = kTilesM > 1 ? 256 * (w.t / 2) : 0;
            const uint4 x = load_shared_16(meta + 16 * (w.row0 + 16 * tile) + 16 * w.g + 128 * (w.t % 2) + next);
            words[tile][0] = x.x, words[tile][1] = x.y, words[tile][2] = x.z, words[tile][3] = x.w;
        }
    } else {
#pragma unroll
        for (int tile = 0; tile < kTilesM; ++tile)
#pragma unroll
            for (int step = 0; step < kAtomSteps; ++step)
                words[tile][step] = load_shared_4(
                    meta + 16 * (w.row0 + 16 * tile + w.g + 8 * (w.t % 2)) + 8 * step + 4 * (w.t / 2));
    }
}

// Fragments of b for one step: 64 bytes of K by the warp's columns.
inline void load_b_fragments(unsigned (&b)[kTilesN][4], unsigned tile, int step, const Lane& w) {
    const int matrix = w.lane / 8, line = w.lane % 8;
    if constexpr (B_COLUMN) {
#pragma unroll
        for (int f = 0; f < kTilesN; ++f)
            load_matrices(b[f], tile + place<kBRows, kBChunks>(w.column0 + 8 * f + line, 4 * step + matrix));
    } else if constexpr (kItem == 2) {
#pragma unroll
        for (int f = 0; f < kTilesN; ++f)
            load_matrices_transposed(
                b[f], tile + place<kBRows, kBChunks>(32 * step + 8 * matrix + line, w.column0 / 8 + f));
    } else {
        // 8-bit elements: a transposing load moves pairs of columns.  Two matrices, of rows
        // 0, 1, 4, 5, 8, 9, 12, 13 and of these + 2, give a lane four k of two columns; a byte
        // permutation separates the even column from the odd one.
#pragma unroll
        for (int f = 0; f < kTilesN; f += 2)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int k = 32 * half + 16 * (matrix / 2) + 4 * (line / 2) + line % 2 + 2 * (matrix % 2);
                unsigned x[4];
                load_matrices_transposed(x, tile + place<kBRows, kBChunks>(64 * step + k, w.column0 / 16 + f / 2));
                b[f][2 * half] = __byte_perm(x[0], x[1], 0x6420);
                b[f][2 * half + 1] = __byte_perm(x[2], x[3], 0x6420);
                b[f + 1][2 * half] = __byte_perm(x[0], x[1], 0x7531);
                b[f + 1][2 * half + 1] = __byte_perm(x[2], x[3], 0x7531);
            }
    }
}

inline void multiply_stage(Sums& sums, unsigned stage, const Lane& w) {
#pragma unroll
    for (int part = 0; part < kAtoms / WARPS_K; ++part) {
        const int atom = part * WARPS_K + w.warp_k;
        unsigned words[kTilesM][kAtomSteps];
        load_words(words, stage + kABytes + atom * TILE_M * 16, w);
#pragma unroll
        for (int i = 0; i < kAtomSteps; ++i) {
            const int step = atom * kAtomSteps + i;
            unsigned b[kTilesN][4];
            load_b_fragments(b, stage + kABytes + kMetaBytes, step, w);
#pragma unroll
            for (int tile = 0; tile < kTilesM; ++tile) {
                unsigned a[4];
                const int row = w.row0 + 16 * tile + w.lane % 16;
                load_matrices(a, stage + place<TILE_M, kAChunks>(row, 2 * step + w.lane / 16));
#pragma unroll
                for (int f = 0; f < kTilesN; ++f) {
                    if (kItem == 2 && tile % 2) mma_sp<kA, kB, kItem == 2>(sums[tile][f], a, b[f], words[tile - 1][i]);
                    else mma_sp<kA, kB, 0>(sums[tile][f], a, b[f], words[tile][i]);
                }
            }
        }
    }
}

#if WGMMA
#include "wgmma_tile.cuh"
#endif

inline void add(Sums& sums, const Sums& products) {
#pragma unroll
    for (int tile = 0; tile < kTilesM; ++tile)
#pragma unroll
        for (int f = 0; f < kTilesN; ++f)
#pragma unroll
            for (int q = 0; q < 4; ++q) sums[tile][f][q] += products[tile][f][q];
}

// Sums over the stages [first, last) of K, through a ring that works as that of copy_ring.cuh; the shared memory is
// free for other use afterwards.  With WGMMA every thread makes its own copies visible to the tensor cores before the
// barrier; the next stage is requested while the instructions run.
inline void run_stages(Sums& sums, const Tile& tile, const Shape& s, char* ring, int first, int last) {
    const Lane w;
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) {
        if (first + i < last) tile.load(ring + i * kStageBytes, s, (first + i) * TILE_K);
        commit_copies();
    }
    int slot = 0, free_slot = STAGES - 1;
    for (int i = first; i < last; ++i) {
        const unsigned stage = shared_address(ring + slot * kStageBytes);
        const auto refill = [&] {
            if (i + STAGES - 1 < last)
                tile.load(ring + free_slot * kStageBytes, s, (i + STAGES - 1) * TILE_K);
            commit_copies();
        };
        wait_copies<STAGES - 2>();
#if WGMMA
        async_proxy_fence();
        __syncthreads();
        unsigned words[kAtoms / WARPS_K][1][kAtomSteps];
        Sums products = {};
        start_stage(PROMOTE ? products : sums, words, stage, w);
        refill();
        wgmma_wait();
        hold(words);
        if constexpr (PROMOTE) add(sums, products);
#else
        __syncthreads();
        refill();
        multiply_stage(sums, stage, w);
#endif
        free_slot = slot;
        slot = slot + 1 == STAGES ? 0 : slot + 1;
    }
    wait_copies<0>();
    __syncthreads();
}
