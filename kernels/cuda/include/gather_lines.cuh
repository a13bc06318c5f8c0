// gather_lines: the lines (rows) of b that a block of hybrid_gather.cu keeps in shared memory.
//
//   B_LOAD   what a panel of b is in memory
//   2        one stretch: lines are as long as in shared memory
//   1        rows of 16 bytes each, or twice 16
//   0        anything; read element by element
//
// Lines of one element are kept in single precision, so that no word of the matrix has to convert its own.  Of lines of
// 32 bytes, numbers 4 to 7 of every eight have their halves exchanged: so eight lines whose numbers differ modulo 8 have
// their first halves in different banks, and their second halves too.
#pragma once
#include "hopper_ptx.cuh"
#include "numeric.cuh"

constexpr bool kOneElement = COLUMNS == 1, kCopied = B_LOAD == 1 || B_LOAD == 2 && !kOneElement;
constexpr int kLines = 4096, kLineBytes = kOneElement ? 4 : 2 * COLUMNS;
constexpr int kPanelBytes = kLines * kLineBytes;

struct Right {
    const unsigned short* b;
    Count k, n, row, column;    // sizes and strides in elements
};

__device__ inline void copy16(u32 to, const void* from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
// The same for what is read once: caches give it up first.
__device__ inline u64 read_once() {
    u64 policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
__device__ inline void copy16(u32 to, const void* from, u64 policy) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "l"(policy) : "memory");
}
__device__ inline void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int pending> __device__ void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// Where the byte `at` of a panel lies.
__device__ inline u32 place(u32 at) { return COLUMNS == 16 ? at ^ at >> 3 & 16 : at; }

template <Kind kind> __device__ float low_of(u32 pair) {
    if constexpr (kind == Kind::bfloat16) return __uint_as_float(pair << 16);
    return __half2float(__ushort_as_half((unsigned short)(pair & 0xffff)));
}
template <Kind kind> __device__ float high_of(u32 pair) {
    if constexpr (kind == Kind::bfloat16) return __uint_as_float(pair & 0xffff0000u);
    return __half2float(__ushort_as_half((unsigned short)(pair >> 16)));
}

// Fill panels, from number `rank` of the matrix on, with the lines of b that they need; a barrier must follow.  Lines and
// columns beyond b are not filled: no word points at such a line (padding points at one that another lane needs, or at
// line 0), and such columns are not stored.  Blocks begin at different lines (by `turn`, any number that spreads them);
// otherwise all would ask the same slice of L2 at the same time: docs/benchmarks/log_hybrid.rst.
#if B_LOAD == 2 && COLUMNS == 1
// All panels as one stretch, four elements at a time: first all loads, then all stores.
__device__ inline void fetch_panels(u32 panels, const Right& b, int rank, Count) {
    constexpr int kFours = HELD * kLines / 4, kEach = (kFours + kThreads - 1) / kThreads;
    const Count first = Count(rank) * kLines;
    const int lines = int(min(Count(HELD * kLines), b.k - first)), turn = blockIdx.x * 88;
    uint2 four[kEach];
    int line[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        const int at = threadIdx.x + i * kThreads;
        line[i] = at < kFours ? (at + turn) % kFours * 4 : lines;
        if (line[i] < lines) four[i] = *reinterpret_cast<const uint2*>(b.b + first + line[i]);
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i)
        if (line[i] < lines)
            asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};"
                         ::"r"(panels + line[i] * kLineBytes),
                           "f"(low_of<Kind::ELEMENT>(four[i].x)), "f"(high_of<Kind::ELEMENT>(four[i].x)),
                           "f"(low_of<Kind::ELEMENT>(four[i].y)), "f"(high_of<Kind::ELEMENT>(four[i].y)) : "memory");
}
#else
__device__ inline void fetch_panel(u32 panel, const Right& b, int rank, Count column0) {
    if (rank >= PANELS) return;
    const Count first = Count(rank) * kLines;
    const int lines = int(min(Count(kLines), b.k - first)), turn = blockIdx.x * 352;
    const unsigned short* from = b.b + first * b.row + column0 * b.column;
#if B_LOAD == 2
    const int bytes = lines * kLineBytes;
#pragma unroll 1
    for (int i = threadIdx.x; i < kPanelBytes / 16; i += kThreads) {
        const int at = (i + turn) % (kPanelBytes / 16) * 16;
        if (at < bytes) copy16(panel + place(at), from + at / 2, min(16, bytes - at));
    }
#elif B_LOAD == 1
    constexpr int kEights = COLUMNS / 8;
    for (int i = threadIdx.x; i < kLines * kEights; i += kThreads) {
        const int line = (i / kEights + turn) % kLines, eight = i % kEights;
        if (line < lines && column0 + 8 * eight < b.n)
            copy16(panel + place(line * kLineBytes + eight * 16), from + line * b.row + 8 * eight, 16);
    }
#else
    const int real = int(min(Count(COLUMNS), b.n - column0));
    for (int i = threadIdx.x; i < lines * real; i += kThreads) {
        const int line = i % lines, c = i / lines;
        const u32 at = panel + place(line * kLineBytes + c * 2);
        const unsigned short x = from[line * b.row + c * b.column];
        if (kOneElement) asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(low_of<Kind::ELEMENT>(x)) : "memory");
        else asm volatile("st.shared.u16 [%0], %1;" ::"r"(at), "h"(x) : "memory");
    }
#endif
    if (kCopied) copy_commit();
}
__device__ inline void fetch_panels(u32 panels, const Right& b, int rank, Count column0) {
#pragma unroll
    for (int h = 0; h < HELD; ++h) fetch_panel(panels + h * kPanelBytes, b, rank + h, column0);
}
#endif

// A line, or half of one of 16 elements: pairs of elements, or a single one in single precision.
struct Line {
    static constexpr int kElements = COLUMNS == 16 ? 8 : COLUMNS;
    u32 pairs[kOneElement ? 1 : kElements / 2];

    __device__ void load(u32 at) {
        if constexpr (kElements == 8)
            asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                         : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3]) : "r"(at));
        else if constexpr (kElements == 4)
            asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(pairs[0]), "=r"(pairs[1]) : "r"(at));
        else
            asm volatile("ld.shared.u32 %0, [%1];" : "=r"(pairs[0]) : "r"(at));
    }
    __device__ void add(float* acc, float value) const {
        if constexpr (kOneElement)
            acc[0] += value * __uint_as_float(pairs[0]);
        else
#pragma unroll
            for (int c = 0; c < kElements; ++c)
                acc[c] += value * (c % 2 ? high_of<Kind::ELEMENT>(pairs[c / 2]) : low_of<Kind::ELEMENT>(pairs[c / 2]));
    }
};
