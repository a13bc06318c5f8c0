// wgmma_tile: the multiplication of sparse_tile by warpgroup instructions (sm_90a).
//
// A warpgroup of four warps owns 64 rows of the tile and all of its columns.  A and b come from
// shared memory through descriptors, the metadata from a register.  The instruction reads the
// layout that sparse_tile stages (spans of up to 128 bytes whose 16-byte chunks are XORed with the
// row), and its sums lie in registers as those of mma.sp do, so the code around it is the same.
// 8-bit types need K contiguous in b.
// Source: PTX ISA, wgmma.mma_async.sp, matrix descriptor format.
#pragma once

#define SUM_NAMES_4 "%0, %1, %2, %3"
#define SUM_NAMES_8 SUM_NAMES_4 ", %4, %5, %6, %7"
#define SUM_NAMES_16 SUM_NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define SUM_NAMES_32 SUM_NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23, " \
    "%24, %25, %26, %27, %28, %29, %30, %31"
#define SUM_NAMES_64 SUM_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, " \
    "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, " \
    "%56, %57, %58, %59, %60, %61, %62, %63"
#define SUM_NAMES_128 SUM_NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71, " \
    "%72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, " \
    "%88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, " \
    "%104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, " \
    "%118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define SUM_4(c, i) c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3])
#define SUM_8(c, i) SUM_4(c, i), SUM_4(c, i + 4)
#define SUM_16(c, i) SUM_8(c, i), SUM_8(c, i + 8)
#define SUM_32(c, i) SUM_16(c, i), SUM_16(c, i + 16)
#define SUM_64(c, i) SUM_32(c, i), SUM_32(c, i + 32)
#define SUM_128(c, i) SUM_64(c, i), SUM_64(c, i + 64)

// Operands of the instruction of each width: names of the sums, their constraints, other inputs.
#if TILE_N == 8
#define WIDTH "8"
#define SUM_NAMES SUM_NAMES_4
#define SUM_OPERANDS(c) SUM_4(c, 0)
#define INPUTS "%4, %5, %6, 0, add"
#elif TILE_N == 16
#define WIDTH "16"
#define SUM_NAMES SUM_NAMES_8
#define SUM_OPERANDS(c) SUM_8(c, 0)
#define INPUTS "%8, %9, %10, 0, add"
#elif TILE_N == 32
#define WIDTH "32"
#define SUM_NAMES SUM_NAMES_16
#define SUM_OPERANDS(c) SUM_16(c, 0)
#define INPUTS "%16, %17, %18, 0, add"
#elif TILE_N == 64
#define WIDTH "64"
#define SUM_NAMES SUM_NAMES_32
#define SUM_OPERANDS(c) SUM_32(c, 0)
#define INPUTS "%32, %33, %34, 0, add"
#elif TILE_N == 128
#define WIDTH "128"
#define SUM_NAMES SUM_NAMES_64
#define SUM_OPERANDS(c) SUM_64(c, 0)
#define INPUTS "%64, %65, %66, 0, add"
#elif TILE_N == 256
#define WIDTH "256"
#define SUM_NAMES SUM_NAMES_128
#define SUM_OPERANDS(c) SUM_128(c, 0)
#define INPUTS "%128, %129, %130, 0, add"
#endif

// INPUTS ends with the selector, 0, and the predicate, which says that sums are added to d.  `tail` has the factors of
// A and B, and which of them is transposed.
#define FLOAT_SUM(x) "+f"(x)
#define INT_SUM(x) "+r"(x)
#define WGMMA_SP(types, tail, constraint)                                                   \
    asm volatile("{ .reg .pred add; setp.eq.u32 add, 0, 0;\n"                               \
                 "wgmma.mma_async.sp.sync.aligned.m64n" WIDTH types " {" SUM_NAMES "}, "     \
                 INPUTS tail "; }"                                                          \
                 : SUM_OPERANDS(constraint) : "l"(a), "l"(b), "r"(e))

