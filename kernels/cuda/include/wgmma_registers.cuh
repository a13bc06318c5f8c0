// wgmma_registers: sparse warpgroup instructions whose A comes from registers, d (64, TILE_N) = or += A (64, 32) b.
//
// Fragments of A, the metadata and the sums lie in the registers of a warp as those of mma.sp for its 16 rows do
// (mma_sp.cuh, wgmma_tile.cuh).  b has K contiguous, in shared memory.  Until wgmma_wait no register that the
// instruction reads may be written: see settle().
//
// Source: PTX ISA, wgmma.mma_async.sp, register fragments and shared memory matrix layouts.
#pragma once

// A, the descriptor of b and the metadata, behind the sums; last what tells whether these are kept.
#if TILE_N == 32
#define REGISTER_INPUTS "{%16, %17, %18, %19}, %20, %21"
#define REGISTER_KEEP "%22"
#elif TILE_N == 64
#define REGISTER_INPUTS "{%32, %33, %34, %35}, %36, %37"
#define REGISTER_KEEP "%38"
#elif TILE_N == 128
#define REGISTER_INPUTS "{%64, %65, %66, %67}, %68, %69"
#define REGISTER_KEEP "%70"
#endif

#define WGMMA_SP_REGISTERS(types)                                                                         \
    asm volatile("{ .reg .pred keep; setp.ne.b32 keep, " REGISTER_KEEP ", 0;\n"                           \
                 "wgmma.mma_async.sp.sync.aligned.m64n" WIDTH "k32.f32." types " {" SUM_NAMES "}, "       \
                 REGISTER_INPUTS ", 0, keep, 1, 1, 0; }"                                                  \
                 : SUM_OPERANDS(FLOAT_SUM)                                                                \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(e), "n"(keep))

// d = A B, or d += A B with `keep`.
template <int keep>
void wgmma_sp_registers(float (&d)[TILE_N / 2], const unsigned (&a)[4], unsigned long long b, unsigned e) {
    if constexpr (kA == Kind::float16) WGMMA_SP_REGISTERS("f16.f16");
    else WGMMA_SP_REGISTERS("bf16.bf16");
}
#undef WGMMA_SP_REGISTERS

// Placed after wgmma_wait: keeps uses of the sums behind it, and what the instructions read before it.
template <int steps>
void settle(float (&d)[TILE_N / 2], const unsigned (&a)[steps][4], const unsigned (&words)[steps]) {
#pragma unroll
    for (int i = 0; i < TILE_N / 2; ++i) asm volatile("" : "+f"(d[i]) :: "memory");
#pragma unroll
    for (int i = 0; i < steps; ++i)
        asm volatile("" :: "r"(a[i][0]), "r"(a[i][1]), "r"(a[i][2]), "r"(a[i][3]), "r"(words[i]) : "memory");
}

// sums = products of a K atom of A with that of b, which begins at `dense`; or, with `keep`, += these.  Waits for them.
template <int keep>
inline void multiply_from_registers(Sums& sums, const unsigned (&a)[kAtomSteps][4], const unsigned (&words)[kAtomSteps],
                                    unsigned dense, int atom) {
    auto& d = reinterpret_cast<float(&)[TILE_N / 2]>(sums);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kAtomSteps; ++i) {
        const unsigned b = dense + span<TILE_N, kBChunks>(4 * (atom * kAtomSteps + i));
        if (i == 0) wgmma_sp_registers<keep>(d, a[i], kBDescriptor | start(b), words[i]);
        else wgmma_sp_registers<1>(d, a[i], kBDescriptor | start(b), words[i]);
    }
    wgmma_commit();
    wgmma_wait();
    settle(d, a, words);
}
