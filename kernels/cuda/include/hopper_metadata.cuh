// hopper_metadata: the metadata words of a thread, from an atom of 64 rows in shared memory.
//
// Atoms hold the codes in the order in which warpgroups take them (sparse24/_spec.py): 64 rows by 128
// columns of A (TF32: 64 columns), 1024 bytes.  A thread reads two 32-bit words for one atom of k:
//
//   16-bit, TF32  four instructions; each takes the words of two lanes of every quad, and its selector
//                 says which two: lanes 0 and 1 hold words 0 and 1 for the first two instructions
//                 (selector 0), lanes 2 and 3 hold words 2 and 3 for the last two (selector 1)
//   8-bit         two instructions; each takes the words of all four lanes
//
// Source: PTX ISA, wgmma.mma_async.sp, sparse matrix storage.
#pragma once
#include "hopper_ptx.cuh"
#include "wgmma_sp.cuh"

constexpr int kAtomM = 64;
constexpr int kAtomK = FAMILY == 32 ? 64 : 128;
constexpr int kAtomBytes = 1024;
constexpr bool kBytes = FAMILY == 8 || FAMILY == 1;  // 8-bit elements

// Offset of this thread's first word inside an atom.
__device__ inline u32 metadata_offset() {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, g = lane / 4, t = lane % 4;
    if constexpr (kBytes) return 16 * (16 * warp + g + 8 * (t & 1)) + 4 * (t >> 1);
    return 16 * g + 128 * (t & 1) + 256 * warp + 8 * (t >> 1);
}

// The words of `count` 64-row blocks for one atom of k, or for `atoms` that follow one another.
//
// Instructions read their word while they run, and the compiler does not know it: it may give the
// register to something else as soon as the instruction is issued (seen in machine code, and
// in wrong sums).  So a set is loaded anew only after the group that took it has been waited for;
// `hold`, placed after that wait, is a use that keeps its registers until then.
template <int count, int atoms = 1> struct Metadata {
    u32 words[count][2 * atoms];

    __device__ void clear() {
#pragma unroll
        for (int r = 0; r < count; r++)
#pragma unroll
            for (int i = 0; i < 2 * atoms; i++) words[r][i] = 0;
    }
    // `pitch`: from one atom of k to the next.
    __device__ void load(u32 from, u32 pitch = 0) {
#pragma unroll
        for (int r = 0; r < count; r++)
#pragma unroll
            for (int i = 0; i < atoms; i++) load_two(&words[r][2 * i], from + r * kAtomBytes + i * pitch);
    }
    // A use that never happens: `never` is not 1, which the compiler cannot know.
    __device__ void hold(u32 never) const {
        u32 x = 0;
#pragma unroll
        for (int r = 0; r < count; r++)
#pragma unroll
            for (int i = 0; i < 2 * atoms; i++) x ^= words[r][i];
        asm volatile("{ .reg .pred p; setp.eq.u32 p, %1, 1; @p st.shared.u32 [%1], %0; }"
                     ::"r"(x), "r"(never) : "memory");
    }

  private:
    __device__ static void load_two(u32* to, u32 from) {
        if constexpr (kBytes) {
            to[0] = load_shared(from), to[1] = load_shared(from + 8);
        } else {
            const uint2 x = load_shared2(from);
            to[0] = x.x, to[1] = x.y;
        }
    }
};
