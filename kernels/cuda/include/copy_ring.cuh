// copy_ring: a ring of stages in shared memory that cp.async fills ahead of their use, and how a stage is filled with
// few registers.
//
// Compiled with STAGES, the depth of the ring; kStageBytes is the size of a stage.  All threads copy and all use every
// stage.  Every iteration commits one group of copies, empty ones included, so waiting for all but the last STAGES - 2
// groups means that the stage of this iteration is there.
#pragma once
#include "sparse_tile.cuh"

// For every stage i below `count`, in turn, calls fill(address, i) and, STAGES - 1 stages later, use(address).  By all
// threads of the block; the ring is free for other use afterwards.
template <class Fill, class Use> void through_ring(unsigned ring, int count, Fill fill, Use use) {
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) {
        if (i < count) fill(ring + i * kStageBytes, i);
        commit_copies();
    }
    for (int i = 0, slot = 0, free_slot = STAGES - 1; i < count; ++i) {
        wait_copies<STAGES - 2>();
        __syncthreads();  // stage i is there for all, and nobody reads the one before it any more
        if (i + STAGES - 1 < count) fill(ring + free_slot * kStageBytes, i + STAGES - 1);
        commit_copies();
        use(ring + slot * kStageBytes);
        free_slot = slot;
        slot = slot + 1 == STAGES ? 0 : slot + 1;
    }
    wait_copies<0>();
    __syncthreads();
}

// Copies `lines` lines to a staged tile of `all` lines, from its line `first` on.  Line i begins at `from` + i `pitch`
// and has `length` bytes; those from byte `at` on are copied, 16 `chunks` of them, with zeros behind the end of the
// line.  Lines from number `valid` on become zeros.  A thread copies the same 16-byte chunk of lines that are `step`
// apart.
template <int lines, int all, int chunks>
inline void copy_lines(unsigned to, int first, const char* from, long long pitch, int at, int length, int valid) {
    constexpr int step = kThreads / chunks;
    static_assert(kThreads % chunks == 0 && lines % step == 0);
    const int line = threadIdx.x / chunks, chunk = threadIdx.x % chunks;
    const int bytes = max(0, min(16, length - at - 16 * chunk));
    from += line * pitch + at + 16 * chunk;
#pragma unroll
    for (int i = 0; i < lines; i += step) {
        copy_async(to + place<all, chunks>(first + line + i, chunk), from, line + i < valid ? bytes : 0);
        from += step * pitch;
    }
}
