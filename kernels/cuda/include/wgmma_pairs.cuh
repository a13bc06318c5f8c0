// wgmma_pairs: sparse warpgroup products of pairs of elements in registers by lines of b in shared memory (sm_90a).
//
// d (64, 8 * tiles) += A (64, 32; 2:4) b (32, 8 * tiles).  A lane holds the stored pairs of the same four groups as
// for mma.sp m16n8k32, and the same metadata word.  The lines (rows) of b lie one after the other, swizzled over
// their own length; lines of 16 bytes are not swizzled.
// The instructions are asynchronous: the registers of pairs and metadata must not be reused before wgmma_wait.
// Source: PTX ISA, wgmma.mma_async.sp, register operand A, matrix descriptor format.
#pragma once

#define PAIRS_TYPE_float16 ".f32.f16.f16"
#define PAIRS_TYPE_bfloat16 ".f32.bf16.bf16"
#define PAIRS_JOIN(a, b) a##b
#define PAIRS_TYPE(x) PAIRS_JOIN(PAIRS_TYPE_, x)

#define PAIR_SUMS_4 "%0, %1, %2, %3"
#define PAIR_SUMS_8 PAIR_SUMS_4 ", %4, %5, %6, %7"
#define PAIR_SUMS_16 PAIR_SUMS_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define PAIR_SUMS_32 PAIR_SUMS_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define FOUR(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SIXTEEN(i) FOUR(i), FOUR(i + 4), FOUR(i + 8), FOUR(i + 12)

// Behind the predicate follow the factors of A and B, and that B is transposed: n is contiguous in its lines.
#define WGMMA_PAIRS(width, names, inputs, ...)                                                          \
    asm volatile("{ .reg .pred add; setp.eq.u32 add, 0, 0;\n"                                           \
                 "wgmma.mma_async.sp.sync.aligned.m64n" width "k32" PAIRS_TYPE(ELEMENT) " {" names "}, " \
                 inputs ", add, 1, 1, 1; }"                                                             \
                 : __VA_ARGS__                                                                          \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(codes), "n"(sel))

template <int tiles, int sel>
__device__ void multiply_pairs(float (&d)[4 * tiles], const unsigned (&a)[4], unsigned long long b, unsigned codes) {
    if constexpr (tiles == 1) WGMMA_PAIRS("8", PAIR_SUMS_4, "{%4, %5, %6, %7}, %8, %9, %10", FOUR(0));
    else if constexpr (tiles == 2)
        WGMMA_PAIRS("16", PAIR_SUMS_8, "{%8, %9, %10, %11}, %12, %13, %14", FOUR(0), FOUR(4));
    else if constexpr (tiles == 4) WGMMA_PAIRS("32", PAIR_SUMS_16, "{%16, %17, %18, %19}, %20, %21, %22", SIXTEEN(0));
    else WGMMA_PAIRS("64", PAIR_SUMS_32, "{%32, %33, %34, %35}, %36, %37, %38", SIXTEEN(0), SIXTEEN(16));
}

// Lines of 16 * tiles bytes from a shared address on, which is a multiple of eight lines; bits as in wgmma_sp.cuh.
// Without a swizzle (tiles == 1) it is the leading offset, 128 bytes, that leads to the next eight lines.
template <int tiles> __device__ unsigned long long b_descriptor(unsigned at) {
    constexpr unsigned long long swizzle = tiles == 8 ? 1 : tiles == 4 ? 2 : tiles == 2 ? 3 : 0;
    constexpr unsigned long long next_eight = tiles == 1 ? 1 : 8 * tiles;  // in units of 16 bytes
    constexpr unsigned long long leading = tiles == 1 ? 8 : 1;
    return swizzle << 62 | next_eight << 32 | leading << 16 | (at & 0x3FFFF) >> 4;
}

__device__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }
// Instructions read their metadata while they run.  The compiler does not know that: it may reuse the register as soon
// as the instruction has been issued (seen in machine code).  Placed after the wait, this is a use that keeps the words
// until then.  It names every word, because a combination of them might be computed before the wait.  The stores never
// happen: `never`, an aligned shared address, is not 1, which the compiler cannot know.
__device__ void hold(const unsigned (&words)[2], unsigned other, unsigned never) {
    asm volatile("{ .reg .pred p; setp.eq.u32 p, %3, 1; @p st.shared.u32 [%3], %0; @p st.shared.u32 [%3], %1;\n"
                 "@p st.shared.u32 [%3], %2; }" ::"r"(words[0]), "r"(words[1]), "r"(other), "r"(never) : "memory");
}
