// brick_multiply: products of the bricks of a stage with b, by mma.sp or by warpgroups.
//
// Integers become elements of the type of b in registers, exactly.  A K atom, 128 columns, is summed by itself; its sums
// are multiplied by the factors of the rows and added up in float32.  So elements need not be rounded as a dequantised
// matrix is.  Warps multiply by mma.sp or, with WGMMA 1, warpgroups by instructions that read b once for 64 rows
// (wgmma_registers.cuh).
//
// Stages lie as brick_stages.cuh says.  Included behind decode_blocks.cuh, whose multiply() this is; compiled with the
// macros of sparse_tile, and B_COLUMN 1 if WGMMA is.
#pragma once
#include "brick_stages.cuh"
#if WGMMA
#include "wgmma_registers.cuh"
#endif

// The words of one lane of the stored elements of a brick, of rows g and g + 8.
struct Elements {
    unsigned upper[kChunks], lower[kChunks];

    void load(unsigned brick, const Lane& w) {
#pragma unroll
        for (int chunk = 0; chunk < kChunks; chunk += 2) {
            unsigned x[4];
            load_matrices(x, brick + chunk * kChunkBytes + 16 * w.lane);
            upper[chunk] = x[0], lower[chunk] = x[1], upper[chunk + 1] = x[2], lower[chunk + 1] = x[3];
        }
    }
    void fragment(unsigned (&a)[4], int step) const {
        const unsigned of_upper = upper[step / kChunkSteps], of_lower = lower[step / kChunkSteps];
        if (step % kChunkSteps == 0) widen<0>(a, of_upper, of_lower);
        else widen<kChunkSteps - 1>(a, of_upper, of_lower);
    }

  private:
    template <int step> static void widen(unsigned (&a)[4], unsigned of_upper, unsigned of_lower) {
        a[0] = widen_word<kA, step, 0>(of_upper), a[1] = widen_word<kA, step, 0>(of_lower);
        a[2] = widen_word<kA, step, 1>(of_upper), a[3] = widen_word<kA, step, 1>(of_lower);
    }
};

inline unsigned brick_of(unsigned stage, int row, int atom) {
    return stage + row / kBrickRows * kBlockBytes + atom * kBrick;
}

// As load_words of sparse_tile.cuh: the lanes with t > 1 hold the words of the next 16 rows.
inline void load_brick_words(unsigned (&words)[kTilesM][kAtomSteps], unsigned stage, int atom, const Lane& w) {
#pragma unroll
    for (int tile = 0; tile < kTilesM; tile += 2) {
        const int next = kTilesM > 1 ? w.t / 2 : 0;
        const unsigned brick = brick_of(stage, w.row0 + 16 * (tile + next), atom);
        const uint4 x = load_shared_16(brick + kCodesAt + 16 * w.g + 128 * (w.t % 2));
        words[tile][0] = x.x, words[tile][1] = x.y, words[tile][2] = x.z, words[tile][3] = x.w;
    }
}

inline void load_dense(unsigned (&b)[kTilesN][4], unsigned stage, int step, const Lane& w) {
#if B_COLUMN
    load_b_fragments(b, stage + kBAt, step, w);
#else
    load_row_fragments(b, stage + kBAt, step, w);
#endif
}

#if WGMMA
// The warps of a warpgroup have 16 rows each.
inline void multiply_atom(Sums& products, unsigned stage, int atom, const Lane& w) {
    unsigned words[1][kAtomSteps], a[kAtomSteps][4];
    Elements elements;
    load_brick_words(words, stage, atom, w);
    elements.load(brick_of(stage, w.row0, atom), w);
#pragma unroll
    for (int i = 0; i < kAtomSteps; ++i) elements.fragment(a[i], i);
    multiply_from_registers<0>(products, a, words[0], stage + kBAt, atom);
}
#else
inline void multiply_atom(Sums& products, unsigned stage, int atom, const Lane& w) {
#pragma unroll
    for (auto& tile : products)
#pragma unroll
        for (auto& sums : tile) sums[0] = sums[1] = sums[2] = sums[3] = 0;
    unsigned words[kTilesM][kAtomSteps];
    Elements elements[kTilesM];
    load_brick_words(words, stage, atom, w);
#pragma unroll
    for (int tile = 0; tile < kTilesM; ++tile) elements[tile].load(brick_of(stage, w.row0 + 16 * tile, atom), w);
#pragma unroll
    for (int i = 0; i < kAtomSteps; ++i) {
        unsigned b[kTilesN][4];
        load_dense(b, stage, atom * kAtomSteps + i, w);
#pragma unroll
        for (int tile = 0; tile < kTilesM; ++tile) {
            unsigned a[4];
            elements[tile].fragment(a, i);
#pragma unroll
            for (int f = 0; f < kTilesN; ++f) {
                if (tile % 2) mma_sp<kA, kB, 1>(products[tile][f], a, b[f], words[tile - 1][i]);
                else mma_sp<kA, kB, 0>(products[tile][f], a, b[f], words[tile][i]);
            }
        }
    }
}
#endif

// sums += factors of the rows * products of an atom
inline void add_scaled(Sums& sums, const Sums& products, unsigned stage, int atom, const Lane& w) {
#pragma unroll
    for (int tile = 0; tile < kTilesM; ++tile) {
        const unsigned factors = brick_of(stage, w.row0 + 16 * tile, atom) + kFactorsAt + 4 * w.g;
        const float upper = __uint_as_float(load_shared_4(factors));
        const float lower = __uint_as_float(load_shared_4(factors + 4 * 8));
#pragma unroll
        for (int f = 0; f < kTilesN; ++f)
#pragma unroll
            for (int q = 0; q < 4; ++q)
                sums[tile][f][q] = fmaf(q < 2 ? upper : lower, products[tile][f][q], sums[tile][f][q]);
    }
}

inline void multiply(Sums& sums, unsigned stage, const Lane& w, int left) {
#pragma unroll
    for (int part = 0; part < kAtoms / WARPS_K; ++part) {
        const int atom = part * WARPS_K + w.warp_k;
        if (atom * kBrickColumns >= left) break;  // the others have not been copied
        Sums products;
        multiply_atom(products, stage, atom, w);
        add_scaled(sums, products, stage, atom, w);
    }
}