// d += A B: 64 rows x 32 stored bytes by 64 bytes of K x TILE_N.  Asynchronous until wgmma_wait.
template <class Number>
void wgmma_sp(Number (&d)[TILE_N / 2], unsigned long long a, unsigned long long b, unsigned e) {
    constexpr bool a4 = kA == Kind::float8_e4m3fn, b4 = kB == Kind::float8_e4m3fn;
    if constexpr (kA == Kind::float16 && B_COLUMN) WGMMA_SP("k32.f32.f16.f16", ", 1, 1, 0, 0", FLOAT_SUM);
    else if constexpr (kA == Kind::float16) WGMMA_SP("k32.f32.f16.f16", ", 1, 1, 0, 1", FLOAT_SUM);
    else if constexpr (kA == Kind::bfloat16 && B_COLUMN) WGMMA_SP("k32.f32.bf16.bf16", ", 1, 1, 0, 0", FLOAT_SUM);
    else if constexpr (kA == Kind::bfloat16) WGMMA_SP("k32.f32.bf16.bf16", ", 1, 1, 0, 1", FLOAT_SUM);
    else if constexpr (kA == Kind::int8) WGMMA_SP("k64.s32.s8.s8", "", INT_SUM);
    else if constexpr (a4 && b4) WGMMA_SP("k64.f32.e4m3.e4m3", ", 1, 1", FLOAT_SUM);
    else if constexpr (a4) WGMMA_SP("k64.f32.e4m3.e5m2", ", 1, 1", FLOAT_SUM);
    else if constexpr (b4) WGMMA_SP("k64.f32.e5m2.e4m3", ", 1, 1", FLOAT_SUM);
    else WGMMA_SP("k64.f32.e5m2.e5m2", ", 1, 1", FLOAT_SUM);
}

inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
inline void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }
// By every thread whose cp.async copies have arrived, before the barrier behind which wgmma reads them: wgmma reads
// shared memory by another path (the async proxy).
inline void async_proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Descriptor without its start address; bits as in wgmma_sp.cuh.  The swizzle spans a line of 128, 64 or
// 32 bytes; shorter ones have none.
constexpr unsigned long long descriptor(int line, int stride, int leading) {
    const unsigned long long swizzle = line >= 128 ? 1 : line == 64 ? 2 : line == 32 ? 3 : 0;
    return swizzle << 62 | (unsigned long long)(stride >> 4) << 32 | (unsigned long long)(leading >> 4) << 16;
}
inline unsigned long long start(unsigned address) { return (address & 0x3FFFF) >> 4; }

// Both operands lie in spans of up to 128 bytes, groups of 8 lines one after the other.
constexpr unsigned long long kADescriptor = descriptor(16 * kAChunks, 8 * smaller(128, 16 * kAChunks), 16);
constexpr int kBLine = smaller(128, 16 * kBChunks);
constexpr unsigned long long kBDescriptor =
    B_COLUMN ? descriptor(128, 1024, 16)                       // next 8 columns
    : kBLine == 16 ? descriptor(16, 16, 128)                   // leading: next 8 k
                   : descriptor(kBLine, 8 * kBLine, TILE_K * 128);  // next 8 k; next 64 columns

// Starts the products of one stage for this warp's group; `words` must live until wgmma_wait.
template <int atoms>
void start_stage(Sums& sums, unsigned (&words)[atoms][1][kAtomSteps], unsigned stage, const Lane& w) {
    auto& d = reinterpret_cast<Sum(&)[TILE_N / 2]>(sums);
#pragma unroll
    for (int part = 0; part < atoms; ++part)
        load_words(words[part], stage + kABytes + (part * WARPS_K + w.warp_k) * TILE_M * 16, w);
    wgmma_fence();
#pragma unroll
    for (int part = 0; part < atoms; ++part)
#pragma unroll
        for (int i = 0; i < kAtomSteps; ++i) {
            const int step = (part * WARPS_K + w.warp_k) * kAtomSteps + i;
            const unsigned a =
                stage + span<TILE_M, kAChunks>(2 * step) + w.row0 / 64 * 64 * smaller(128, 16 * kAChunks);
            const unsigned b = stage + kABytes + kMetaBytes +
                (B_COLUMN ? span<TILE_N, kBChunks>(4 * step) : 32 * step * kBLine);
            wgmma_sp(d, kADescriptor | start(a), kBDescriptor | start(b), words[part][0][i]);
        }
    wgmma_commit();
}

// The instructions read the metadata while they run, which the compiler does not know.  This makes it keep the values
// up to here, but leaves nothing in the PTX, so ptxas could still reuse the registers.  It does not:
// tests/test_compile_checks.py reads the machine code.  A use that ptxas sees, as in wgmma_pairs.cuh, costs up to 2 %
// of the instructions of the loop in some configurations.
template <int atoms> void hold(const unsigned (&words)[atoms][1][kAtomSteps]) {
#pragma unroll
    for (int part = 0; part < atoms; ++part)
#pragma unroll
        for (int i = 0; i < kAtomSteps; ++i) asm volatile("" :: "r"(words[part][0][i]) : "memory");
}
