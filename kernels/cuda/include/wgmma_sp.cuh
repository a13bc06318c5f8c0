// wgmma_sp: one sparse warpgroup instruction, D (64, BLOCK_N) += A (64, k; 2:4) @ B (k, BLOCK_N).
//
// A and B come from shared memory through descriptors, the metadata from a register, D stays in
// registers: register 4 j + 2 i + c of thread (warp w, g = lane / 4, t = lane % 4) is element
// (16 w + g + 8 i, 8 j + 2 t + c).  One instruction spans 64 bytes of B and 32 of A along k.
//
// Compiled with -DELEMENT, -DB_ELEMENT, -DBLOCK_N and -DB_ROW_MAJOR (1: n is contiguous in B).
// Source: PTX ISA, wgmma.mma_async.sp, matrix descriptor format, strides of an operand in shared memory.
#pragma once
#include "hopper_ptx.cuh"

#define PTX_float16 "f16"
#define PTX_bfloat16 "bf16"
#define PTX_float32 "tf32"
#define PTX_int8 "s8"
#define PTX_float8_e4m3fn "e4m3"
#define PTX_float8_e5m2 "e5m2"
#define PTX_OF(element) PTX_##element
#define PTX(element) PTX_OF(element)
#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

// The family of A decides the extent along k, the type of the sums, and which operands follow the predicate: for floats
// the factors (1 or -1) of A and B, then for 16-bit elements whether A and B are transposed.
#define FAMILY_float16 16
#define FAMILY_bfloat16 16
#define FAMILY_float32 32
#define FAMILY_float8_e4m3fn 8
#define FAMILY_float8_e5m2 8
#define FAMILY_int8 1
#define FAMILY_OF(element) FAMILY_##element
#define FAMILY_NAMED(element) FAMILY_OF(element)
#define FAMILY FAMILY_NAMED(ELEMENT)

#if FAMILY == 16
#define WGMMA_K "32"
#define WGMMA_SUM "f32"
#define WGMMA_TAIL ", 1, 1, 0, " TEXT(B_ROW_MAJOR)
#elif FAMILY == 32  // TF32, pattern 1:2
#define WGMMA_K "16"
#define WGMMA_SUM "f32"
#define WGMMA_TAIL ", 1, 1"
#elif FAMILY == 8
#define WGMMA_K "64"
#define WGMMA_SUM "f32"
#define WGMMA_TAIL ", 1, 1"
#else
#define WGMMA_K "64"
#define WGMMA_SUM "s32"
#define WGMMA_TAIL ""
#endif

#if FAMILY == 1
using Sum = int;
#define SUM_OPERAND(x) "+r"(x)
#else
using Sum = float;
#define SUM_OPERAND(x) "+f"(x)
#endif

#define NAMES_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define NAMES_32 NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_48 NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define NAMES_64 NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_80 NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define NAMES_96 NAMES_80 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define NAMES_112 NAMES_96 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define NAMES_128 NAMES_112 ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define SUMS_4(i) SUM_OPERAND(d[i]), SUM_OPERAND(d[i + 1]), SUM_OPERAND(d[i + 2]), SUM_OPERAND(d[i + 3])
#define SUMS_16(i) SUMS_4(i), SUMS_4(i + 4), SUMS_4(i + 8), SUMS_4(i + 12)
#define SUMS_32(i) SUMS_16(i), SUMS_16(i + 16)
#define SUMS_64(i) SUMS_32(i), SUMS_32(i + 32)
#define SUMS_96(i) SUMS_64(i), SUMS_32(i + 64)
#define SUMS_128(i) SUMS_64(i), SUMS_64(i + 64)

// Per width: the names and operands of the accumulators, and the numbers of the inputs after them.
#if BLOCK_N == 32
#define WGMMA_NAMES NAMES_16
#define WGMMA_SUMS SUMS_16(0)
#define WGMMA_INPUTS "%16, %17, %18"
#define WGMMA_SELECTOR "%19"
#define WGMMA_KEEP "%20"
#elif BLOCK_N == 64
#define WGMMA_NAMES NAMES_32
#define WGMMA_SUMS SUMS_32(0)
#define WGMMA_INPUTS "%32, %33, %34"
#define WGMMA_SELECTOR "%35"
#define WGMMA_KEEP "%36"
#elif BLOCK_N == 128
#define WGMMA_NAMES NAMES_64
#define WGMMA_SUMS SUMS_64(0)
#define WGMMA_INPUTS "%64, %65, %66"
#define WGMMA_SELECTOR "%67"
#define WGMMA_KEEP "%68"
#elif BLOCK_N == 192
#define WGMMA_NAMES NAMES_96
#define WGMMA_SUMS SUMS_96(0)
#define WGMMA_INPUTS "%96, %97, %98"
#define WGMMA_SELECTOR "%99"
#define WGMMA_KEEP "%100"
#elif BLOCK_N == 256
#define WGMMA_NAMES NAMES_128
#define WGMMA_SUMS SUMS_128(0)
#define WGMMA_INPUTS "%128, %129, %130"
#define WGMMA_SELECTOR "%131"
#define WGMMA_KEEP "%132"
#endif

// D = A @ B, or D += A @ B if `keep` is not 0; `selector` is explained in hopper_metadata.cuh.  Asynchronous: D may be
// read, and registers and shared memory that the instruction reads may be overwritten, after group_wait only.
template <int selector> __device__ void wgmma_sp(Sum (&d)[BLOCK_N / 2], u64 a, u64 b, u32 metadata, u32 keep) {
    asm volatile("{ .reg .pred keep; setp.ne.b32 keep, " WGMMA_KEEP ", 0;\n"
                 "wgmma.mma_async.sp.sync.aligned.m64n" TEXT(BLOCK_N) "k" WGMMA_K
                 "." WGMMA_SUM "." PTX(ELEMENT) "." PTX(B_ELEMENT)
                 " {" WGMMA_NAMES "}, " WGMMA_INPUTS ", " WGMMA_SELECTOR ", keep" WGMMA_TAIL "; }"
                 : WGMMA_SUMS : "l"(a), "l"(b), "r"(metadata), "n"(selector), "r"(keep));
}

// Before the first wgmma, and before any wgmma whose registers other instructions have written.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void group_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int pending> __device__ void group_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}
// Placed after a wait, keeps the compiler from moving uses of the accumulators across it.
__device__ inline void pin(Sum (&d)[BLOCK_N / 2]) {
#pragma unroll
    for (int i = 0; i < BLOCK_N / 2; i++) asm volatile("" : SUM_OPERAND(d[i])::"memory");
}

enum Swizzle : u64 { kSwizzle128 = 1, kSwizzle64 = 2 };

// Descriptor of an operand in shared memory, but for its start address.
//
//   bits  0-13  start address >> 4
//   bits 16-29  `leading` >> 4: bytes to the next swizzle span along n (n-major; else unused)
//   bits 32-45  `stride` >> 4: bytes between groups of eight rows (k-major) or of eight k (n-major)
//   bits 49-51  base offset, 0: the pattern of the swizzle begins at a multiple of its size
//   bits 62-63  swizzle
//
// Within a line of the swizzle, offsets along k are simply added to the start address.
__device__ constexpr u64 descriptor(Swizzle swizzle, u32 stride, u32 leading = 16) {
    return (u64)swizzle << 62 | (u64)(stride >> 4) << 32 | (u64)(leading >> 4) << 16;
}
// A descriptor's start address; offsets are added as bytes >> 4.
__device__ inline u64 descriptor_start(u32 address) { return (u64)((address & 0x3FFFF) >> 4); }
