// wgmma_dense: dense warpgroup products of a matrix tile and lines (rows) of b, both in shared memory (sm_90a).
//
// Rows of the matrix are 128 bytes, 64 elements of k, swizzled over their length; lines of b as in wgmma_pairs.cuh.
// An instruction takes 16 elements of k.  The matrix is the left operand, 64 rows at a time.  With 64 columns the
// operands may change places: b is then the left one, and the matrix, with all of its 128 or 64 rows at once, the
// right one, so that b is read only once.
// With 96 or 128 columns a line of b is two spans of 64 columns; the first spans of all lines come before the second.
//
// Register 4 j + 2 i + c of thread (warp w, g = lane / 4, t = lane % 4) is element
// (16 w + g + 8 i, 8 j + 2 t + c).
// Source: PTX ISA, wgmma.mma_async, matrix descriptor format.
#pragma once
#include "wgmma_pairs.cuh"

#define WIDE_SUMS_48 PAIR_SUMS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define WIDE_SUMS_64 WIDE_SUMS_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define FORTY_EIGHT(i) SIXTEEN(i), SIXTEEN(i + 16), SIXTEEN(i + 32)
#define SIXTY_FOUR(i) FORTY_EIGHT(i), SIXTEEN(i + 48)

// `transposed`: "1" for the operand that is lines of b, where not k but n is contiguous, "0" for the other one.
#define WGMMA_DENSE(width, names, inputs, keep, transposed, ...)                                            \
    asm volatile("{ .reg .pred add; setp.ne.u32 add, " keep ", 0;\n"                                         \
                 "wgmma.mma_async.sync.aligned.m64n" width "k16" PAIRS_TYPE(ELEMENT) " {" names "}, " inputs \
                 ", add, 1, 1, " transposed "; }"                                                            \
                 : __VA_ARGS__                                                                               \
                 : "l"(first), "l"(second), "r"(kept))

// With `columns_first` d is (64 columns, 2 * count rows), otherwise (64 rows, 2 * count columns).
template <bool columns_first, int count>
__device__ void multiply_dense(float (&d)[count], unsigned long long matrix, unsigned long long b, unsigned kept) {
    const unsigned long long first = columns_first ? b : matrix, second = columns_first ? matrix : b;
    if constexpr (columns_first && count == 64) WGMMA_DENSE("128", WIDE_SUMS_64, "%64, %65", "%66", "1, 0", SIXTY_FOUR(0));
    else if constexpr (columns_first)
        WGMMA_DENSE("64", PAIR_SUMS_32, "%32, %33", "%34", "1, 0", SIXTEEN(0), SIXTEEN(16));
    else if constexpr (count == 4) WGMMA_DENSE("8", PAIR_SUMS_4, "%4, %5", "%6", "0, 1", FOUR(0));
    else if constexpr (count == 8) WGMMA_DENSE("16", PAIR_SUMS_8, "%8, %9", "%10", "0, 1", FOUR(0), FOUR(4));
    else if constexpr (count == 16) WGMMA_DENSE("32", PAIR_SUMS_16, "%16, %17", "%18", "0, 1", SIXTEEN(0));
    else if constexpr (count == 32) WGMMA_DENSE("64", PAIR_SUMS_32, "%32, %33", "%34", "0, 1", SIXTEEN(0), SIXTEEN(16));
    else if constexpr (count == 48) WGMMA_DENSE("96", WIDE_SUMS_48, "%48, %49", "%50", "0, 1", FORTY_EIGHT(0));
    else WGMMA_DENSE("128", WIDE_SUMS_64, "%64, %65", "%66", "0, 1", SIXTY_FOUR(0));
}

// As WGMMA_DENSE with the matrix, at 2:4, on the left.
#define WGMMA_SPARSE(width, names, inputs, keep, ...)                                                            \
    asm volatile("{ .reg .pred add; setp.ne.u32 add, " keep ", 0;\n"                                             \
                 "wgmma.mma_async.sp.sync.aligned.m64n" width "k32" PAIRS_TYPE(ELEMENT) " {" names "}, " inputs  \
                 ", add, 1, 1, 0, 1; }"                                                                          \
                 : __VA_ARGS__                                                                                   \
                 : "l"(matrix), "l"(b), "r"(word), "n"(selector), "r"(kept))

// d (64 rows, 2 * count columns) += 64 rows of a 2:4 tile by 32 lines of b, or = if `kept` is 0.  The register of
// `word`, the metadata, must not be reused before the instruction has ended (see `hold`).
template <int selector, int count>
__device__ void multiply_sparse(float (&d)[count], unsigned long long matrix, unsigned long long b, unsigned word,
                                unsigned kept) {
    if constexpr (count == 4) WGMMA_SPARSE("8", PAIR_SUMS_4, "%4, %5, %6, %7", "%8", FOUR(0));
    else if constexpr (count == 8) WGMMA_SPARSE("16", PAIR_SUMS_8, "%8, %9, %10, %11", "%12", FOUR(0), FOUR(4));
    else if constexpr (count == 16) WGMMA_SPARSE("32", PAIR_SUMS_16, "%16, %17, %18, %19", "%20", SIXTEEN(0));
    else if constexpr (count == 32)
        WGMMA_SPARSE("64", PAIR_SUMS_32, "%32, %33, %34, %35", "%36", SIXTEEN(0), SIXTEEN(16));
    else if constexpr (count == 48)
        WGMMA_SPARSE("96", WIDE_SUMS_48, "%48, %49, %50, %51", "%52", FORTY_EIGHT(0));
    else WGMMA_SPARSE("128", WIDE_SUMS_64, "%64, %65, %66, %67", "%68", SIXTY_FOUR(0));
}

// Lines of b from a shared address on; a span of 64 columns has `lines` of them.
template <int tiles, int lines> __device__ unsigned long long lines_descriptor(unsigned at) {
    if constexpr (tiles <= 8) return b_descriptor<tiles>(at);
    constexpr unsigned long long swizzle = 1, next_eight = 1024 / 16, next_span = lines * 128 / 16;
    return swizzle << 62 | next_eight << 32 | next_span << 16 | (at & 0x3FFFF) >> 4;
}

// Rows of 64 bytes, swizzled over their length, from a shared address on, which is a multiple of eight rows.
__device__ unsigned long long half_descriptor(unsigned at) {
    constexpr unsigned long long swizzle = 2, next_eight = 512 / 16, leading = 1;
    return swizzle << 62 | next_eight << 32 | leading << 16 | (at & 0x3FFFF) >> 4;
}

// Rows of 128 bytes from a shared address on, which is a multiple of eight rows.
__device__ unsigned long long a_descriptor(unsigned at) {
    constexpr unsigned long long swizzle = 1, next_eight = 1024 / 16, leading = 1;
    return swizzle << 62 | next_eight << 32 | leading << 16 | (at & 0x3FFFF) >> 4;
}
// Waits until all groups of instructions but the last have finished.
__device__ void wgmma_wait_but_one() { asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory"); }
// Placed after a wait, keeps the compiler from moving uses of the sums across it.
template <int count> __device__ void pin(float (&d)[count]) {
#pragma unroll
    for (int i = 0; i < count; i++) asm volatile("" : "+f"(d[i])::"memory");
}
