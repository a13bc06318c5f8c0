// decode_mixed: stages of sparse_decode.cu in which A has 8-bit elements and b 16-bit ones, which A is widened to.
//
// Which groups of K an instruction takes as its first, second, ... is free if A, its codes and b agree.  Warps load b
// themselves; for them the groups are
//
//   group of the instruction   0 1 2 3 4 5 6 7
//   group of K                 0 1 4 5 2 3 6 7
//
// for then each of the three comes by a load and a byte permutation at the most:
//
//   A      lane t takes groups t and t + 4: of the eight bytes from group 4 (t / 2) of K on, bytes 0, 1, 4 and 5 if t is
//          even, else the others
//   codes  a row's lie in its 16 bytes of an atom; lane t takes bytes 0 and 2 of four, of rows g and g + 8, if t is even,
//          else bytes 1 and 3
//   b      matrices of eight elements of K, or two groups, in the order 0 2 1 3
//
// With WGMMA 1 warpgroups multiply, whose instructions read b as it lies, so the groups are in the order of K.  Lane t
// takes A by two loads, of the words of groups t and t + 4, and of the codes bytes 0 and 1 if t is even, else 2 and 3.
#pragma once
#include "widen_bytes.cuh"
#if WGMMA
#include "wgmma_registers.cuh"
#endif

constexpr int kStoredChunks = kRowOfA / 16;  // one for each step
static_assert(kItem == 2 && kStoredItem == 1);

inline uint2 load_shared_8(unsigned address) {
    uint2 x;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(address) : "memory");
    return x;
}

inline void load_mixed_words(unsigned (&words)[kTilesM][kAtomSteps], unsigned meta, const Lane& w) {
    const unsigned selector = WGMMA ? (w.t % 2 ? 0x7632 : 0x5410) : (w.t % 2 ? 0x7531 : 0x6420);
#pragma unroll
    for (int tile = 0; tile < kTilesM; tile += 2) {
        const int next = kTilesM > 1 ? 16 * (w.t / 2) : 0;  // selector 1 of mma.sp asks the lanes with t > 1
        const unsigned at = meta + 16 * (w.row0 + 16 * tile + next + w.g);
        const uint4 upper = load_shared_16(at), lower = load_shared_16(at + 8 * 16);
        words[tile][0] = __byte_perm(upper.x, lower.x, selector);
        words[tile][1] = __byte_perm(upper.y, lower.y, selector);
        words[tile][2] = __byte_perm(upper.z, lower.z, selector);
        words[tile][3] = __byte_perm(upper.w, lower.w, selector);
    }
}

inline void load_mixed_a(unsigned (&a)[4], unsigned stage, int row, int step, const Lane& w) {
    const unsigned selector = w.t % 2 ? 0x7632 : 0x5410;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const unsigned at = stage + place<TILE_M, kStoredChunks>(row + w.g + 8 * half, step);
#if WGMMA
        const uint2 x = {load_shared_4(at + 4 * (w.t / 2)), load_shared_4(at + 8 + 4 * (w.t / 2))};
#else
        const uint2 x = load_shared_8(at + 8 * (w.t / 2));
#endif
        const unsigned bytes = __byte_perm(x.x, x.y, selector);
        a[half] = widen_pair<kStored, kA, false>(bytes);
        a[half + 2] = widen_pair<kStored, kA, true>(bytes);
    }
}

#if WGMMA
// The warps of a warpgroup have 16 rows each.
inline void multiply_mixed_atom(Sums& sums, unsigned stage, int atom, const Lane& w) {
    unsigned words[1][kAtomSteps], a[kAtomSteps][4];
    load_mixed_words(words, stage + kMetaAt + atom * TILE_M * 16, w);
#pragma unroll
    for (int i = 0; i < kAtomSteps; ++i) load_mixed_a(a[i], stage, w.row0, atom * kAtomSteps + i, w);
    multiply_from_registers<1>(sums, a, words[0], stage + kBAt, atom);
}
#else
// As load_b_fragments of sparse_tile.cuh, but for the order of the matrices.
inline void load_mixed_b(unsigned (&b)[kTilesN][4], unsigned tile, int step, const Lane& w) {
    const int matrix = w.lane / 8, taken = matrix % 2 * 2 + matrix / 2, line = w.lane % 8;
#pragma unroll
    for (int f = 0; f < kTilesN; ++f) {
#if B_COLUMN
        load_matrices(b[f], tile + place<kBRows, kBChunks>(w.column0 + 8 * f + line, 4 * step + taken));
#else
        load_matrices_transposed(b[f], tile + (32 * step + 8 * taken + line) * kRowOfB + w.column0 * 2 + 16 * f);
#endif
    }
}

inline void multiply_mixed_atom(Sums& sums, unsigned stage, int atom, const Lane& w) {
    unsigned words[kTilesM][kAtomSteps];
    load_mixed_words(words, stage + kMetaAt + atom * TILE_M * 16, w);
#pragma unroll
    for (int i = 0; i < kAtomSteps; ++i) {
        const int step = atom * kAtomSteps + i;
        unsigned b[kTilesN][4];
        load_mixed_b(b, stage + kBAt, step, w);
#pragma unroll
        for (int tile = 0; tile < kTilesM; ++tile) {
            unsigned a[4];
            load_mixed_a(a, stage, w.row0 + 16 * tile, step, w);
#pragma unroll
            for (int f = 0; f < kTilesN; ++f) {
                if (tile % 2) mma_sp<kA, kB, 1>(sums[tile][f], a, b[f], words[tile - 1][i]);
                else mma_sp<kA, kB, 0>(sums[tile][f], a, b[f], words[tile][i]);
            }
        }
    }
}
#endif

// As multiply_stage of sparse_tile.cuh.
inline void multiply_mixed(Sums& sums, unsigned stage, const Lane& w) {
#pragma unroll
    for (int part = 0; part < kAtoms / WARPS_K; ++part)
        multiply_mixed_atom(sums, stage, part * WARPS_K + w.warp_k, w);
}
