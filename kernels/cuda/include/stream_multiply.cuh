// stream_multiply: adds the product of a slab of 32 columns and 32 lines (rows) of b in shared memory to the sums.
//
// By warpgroup instructions where WGMMA is set, otherwise by every warp for itself.
// Source: PTX ISA, mma.sp::ordered_metadata m16n8k32, ldmatrix.
#pragma once

#if WGMMA
#include "wgmma_pairs.cuh"

// d += a slab of 64 rows, four pairs in each lane, by the 32 lines of b from `b_at` on.
__device__ void multiply_slab(Sums& d, Sums&, const Fragment& f, unsigned b_at, unsigned codes, unsigned high,
                              int slab) {
    const unsigned long long b = b_descriptor<N_TILES>(b_at);
    wgmma_fence();
    if (slab % 2) multiply_pairs<N_TILES, 1>(d, f.pair, b, codes);
    else multiply_pairs<N_TILES, 0>(d, f.pair, b, codes);
    multiply_pairs<N_TILES, 0>(d, f.more, b, high);
    wgmma_commit();
}
__device__ void finish_slab() { wgmma_wait(); }
#else
#define MMA_TYPE_float16 "f16.f16"
#define MMA_TYPE_bfloat16 "bf16.bf16"
#define JOIN(a, b) a##b
#define MMA_TYPE(x) JOIN(MMA_TYPE_, x)

template <int sel>
__device__ void multiply(float* d, const unsigned (&a)[4], const unsigned (&b)[4], unsigned codes) {
    asm volatile("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32." MMA_TYPE(ELEMENT) ".f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9,%10,%11}, {%0,%1,%2,%3}, %12, %13;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]),
                   "r"(codes), "n"(sel));
}

// The same by single warps, 16 rows each.  The products of third and fourth elements have sums of their own.
__device__ void multiply_slab(Sums& d, Sums& spill, const Fragment& f, unsigned b_at, unsigned codes, unsigned high,
                              int slab) {
    const unsigned line = b_at + swizzled(threadIdx.x % 32, 0);
#pragma unroll
    for (int j = 0; j < N_TILES; ++j) {
        unsigned b[4];
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3]) : "r"(line ^ 16 * j));
        if (slab % 2) multiply<1>(d + 4 * j, f.pair, b, codes);
        else multiply<0>(d + 4 * j, f.pair, b, codes);
        if (f.full) multiply<0>(spill + 4 * j, f.more, b, high);
    }
}
__device__ void finish_slab() {}
__device__ void hold(const unsigned (&)[2], unsigned, unsigned) {}
#endif
