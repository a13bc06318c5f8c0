// hopper_metadata: the metadata words of a thread, from an atom of 64 rows in shared memory.
//
// Atoms hold the codes in the order in which warpgroups take them (sparse24/_spec.py): 64 rows by 128
// columns of A (TF32: 64 columns), 1024 bytes.  For one atom a thread, lane t of quad g of warp w, reads two 32-bit
// words i = 0, 1:
//
//              rows, counted from 16 w              columns of the atom
//   16-bit     g (low half), g + 8 (high half)      32 (2 (t / 2) + i) + 16 (t % 2) + 0 .. 15
//   TF32       the same                             16 (2 (t / 2) + i) +  8 (t % 2) + 0 .. 7
//   8-bit      g + 8 (t % 2)                        64 i + 32 (t / 2) + 0 .. 31
//
//   16-bit, TF32  four instructions for an atom.  Each takes the words of two lanes of every quad; its selector says
//                 which: lanes 0 and 1 for the first two instructions (selector 0), 2 and 3 for the others (selector 1)
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
// Instructions read their metadata word while they run.  The compiler does not know that: it may reuse the register as
// soon as the instruction has been issued (seen in machine code, and in wrong sums).  So a set of words is loaded anew
// only after the group of instructions that takes it has been waited for.  `hold`, placed after that wait, is a use
// that keeps the registers until then.  (It combines the words.  The compiler could do that before the wait, and free
// them; tests/test_compile_checks.py sees in the machine code that it does not.  For words that no `hold`
// follows, as the last ones of a tile, the test alone tells it.)
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
    // A store that never happens: `never`, an aligned shared address, is not 1, which the compiler cannot know.
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
