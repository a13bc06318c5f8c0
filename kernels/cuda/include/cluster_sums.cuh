// cluster_sums: how the K_PARTS blocks of a cluster, each of which has multiplied a part of k, add up their sums of one
// tile.
//
// Chunks of the tile (64 rows by kChunk columns) are dealt to the blocks in turn.  Once no block needs what it has
// fetched any more (`meet`), each sends its sums of the other blocks' chunks to their owners, where they take the place
// of the ring of stages (`give`, by st.async).  An owner's barrier, of one phase, counts the bytes (`await`).  It adds
// what it has received to its own sums, in the order of the ranks: the same launch gives the same bits.  A block may
// then end: all that is sent to it has arrived, and what it sends goes to blocks that wait for it.
// Source: PTX ISA, st.async.
#pragma once
#include "hopper_store.cuh"

template <int row_blocks, int consumers> class ClusterSums {
    static constexpr int kOfBlock = BLOCK_N / kChunk;                      // chunks of 64 rows
    static constexpr int kChunks = consumers * row_blocks * kOfBlock;      // of the tile
    static constexpr int kOwned = (kChunks + K_PARTS - 1) / K_PARTS;       // of a block, at most
    static constexpr u32 kBytes = 64 * kChunk * sizeof(Sum);               // of a chunk

  public:
    static constexpr u32 bytes = (K_PARTS - 1) * kOwned * kBytes;

    // `room`: `bytes` of shared memory, those of the ring and, in sparse_mixed.cu, of its slots; `barrier`: 8 bytes of
    // its own.
    __device__ ClusterSums(u32 room, u32 barrier, u32 rank) : room_(room), barrier_(barrier), rank_(rank) {}

    __device__ void init() const {  // by one thread, before a cluster barrier
        barrier_init(barrier_, 1);
        barrier_init_fence();
        barrier_expect(barrier_, (K_PARTS - 1) * ((kChunks + K_PARTS - 1 - rank_) / K_PARTS) * kBytes);
    }
    // By all warps of all blocks, when they need the ring no more.
    __device__ void meet() const {
        __syncwarp();
        cluster_meet();
    }
    // Send the sums of row block `r` to their owners.
    __device__ void give(const Sum (&d)[BLOCK_N / 2], int r) const {
#pragma unroll
        for (int chunk = 0; chunk < kOfBlock; chunk++) {
            const u32 index = index_of(r, chunk), owner = index % K_PARTS;
            if (owner == rank_) continue;
            const u32 to = remote_address(place(index / K_PARTS, rank_ - (rank_ > owner)), owner);
            const u32 counter = remote_address(barrier_, owner);
#pragma unroll
            for (int i = 0; i < kChunk / 2; i += 4) {
                const Sum* x = &d[chunk * kChunk / 2 + i];
                store_remote(to + i * 512, bits(x[0]), bits(x[1]), bits(x[2]), bits(x[3]), counter);
            }
        }
    }
    __device__ void await() const { barrier_wait(barrier_, 0); }
    // If this block owns the chunk of row block `r` that begins at sum `first`, add what the others sent to `sums`;
    // false if another block owns it.
    __device__ bool add(Sum (&sums)[kChunk / 2], int r, int first) const {
        const u32 index = index_of(r, first / (kChunk / 2));
        if (index % K_PARTS != rank_) return false;
#pragma unroll
        for (int part = 0; part < K_PARTS - 1; part++)
#pragma unroll
            for (int i = 0; i < kChunk / 2; i += 4) {
                const uint4 x = load_shared4(place(index / K_PARTS, part) + i * 512);
                sums[i] += sum(x.x), sums[i + 1] += sum(x.y), sums[i + 2] += sum(x.z), sums[i + 3] += sum(x.w);
            }
        return true;
    }

  private:
    __device__ static u32 index_of(int r, int chunk) {
        return (threadIdx.x / 128 * row_blocks + r) * kOfBlock + chunk;
    }
    // Where this thread's first four sums of a chunk lie; the next four are 2048 bytes further.
    __device__ u32 place(u32 owned, u32 part) const {
        return room_ + (part * kOwned + owned) * kBytes + threadIdx.x % 128 * 16;
    }
#if FAMILY == 1
    __device__ static u32 bits(Sum x) { return x; }
    __device__ static Sum sum(u32 x) { return x; }
#else
    __device__ static u32 bits(Sum x) { return __float_as_uint(x); }
    __device__ static Sum sum(u32 x) { return __uint_as_float(x); }
#endif

    u32 room_, barrier_, rank_;
};
