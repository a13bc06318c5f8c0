// cluster_shares: the blocks of a cluster, which hold sums of the same elements of the result, exchange them through
// distributed shared memory, and each adds up one share.  A cluster may be a single block.
//
// The sums are divided into pieces: piece i * tiles + j is what all `threads` threads hold of tile j in array i, four
// sums each.  Every block owns the same number of pieces.  A thread has the same elements of the result in every
// block, so it adds only what the threads of its number have sent, in the order of the ranks: the same bits every time.
//
// A block has one barrier, whose single phase counts the bytes that the other blocks send (st.async).  A block may send
// only after await(): until then the barriers of other blocks may not be there.
// Source: PTX ISA, st.async.
#pragma once
#include "hopper_ptx.cuh"

template <int tiles, int arrays, int threads, int blocks> class ClusterShares {
    static constexpr u32 kPieceBytes = threads * sizeof(float4);

  public:
    static constexpr int kShare = tiles * arrays / blocks;  // pieces of a block
    static constexpr u32 kBytes = (blocks - 1) * kShare * kPieceBytes;
    static_assert(tiles * arrays % blocks == 0);

    // `room`: kBytes of shared memory that nothing else uses, for what the other blocks send; then 8 for the barrier.
    __device__ explicit ClusterShares(u32 room) : room_(room), rank_(blocks > 1 ? cluster_rank() : 0) {}

    __device__ void init() const {  // by one thread, before it calls arrive()
        if (blocks == 1) return;
        barrier_init(room_ + kBytes, 1);
        barrier_init_fence();
        barrier_expect(room_ + kBytes, kBytes);
    }
    // Say that this block can receive (arrive), and wait until all blocks can (await); by all threads, each once.  Relaxed,
    // because init() has a fence of its own: to release means to wait until the whole GPU sees all writes of the block.
    __device__ static void arrive() {
        if (blocks > 1) asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    }
    __device__ static void await() {
        if (blocks > 1) asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
    }
    __device__ int first() const { return rank_ * kShare; }  // piece of the block's own

    // Send the others their pieces.
    __device__ void give(const float (&sums)[arrays][4 * tiles]) const {
#pragma unroll
        for (int piece = 0; piece < tiles * arrays; piece++) {
            const u32 owner = piece / kShare;
            const float4 x = held(sums, piece);
            if (owner == rank_) continue;
            store_remote(remote_address(place(piece, rank_, owner), owner), __float_as_uint(x.x), __float_as_uint(x.y),
                         __float_as_uint(x.z), __float_as_uint(x.w), remote_address(room_ + kBytes, owner));
        }
    }
    // Wait for the other blocks' sums; then call act(number of a piece within the share, four sums) for the block's
    // share.
    template <class Act> __device__ void collect(const float (&sums)[arrays][4 * tiles], Act act) const {
        if (blocks > 1) barrier_wait(room_ + kBytes, 0);
#pragma unroll
        for (int piece = 0; piece < tiles * arrays; piece++) {
            const float4 own = held(sums, piece);
            if (piece / kShare != rank_) continue;
            float4 all = {0, 0, 0, 0};
#pragma unroll
            for (u32 rank = 0; rank < blocks; rank++) {
                const float4 x = rank == rank_ ? own : sent(piece, rank);
                all.x += x.x, all.y += x.y, all.z += x.z, all.w += x.w;
            }
            act(piece % kShare, all);
        }
    }

  private:
    // This thread's four sums of a piece.  Read before any branch: the compiler would merge branches that read different
    // pieces, index the sums by the piece's number, and so keep them on a stack.
    __device__ static float4 held(const float (&sums)[arrays][4 * tiles], int piece) {
        const float* x = &sums[piece / tiles][piece % tiles * 4];
        return {x[0], x[1], x[2], x[3]};
    }
    // Where `owner` keeps this thread's four sums of a piece from `sender`; the owner itself has no place.
    __device__ u32 place(int piece, u32 sender, u32 owner) const {
        const u32 share = sender - (sender > owner);
        return room_ + (share * kShare + piece % kShare) * kPieceBytes + threadIdx.x % threads * sizeof(float4);
    }
    __device__ float4 sent(int piece, u32 sender) const {
        const uint4 x = load_shared4(place(piece, sender, rank_));
        return {__uint_as_float(x.x), __uint_as_float(x.y), __uint_as_float(x.z), __uint_as_float(x.w)};
    }

    u32 room_, rank_;
};
