// decode_mixed: stages of sparse_decode.cu in which A has 8-bit elements and b 16-bit ones, which A is widened to.
//
// A matrix load gives lane t of a quad four bytes of a row, the groups of K 2t and 2t + 1.  The instruction takes its
// groups t and t + 4 from that lane.  Which groups of K those are is free if A, its codes and b agree, so they follow the
// load:
//
//   group of the instruction   0 1 2 3 4 5 6 7
//   group of K                 0 2 4 6 1 3 5 7
//
//   A      bytes 0 and 1 are group t, bytes 2 and 3 group t + 4
//   codes  a row's lie in its 16 bytes of an atom; lane t takes every second one of rows g and g + 8, from t % 2 on
//   b      lane t of register j takes half t % 2 of group 2j + t / 2
#pragma once
#include "widen_bytes.cuh"

constexpr int kStoredChunks = kRowOfA / 16;
static_assert(kItem == 2 && kStoredItem == 1 && kAtomSteps % 2 == 0);

// Every second code of four bytes, in two bytes.
inline unsigned every_second(unsigned codes) {
    const unsigned apart = codes & 0x0f0f0f0f;
    return apart | apart >> 4;  // in bytes 0 and 2
}

inline void load_mixed_words(unsigned (&words)[kTilesM][kAtomSteps], unsigned meta, const Lane& w) {
#pragma unroll
    for (int tile = 0; tile < kTilesM; tile += 2) {
        const int next = kTilesM > 1 ? 16 * (w.t / 2) : 0;  // selector 1 asks the lanes with t > 1
        const unsigned at = meta + 16 * (w.row0 + 16 * tile + next + w.g);
        const uint4 upper = load_shared_16(at), lower = load_shared_16(at + 8 * 16);
        const unsigned rows[2][kAtomSteps] = {{upper.x, upper.y, upper.z, upper.w}, {lower.x, lower.y, lower.z, lower.w}};
#pragma unroll
        for (int i = 0; i < kAtomSteps; ++i)
            words[tile][i] = __byte_perm(
                every_second(rows[0][i] >> 4 * (w.t % 2)), every_second(rows[1][i] >> 4 * (w.t % 2)), 0x6420);
    }
}

// Fragments of b for one step, as load_b_fragments of sparse_tile.cuh.
inline void load_mixed_fragments(unsigned (&b)[kTilesN][4], unsigned tile, int step, const Lane& w) {
#if B_COLUMN
    // Groups 2i and 2i + 1 of K share a chunk.  Neighbouring columns read its halves in turn, each in a bank of its own.
    const unsigned odd = w.g % 2;
#pragma unroll
    for (int f = 0; f < kTilesN; ++f)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const unsigned chunk = tile + place<kBRows, kBChunks>(w.column0 + 8 * f + w.g, 4 * step + 2 * j + w.t / 2);
            const unsigned at = chunk + 4 * (w.t % 2);
            const unsigned x = load_shared_4(at + 8 * odd), y = load_shared_4(at + 8 * (1 - odd));
            b[f][j] = odd ? y : x;
            b[f][j + 2] = odd ? x : y;
        }
#else
    const int group = w.lane / 4, k = 4 * (group % 4 * 2 + group / 4) + w.lane % 4;
#pragma unroll
    for (int f = 0; f < kTilesN; ++f)
        load_matrices_transposed(b[f], tile + (32 * step + k) * kRowOfB + w.column0 * 2 + 16 * f);
#endif
}

// As multiply_stage of sparse_tile.cuh; a matrix load of A serves two steps.
inline void multiply_mixed(Sums& sums, unsigned stage, const Lane& w) {
#pragma unroll
    for (int part = 0; part < kAtoms / WARPS_K; ++part) {
        const int atom = part * WARPS_K + w.warp_k;
        unsigned words[kTilesM][kAtomSteps];
        load_mixed_words(words, stage + kMetaAt + atom * TILE_M * 16, w);
#pragma unroll
        for (int i = 0; i < kAtomSteps; i += 2) {
            const int step = atom * kAtomSteps + i;
            unsigned b[2][kTilesN][4];
            load_mixed_fragments(b[0], stage + kBAt, step, w);
            load_mixed_fragments(b[1], stage + kBAt, step + 1, w);
#pragma unroll
            for (int tile = 0; tile < kTilesM; ++tile) {
                unsigned bytes[4];
                const int row = w.row0 + 16 * tile + w.lane % 16;
                load_matrices(bytes, stage + place<TILE_M, kStoredChunks>(row, step + w.lane / 16));
#pragma unroll
                for (int next = 0; next < 2; ++next) {
                    const unsigned upper = bytes[2 * next], lower = bytes[2 * next + 1];
                    const unsigned a[4] = {
                        widen_pair<kStored, kA, false>(upper), widen_pair<kStored, kA, false>(lower),
                        widen_pair<kStored, kA, true>(upper), widen_pair<kStored, kA, true>(lower)};
#pragma unroll
                    for (int f = 0; f < kTilesN; ++f) {
                        if (tile % 2) mma_sp<kA, kB, 1>(sums[tile][f], a, b[next][f], words[tile - 1][i + next]);
                        else mma_sp<kA, kB, 0>(sums[tile][f], a, b[next][f], words[tile][i + next]);
                    }
                }
            }
        }
    }
}
