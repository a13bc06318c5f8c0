// wgmma_dense: dense warpgroup products with a few columns, both operands in shared memory (sm_90a).
//
// d (64, 8 * tiles) += A (64, 16) b (16, 8 * tiles), or d = if `kept` is 0.  Rows of A are 128 bytes, 64 elements of k, swizzled
// over their length; lines of b as in wgmma_pairs.cuh.  Register 4 j + 2 i + c of thread (warp w, g = lane / 4,
// t = lane % 4) is element (16 w + g + 8 i, 8 j + 2 t + c).
// Source: PTX ISA, wgmma.mma_async, matrix descriptors.
#pragma once
#include "wgmma_pairs.cuh"

#define WGMMA_DENSE(width, names, inputs, keep, ...)                                                             \
    asm volatile("{ .reg .pred add; setp.ne.u32 add, " keep ", 0;\n"                                         \
                 "wgmma.mma_async.sync.aligned.m64n" width "k16" PAIRS_TYPE(ELEMENT) " {" names "}, " inputs \
                 ", add, 1, 1, 0, 1; }"                                                                      \
                 : __VA_ARGS__                                                                               \
                 : "l"(a), "l"(b), "r"(kept))

template <int tiles>
__device__ void multiply_dense(float (&d)[4 * tiles], unsigned long long a, unsigned long long b, unsigned kept) {
    if constexpr (tiles == 2) WGMMA_DENSE("16", PAIR_SUMS_8, "%8, %9", "%10", FOUR(0), FOUR(4));
    else if constexpr (tiles == 4) WGMMA_DENSE("32", PAIR_SUMS_16, "%16, %17", "%18", SIXTEEN(0));
    else WGMMA_DENSE("64", PAIR_SUMS_32, "%32, %33", "%34", SIXTEEN(0), SIXTEEN(16));
}

// Rows of 128 bytes from a shared address on, which is a multiple of eight rows.
__device__ unsigned long long a_descriptor(unsigned at) {
    constexpr unsigned long long swizzle = 1, next_eight = 1024 / 16, leading = 1;
    return swizzle << 62 | next_eight << 32 | leading << 16 | (at & 0x3FFFF) >> 4;
}
// All groups but the last have finished.
__device__ void wgmma_wait_but_one() { asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory"); }
// Keep the compiler from moving uses of the sums across a wait.
template <int count> __device__ void pin(float (&d)[count]) {
#pragma unroll
    for (int i = 0; i < count; i++) asm volatile("" : "+f"(d[i])::"memory");
}
