// wgmma_sp_registers: wgmma_sp.cuh's instruction for 16-bit elements with A from registers.
//
// The four words of A lie as those of mma.sp (mma_sp.cuh) for the 16 rows of a warp:
//
//   word i of lane (g, t)   stored elements 2 t and 2 t + 1, and with i > 1 those 8 further, of row g, or g + 8 if i is odd
//
// The codes are those of lanes 0 and 1 of a quad, as with selector 0 in hopper_metadata.cuh; those of the other lanes
// are not read.  k or n is contiguous in b, which comes by a descriptor.
// Source: PTX ISA, wgmma.mma_async.sp, register fragments.
#pragma once
#include "wgmma_sp.cuh"

// Per width: the numbers of the words of A, of the descriptor of b and of the codes behind the sums, and of `keep`.
#if BLOCK_N == 32
#define REGISTER_INPUTS "{%16, %17, %18, %19}, %20, %21"
#define REGISTER_KEEP "%22"
#elif BLOCK_N == 64
#define REGISTER_INPUTS "{%32, %33, %34, %35}, %36, %37"
#define REGISTER_KEEP "%38"
#elif BLOCK_N == 128
#define REGISTER_INPUTS "{%64, %65, %66, %67}, %68, %69"
#define REGISTER_KEEP "%70"
#elif BLOCK_N == 192
#define REGISTER_INPUTS "{%96, %97, %98, %99}, %100, %101"
#define REGISTER_KEEP "%102"
#elif BLOCK_N == 256
#define REGISTER_INPUTS "{%128, %129, %130, %131}, %132, %133"
#define REGISTER_KEEP "%134"
#endif

// D = A @ B, or D += A @ B if `keep` is not 0.  Asynchronous, as wgmma_sp.
__device__ inline void wgmma_sp_registers(Sum (&d)[BLOCK_N / 2], const u32 (&a)[4], u64 b, u32 metadata, u32 keep) {
    asm volatile("{ .reg .pred keep; setp.ne.b32 keep, " REGISTER_KEEP ", 0;\n"
                 "wgmma.mma_async.sp.sync.aligned.m64n" TEXT(BLOCK_N) "k" WGMMA_K
                 "." WGMMA_SUM "." PTX(ELEMENT) "." PTX(B_ELEMENT)
                 " {" WGMMA_NAMES "}, " REGISTER_INPUTS ", 0, keep, 1, 1, " TEXT(B_ROW_MAJOR) "; }"
                 : WGMMA_SUMS : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(metadata), "r"(keep));
}
