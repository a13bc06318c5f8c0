// gather_pipeline: a ring of shared-memory stages that the TMA fills alone, or together with a warpgroup of producers,
// which copy row by row (cp.async).
//
//   barrier   arrivals
//   full[s]   129: one by the leader, who announces what the TMA delivers, and one by every producer thread
//             when its own copies have arrived; in a stage without such copies the leader arrives for all
//   empty[s]  one by every consumer warp
//
// The leader is one elected lane, of a warp that the caller chooses.  Phases and parities as in hopper_pipeline.cuh.
// Source: PTX ISA, cp.async.mbarrier.arrive, elect.sync.
#pragma once
#include "hopper_pipeline.cuh"

template <int stages, int consumer_warps> class GatherPipeline {
    static constexpr int kProducers = 128;

  public:
    using Position = Cursor<stages>;
    static constexpr int bytes = 2 * stages * 8;

    __device__ explicit GatherPipeline(u32 storage) : full_(storage), empty_(storage + stages * 8) {}

    __device__ void init() const {  // by one thread, before a block or cluster barrier
        for (int s = 0; s < stages; s++) {
            barrier_init(full_ + 8 * s, 1 + kProducers);
            barrier_init(empty_ + 8 * s, consumer_warps);
        }
        barrier_init_fence();
    }

    // Producers: wait until the stage is free; returns the barrier that counts its bytes.
    __device__ u32 acquire(const Position& at) const {
        barrier_wait(empty_ + 8 * at.stage, at.phase ^ 1);
        return full_ + 8 * at.stage;
    }
    // By the leader: the TMA will deliver `count` bytes, and nothing else will come if `alone`.
    __device__ static void announce(u32 barrier, u32 count, bool alone) {
        barrier_expect(barrier, count);
        if (alone) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;"
                                ::"r"(barrier), "n"(kProducers) : "memory");
    }
    // By every producer thread of a gathered stage, after its copies: arrives when they are there.
    __device__ static void follow(u32 barrier) {
        asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
    }

    // Consumers: wait for the bytes; give the stage back (by all lanes of every consumer warp).
    __device__ void wait(const Position& at) const { barrier_wait(full_ + 8 * at.stage, at.phase); }
    __device__ void release(int stage) const {
        if (threadIdx.x % 32 == 0) barrier_arrive(empty_ + 8 * stage);
    }

  private:
    u32 full_, empty_;
};

// Copy 16 bytes into shared memory, or store zeros there (`zeros`), or do nothing at all (not `when`).  The test is a
// predicate: with a branch the compiler would compute the address anew for each copy.
__device__ inline void copy16_if(bool when, u32 to, u64 from, bool zeros) {
    asm volatile("{ .reg .pred p, q; setp.ne.u32 p, %2, 0; setp.ne.u32 q, %3, 0;\n"
                 "@q cp.async.cg.shared.global [%0], [%1], 16, p; }"
                 ::"r"(to), "l"(from), "r"((u32)zeros), "r"((u32)when) : "memory");
}

__device__ inline void set_shared(u32 to, u32 x) { asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(x) : "memory"); }
