// mma_sp: the PTX of a sparse tile product, one function for each instruction.
//
// Counted in bytes, 8-bit and 16-bit elements have the same fragments: one mma.sp takes 16 rows x 32 stored bytes of A,
// 64 bytes of K x 8 columns of B, and gives 16 x 8 sums.  With ::ordered_metadata the two places of a code must ascend,
// as they always do here; without it the instruction may be much slower (PTX ISA).  Lane t of quad g holds
//
//   word i of A   stored bytes 4 t to 4 t + 3, and with i > 1 those 16 further, of row g, or g + 8 if i is odd
//   word i of B   bytes 16 i + 4 t to 16 i + 4 t + 3 along K, of column g
//   sum i         row g, or g + 8 if i > 1, and column 2 t + i % 2
//
// Source: PTX ISA, mma.sp::ordered_metadata, cp.async, ldmatrix, mapa, barrier.cluster.
#pragma once
#include "numeric.cuh"

inline unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

// Copies 16 bytes, bypassing the L1 cache (.cg); bytes beyond the first `bytes` are not read and become zeros.  L2
// fetches the whole 128-byte line, whose other bytes are wanted soon.
inline void copy_async(unsigned to, const void* from, int bytes) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                 :: "r"(to), "l"(from), "r"(bytes) : "memory");
}
inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int pending> void wait_copies() {
    asm volatile("cp.async.wait_group %0;" :: "n"(pending) : "memory");
}

inline void load_matrices(unsigned (&r)[4], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
inline void load_matrices_transposed(unsigned (&r)[4], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
inline uint4 load_shared_16(unsigned address) {
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(address) : "memory");
    return x;
}
inline unsigned load_shared_4(unsigned address) {
    unsigned x;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
    return x;
}

// d += A B for one tile.  `e` is the metadata word of the lane.  `selector` says whose words the instruction takes:
// with 16-bit elements those of the first two lanes of every quad (0) or of the last two (1); with 8-bit ones of all
// four (0).
#define MMA_SP(shape, types, constraint)                                                       \
    asm volatile("mma.sp::ordered_metadata.sync.aligned." shape ".row.col." types              \
                 " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9, %10, %11}, {%0, %1, %2, %3},"  \
                 " %12, %13;"                                                                  \
                 : constraint(d[0]), constraint(d[1]), constraint(d[2]), constraint(d[3])      \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]),           \
                   "r"(b[2]), "r"(b[3]), "r"(e), "n"(selector))

template <Kind A, Kind B, int selector, class Sum>
void mma_sp(Sum (&d)[4], const unsigned (&a)[4], const unsigned (&b)[4], unsigned e) {
    constexpr bool a4 = A == Kind::float8_e4m3fn, b4 = B == Kind::float8_e4m3fn;
    if constexpr (A == Kind::float16) MMA_SP("m16n8k32", "f32.f16.f16.f32", "+f");
    else if constexpr (A == Kind::bfloat16) MMA_SP("m16n8k32", "f32.bf16.bf16.f32", "+f");
    else if constexpr (A == Kind::int8) MMA_SP("m16n8k64", "s32.s8.s8.s32", "+r");
    else if constexpr (a4 && b4) MMA_SP("m16n8k64", "f32.e4m3.e4m3.f32", "+f");
    else if constexpr (a4) MMA_SP("m16n8k64", "f32.e4m3.e5m2.f32", "+f");
    else if constexpr (b4) MMA_SP("m16n8k64", "f32.e5m2.e4m3.f32", "+f");
    else MMA_SP("m16n8k64", "f32.e5m2.e5m2.f32", "+f");
}
#undef MMA_SP

// Clusters (sm_90 and later): all threads of the cluster meet here, and see what each of them wrote before.
inline void cluster_sync() {
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
inline unsigned cluster_rank() {
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
// The 32-bit word at `address` of the shared memory of block `rank` of the cluster.
inline unsigned load_cluster_4(unsigned address, unsigned rank) {
    unsigned x;
    asm volatile("{ .reg .u32 remote; mapa.shared::cluster.u32 remote, %1, %2;\n"
                 "ld.shared::cluster.u32 %0, [remote]; }" : "=r"(x) : "r"(address), "r"(rank) : "memory");
    return x;
}
