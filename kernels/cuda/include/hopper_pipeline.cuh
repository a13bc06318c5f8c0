// hopper_pipeline: a ring of shared-memory stages between one producer thread and the consumer warpgroups.
//
//   barrier    completes when            arrivals
//   full[s]    stage s has been filled   one by the producer, plus the bytes that the TMA delivers
//   empty[s]   stage s may be refilled   one by every warp that multiplies the stage, of every block of the cluster,
//                                        because a multicast writes into all of them
//   passed     the next turn may begin   one by every warp of the warpgroup whose turn it was (class Turns)
//
// In pass p through the ring, consumers wait for phase p of full[s], which has parity p & 1.  The producer waits for
// phase p - 1 of empty[s]; in the first pass that counts as complete already.
#pragma once
#include "hopper_ptx.cuh"

// A position in a ring of `size` stages; `phase` flips whenever the ring has been walked through.
template <int size> struct Cursor {
    int stage = 0;
    u32 phase = 0;
    __device__ void advance() {
        if (++stage == size) {
            stage = 0;
            phase ^= 1;
        }
    }
};

template <int stages, int consumer_warps, int cluster> class Pipeline {
  public:
    using Position = Cursor<stages>;
    static constexpr int bytes = 2 * stages * 8;

    __device__ explicit Pipeline(u32 storage) : full_(storage), empty_(storage + stages * 8) {}

    __device__ void init() const {  // by one thread, before a block or cluster barrier
        for (int s = 0; s < stages; s++) {
            barrier_init(full_ + 8 * s, 1);
            barrier_init(empty_ + 8 * s, consumer_warps * cluster);
        }
        barrier_init_fence();
    }

    // Producer: wait until the stage is free, then announce `count` bytes on the returned barrier.
    __device__ u32 acquire(const Position& at, u32 count) const {
        barrier_wait(empty_ + 8 * at.stage, at.phase ^ 1);
        barrier_expect(full_ + 8 * at.stage, count);
        return full_ + 8 * at.stage;
    }
    // Consumers: wait for the bytes.
    __device__ void wait(const Position& at) const { barrier_wait(full_ + 8 * at.stage, at.phase); }
    // Give the stage back when its instructions have finished; by all lanes of every consumer warp, of which lane i
    // tells block i of the cluster.
    __device__ void release(int stage) const {
        const u32 lane = threadIdx.x % 32;
        if constexpr (cluster == 1) {
            if (lane == 0) barrier_arrive(empty_ + 8 * stage);
        } else {
            if (lane < cluster) barrier_arrive_remote(empty_ + 8 * stage, lane);
        }
    }

  private:
    u32 full_, empty_;
};

// Warpgroups that take tiles in turn (ping-pong).  Turn t may wait for its first stage when turn t - 1 has waited for
// its last.  A barrier has only a parity, which distinguishes a pass through the ring from the one before but not from
// earlier ones; a warpgroup that waited too early might mistake one for another.
class Turns {
  public:
    static constexpr int bytes = 8;

    __device__ explicit Turns(u32 storage) : passed_(storage) {}

    __device__ void init() const { barrier_init(passed_, 4); }
    __device__ void await(int turn) const {
        if (turn > 0) barrier_wait(passed_, (turn - 1) & 1);
    }
    __device__ void pass() const {
        if (threadIdx.x % 32 == 0) barrier_arrive(passed_);
    }

  private:
    u32 passed_;
};
