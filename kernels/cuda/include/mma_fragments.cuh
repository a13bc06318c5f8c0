// mma_fragments: the operands of a warp's mma.sp in registers, loaded from a stage while the step before is multiplied.
//
// Compiled with the macros of sparse_tile, with WGMMA 0.  A step is 64 bytes of k; warps along k take the atoms of a
// stage in turn.
#pragma once
#include "sparse_tile.cuh"

constexpr int kSteps = kAtoms / WARPS_K * kAtomSteps;  // of a warp in a stage
static_assert(!WGMMA && kSteps % 2 == 0 && kTilesN % 2 == 0);

// Metadata words of this lane for all steps of one K atom, for m16 tile `tile`; with 16-bit elements for both tiles of
// its pair.
inline void load_tile_words(unsigned (&words)[kTilesM][kAtomSteps], int tile, unsigned meta, const Lane& w) {
    if constexpr (kItem == 2) {
        // Lanes with t < 2 hold the words of one m16 tile, the others those of the next:
        // selector 0, then 1.
        const int first = tile / 2 * 2, next = kTilesM > 1 ? 256 * (w.t / 2) : 0;
        const uint4 x = load_shared_16(meta + 16 * (w.row0 + 16 * first) + 16 * w.g + 128 * (w.t % 2) + next);
        words[first][0] = x.x, words[first][1] = x.y, words[first][2] = x.z, words[first][3] = x.w;
    } else {
#pragma unroll
        for (int step = 0; step < kAtomSteps; ++step)
            words[tile][step] = load_shared_4(
                meta + 16 * (w.row0 + 16 * tile + w.g + 8 * (w.t % 2)) + 8 * step + 4 * (w.t / 2));
    }
}

// Fragments of b for one step, of columns 8 f to 8 f + 15 of the warp.
inline void load_b_pair(unsigned (&even)[4], unsigned (&odd)[4], unsigned tile, int step, int f, const Lane& w) {
    const int matrix = w.lane / 8, line = w.lane % 8;
    if constexpr (B_COLUMN) {
        const int row = w.column0 + 8 * f + line, chunk = 4 * step + matrix;
        load_matrices(even, tile + place<kBRows, kBChunks>(row, chunk));
        load_matrices(odd, tile + place<kBRows, kBChunks>(row + 8, chunk));
    } else if constexpr (kItem == 2) {
        const int row = 32 * step + 8 * matrix + line, chunk = w.column0 / 8 + f;
        load_matrices_transposed(even, tile + place<kBRows, kBChunks>(row, chunk));
        load_matrices_transposed(odd, tile + place<kBRows, kBChunks>(row, chunk + 1));
    } else {
        // 8-bit elements, as in load_b_fragments: `even` has the even ones of the 16 columns, `odd` the odd ones.
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int k = 32 * half + 16 * (matrix / 2) + 4 * (line / 2) + line % 2 + 2 * (matrix % 2);
            unsigned x[4];
            load_matrices_transposed(x, tile + place<kBRows, kBChunks>(64 * step + k, w.column0 / 16 + f / 2));
            even[2 * half] = __byte_perm(x[0], x[1], 0x6420);
            even[2 * half + 1] = __byte_perm(x[2], x[3], 0x6420);
            odd[2 * half] = __byte_perm(x[0], x[1], 0x7531);
            odd[2 * half + 1] = __byte_perm(x[2], x[3], 0x7531);
        }
    }
}

// There is one set of each operand, because registers are scarce: a fragment of the next step is loaded as soon as that
// of this step has been used for the last time.
class Fragments {
  public:
    void load(unsigned stage, const Lane& w) {
#pragma unroll
        for (int tile = 0; tile < kTilesM; ++tile) load_a(tile, stage, 0, w), load_metadata(tile, stage, 0, w);
#pragma unroll
        for (int f = 0; f < kTilesN; f += 2) load_b(f, stage, 0, w);
    }

    // Multiplies a step, and loads the operands of the next one, which lies in `stage`.
    void multiply(Sums& sums, int step, unsigned stage, const Lane& w) {
        const int next = (step + 1) % kSteps, i = step % kAtomSteps;
#pragma unroll
        for (int tile = 0; tile < kTilesM; ++tile) {
#pragma unroll
            for (int f = 0; f < kTilesN; ++f) {
                if (kItem == 2 && tile % 2) mma_sp<kA, kB, kItem == 2>(sums[tile][f], a_[tile], b_[f], words_[tile - 1][i]);
                else mma_sp<kA, kB, 0>(sums[tile][f], a_[tile], b_[f], words_[tile][i]);
                if (tile == kTilesM - 1 && f % 2) load_b(f - 1, stage, next, w);
            }
            load_a(tile, stage, next, w);
            load_metadata(tile, stage, next, w);
        }
    }

  private:
    static int step_of_stage(int step, const Lane& w) {
        return (step / kAtomSteps * WARPS_K + w.warp_k) * kAtomSteps + step % kAtomSteps;
    }
    void load_a(int tile, unsigned stage, int step, const Lane& w) {
        const int row = w.row0 + 16 * tile + w.lane % 16, chunk = 2 * step_of_stage(step, w) + w.lane / 16;
        load_matrices(a_[tile], stage + place<TILE_M, kAChunks>(row, chunk));
    }
    void load_b(int f, unsigned stage, int step, const Lane& w) {
        load_b_pair(b_[f], b_[f + 1], stage + kABytes + kMetaBytes, step_of_stage(step, w), f, w);
    }
    // At the first step of an atom.  With 16-bit elements the words of a pair of tiles are loaded when the second tile
    // is done, because neither tile needs the old ones then.
    void load_metadata(int tile, unsigned stage, int step, const Lane& w) {
        if (step % kAtomSteps || (kItem == 2 && kTilesM > 1 && tile % 2 == 0)) return;
        load_tile_words(words_, tile, stage + kABytes + (step / kAtomSteps * WARPS_K + w.warp_k) * TILE_M * 16, w);
    }

    unsigned a_[kTilesM][4], b_[kTilesN][4], words_[kTilesM][kAtomSteps];
};
