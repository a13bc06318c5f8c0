// decode_rows: a b of contiguous rows for sparse_decode.cu, in stages as in memory: [TILE_K] rows of TILE_N columns.
//
// So a bulk copy brings all rows of a stage.  As boxes of the TMA, which could swizzle them, they take several times as
// long: a row of 16 bytes costs as much as one of 128.  Eight rows that a matrix load reads lie in all banks if they
// have 16 bytes, and in half of them if they have 32.
#pragma once

constexpr int kRowOfB = TILE_N * kItem;  // bytes

// Rows that lie behind the last one of b: they hold what was in the stage before, such as an infinity.
inline void clear_rows(char* stage, int rows) {
    auto* const from = reinterpret_cast<uint4*>(stage + kBAt + rows * kRowOfB);
    for (int i = threadIdx.x; i < (TILE_K - rows) * (kRowOfB / 16); i += kThreads) from[i] = {};
    hopper::async_proxy_fence();  // the next bulk copy into this stage comes after these stores
    hopper::group_sync(1, kThreads);
}

// As load_b_fragments of sparse_tile.cuh.
inline void load_row_fragments(unsigned (&b)[kTilesN][4], unsigned rows, int step, const Lane& w) {
    const int matrix = w.lane / 8, line = w.lane % 8;
    if constexpr (kItem == 2) {
#pragma unroll
        for (int f = 0; f < kTilesN; ++f)
            load_matrices_transposed(b[f], rows + (32 * step + 8 * matrix + line) * kRowOfB + w.column0 * 2 + 16 * f);
    } else {
#pragma unroll
        for (int f = 0; f < kTilesN; f += 2)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int k = 32 * half + 16 * (matrix / 2) + 4 * (line / 2) + line % 2 + 2 * (matrix % 2);
                unsigned x[4];
                load_matrices_transposed(x, rows + (64 * step + k) * kRowOfB + w.column0 + 8 * f);
                b[f][2 * half] = __byte_perm(x[0], x[1], 0x6420);
                b[f][2 * half + 1] = __byte_perm(x[2], x[3], 0x6420);
                b[f + 1][2 * half] = __byte_perm(x[0], x[1], 0x7531);
                b[f + 1][2 * half + 1] = __byte_perm(x[2], x[3], 0x7531);
            }
    }
}

// As multiply_stage of sparse_tile.cuh.
inline void multiply_rows(Sums& sums, unsigned stage, const Lane& w) {
#pragma unroll
    for (int part = 0; part < kAtoms / WARPS_K; ++part) {
        const int atom = part * WARPS_K + w.warp_k;
        unsigned words[kTilesM][kAtomSteps];
        load_words(words, stage + kABytes + atom * TILE_M * 16, w);
#pragma unroll
        for (int i = 0; i < kAtomSteps; ++i) {
            const int step = atom * kAtomSteps + i;
            unsigned b[kTilesN][4];
            load_row_fragments(b, stage + kBAt, step, w);
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
