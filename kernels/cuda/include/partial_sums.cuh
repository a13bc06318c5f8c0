// partial_sums: how blocks that share a tile add up, in a fixed order, through global memory.
//
// Every block has one slot of BLOCK_M * BLOCK_N sums and a flag for each consumer warpgroup.  It gives away the sums of
// at most one part of a tile in a launch: its warpgroups write them to the slot (`give`) and set their flags
// (`publish`).  The block that finishes the tile waits for the flags (`await`), clears them for the next launch, and
// adds the sums.
//
// A block waits only for blocks of lower numbers.  The hardware starts those first, and the grid has at most one
// block for each multiprocessor, so the blocks that it waits for are running or have ended.
#pragma once
#include "wgmma_sp.cuh"

struct Workspace {
    Sum* sums;   // [blocks, consumers, row_blocks, BLOCK_N / 8, 128 threads, 4]
    u32* flags;  // [blocks, consumers]; zero between launches
};

template <int row_blocks, int consumers> class PartialSums {
  public:
    __device__ explicit PartialSums(const Workspace& workspace) : workspace_(workspace) {}

    // Put `count` sums of this thread, from sum `first` of row block `r` on, into this block's slot.
    template <int count> __device__ void give(const Sum (&sums)[count], int r, int first) const {
        int4* slot = slot_of(blockIdx.x);
#pragma unroll
        for (int i = 0; i < count; i += 4)
            slot[vector(r, first + i)] = {bits(sums[i]), bits(sums[i + 1]), bits(sums[i + 2]), bits(sums[i + 3])};
    }
    // After the last give(): all threads' sums can be seen before the flag.
    __device__ void publish() const {
        __threadfence();
        sync();
        if (threadIdx.x % 128 == 0) set_flag(flag_of(blockIdx.x), 1);
    }

    // Wait for the sums of the `helpers` blocks before this one.
    __device__ void await(int helpers) const {
        for (int helper = 1; helper <= helpers; helper++) {
            u32* flag = flag_of(blockIdx.x - helper);
            wait_flag(flag);
            sync();  // all have seen it
            if (threadIdx.x % 128 == 0) set_flag(flag, 0);
        }
    }
    // Add them to `count` sums of this thread, from sum `first` of row block `r` on.
    template <int count> __device__ void add(Sum (&sums)[count], int helpers, int r, int first) const {
        for (int helper = 1; helper <= helpers; helper++) {
            const int4* slot = slot_of(blockIdx.x - helper);
            sync();  // keeps the loads of the next sums, and their registers, from being drawn here
#pragma unroll
            for (int i = 0; i < count; i += 4) {
                const int4 x = __ldcg(slot + vector(r, first + i));
                sums[i] += sum(x.x), sums[i + 1] += sum(x.y), sums[i + 2] += sum(x.z), sums[i + 3] += sum(x.w);
            }
        }
    }

  private:
#if FAMILY == 1
    __device__ static int bits(Sum x) { return x; }
    __device__ static Sum sum(int x) { return x; }
#else
    __device__ static int bits(Sum x) { return __float_as_int(x); }
    __device__ static Sum sum(int x) { return __int_as_float(x); }
#endif
    // Where sums i to i + 3 of row block r lie, from the thread's place in the slot on, in vectors of 16 bytes.
    __device__ static int vector(int r, int i) { return (r * BLOCK_N / 8 + i / 4) * 128; }
    __device__ static void sync() { group_sync(1 + threadIdx.x / 128, 128); }

    __device__ int4* slot_of(int block) const {
        const long long first = ((long long)block * consumers + threadIdx.x / 128) * (row_blocks * BLOCK_N / 8) * 128;
        return reinterpret_cast<int4*>(workspace_.sums) + first + threadIdx.x % 128;
    }
    __device__ u32* flag_of(int block) const { return workspace_.flags + block * consumers + threadIdx.x / 128; }

    const Workspace& workspace_;
};
