// copy_ring: the stages of a product, through a ring in shared memory that cp.async fills ahead of their use, and how
// a stage is filled with few registers.
//
// Compiled with STAGES, the depth of the ring; kStageBytes is the size of a stage.
#pragma once
#include "sparse_tile.cuh"

// Calls use(address of stage i) for i = 0, 1, ... below `count`, after fill(its address, i).  By all threads of the
// block; the ring is free for other use afterwards.
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

// Lines from `first` on of a staged tile of `all` lines: of each that is `valid`, the bytes from `at` on up to
// `length`, and zeros behind them.  A thread copies the same 16 bytes of lines that are `step` apart.
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
