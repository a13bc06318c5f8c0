// mma_ring: the product of a tile by mma.sp, through a ring of stages that the warps fill themselves.
//
// Compiled with the macros of sparse_tile and tile_store, with WGMMA 0.  What a warp does in each of the steps of a
// stage, if there are four:
//
//   step        0            1            2            3 (last)          0 of the next stage
//   multiplies  step 0       1            2            3                 0
//   loads       1            2            3            0 of the next     1
//   copies      a third of the stage that comes STAGES - 1 later         ...
//
// Warps do not meet, so one may be up to a stage behind another one.  Every stage has two barriers:
//
//   barrier   completes when             arrivals
//   full      the stage has been filled  one by every thread, when its copies have arrived; without B_ASYNC
//                                        another one, when it has stored its elements of b
//   empty     its place may be refilled  one by every warp, when it has read the whole stage
//
// Parities are those of hopper_pipeline.cuh.
// Source: PTX ISA, mbarrier, cp.async.mbarrier.arrive.
#pragma once
#include "mma_fragments.cuh"
#include "tile_copies.cuh"
#include "tile_store.cuh"

// The memory of a block: its stages, or the sums that take their place, and the barriers behind.
constexpr int kRingBytes = STAGES * kStageBytes, kSumsBytes = WARPS_K * kPartial * sizeof(Sum);
constexpr int kBarriersAt = kRingBytes > kSumsBytes ? kRingBytes : kSumsBytes;

// Tiles that are bound by the tensor cores.  Those that are bound by memory are faster with one __syncthreads for each
// stage (run_stages, copy_ring.cuh).  A ring of two stages is too short: a stage would be asked for only while the one
// before it is multiplied.
constexpr bool kIsLarge = TILE_N >= 64 && STAGES > 2;

class RingBarrier {
  public:
    explicit RingBarrier(unsigned address) : at_(address) {}

    void init(int arrivals) const { asm volatile("mbarrier.init.shared.b64 [%0], %1;" :: "r"(at_), "r"(arrivals) : "memory"); }
    void arrive() const {
        asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" :: "r"(at_) : "memory");
    }
    // Arrives once all copies that this thread has asked for are there; `noinc`: as one of the expected arrivals.
    void arrive_after_copies() const {
        asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" :: "r"(at_) : "memory");
    }
    // Waits until the phase of this parity is complete; test_wait, as sm_80 has no try_wait.
    void wait(unsigned parity) const {
        asm volatile("{ .reg .pred over;\n"
                     "again: mbarrier.test_wait.parity.shared.b64 over, [%0], %1;\n"
                     "@!over bra again; }" :: "r"(at_), "r"(parity) : "memory");
    }

  private:
    unsigned at_;
};

inline void clear(Sums& sums) {
#pragma unroll
    for (int tile = 0; tile < kTilesM; ++tile)
#pragma unroll
        for (int f = 0; f < kTilesN; ++f)
#pragma unroll
            for (int q = 0; q < 4; ++q) sums[tile][f][q] = 0;
}

// Two barriers for every stage: `full` ones first, then `empty` ones.
class MmaRing {
    // A place in the ring; `phase` flips whenever the ring has been walked through.
    struct Slot {
        int number = 0;
        unsigned phase = 0;
        void advance() {
            if (++number == STAGES) number = 0, phase ^= 1;
        }
    };

  public:
    // By all threads of the block.
    explicit MmaRing(char* shared) : stages_(shared), barriers_(shared_address(shared + kBarriersAt)) {
        if (threadIdx.x == 0)
            for (int slot = 0; slot < STAGES; ++slot) {
                full(slot).init(kThreads * (B_ASYNC ? 1 : 2));
                empty(slot).init(kWarps);
            }
        __syncthreads();
    }

    // Adds the products of the next `count` stages of `copies` to the sums.  With `by_stage` the tensor cores sum
    // within a stage only, and stages are added by float32 additions.  By all threads of the block; the memory of the
    // stages is free for other use afterwards.
    template <bool by_stage = false> void multiply(Sums& sums, int count, TileCopies& copies) {
        const Lane w;
        Slot ahead = at_;
#pragma unroll
        for (int i = 0; i < STAGES - 1; ++i) {
            empty(ahead.number).wait(ahead.phase ^ 1);
            copies.part<1>(address(ahead.number), 0);
            finish(copies, ahead);
        }
        full(at_.number).wait(at_.phase);
        Fragments fragments;
        fragments.load(address(at_.number), w);
        Sums products = {};
        Sums& target = by_stage ? products : sums;
        for (int i = 0; i < count; ++i) {
            const int slot = at_.number;
            empty(ahead.number).wait(ahead.phase ^ 1);
#pragma unroll
            for (int step = 0; step < kSteps - 1; ++step) {
                copies.part<kSteps - 1>(address(ahead.number), step);
                fragments.multiply(target, step, address(slot), w);
            }
            finish(copies, ahead);
            release(slot, w);
            at_.advance();
            full(at_.number).wait(at_.phase);
            fragments.multiply(target, kSteps - 1, address(at_.number), w);
            if constexpr (by_stage) {
                add(sums, products);
                clear(products);
            }
        }
        drain(w);
    }

  private:
    RingBarrier full(int slot) const { return RingBarrier(barriers_ + 8 * slot); }
    RingBarrier empty(int slot) const { return RingBarrier(barriers_ + 8 * (STAGES + slot)); }
    unsigned address(int slot) const { return shared_address(stages_) + slot * kStageBytes; }

    void finish(TileCopies& copies, Slot& at) const {
        copies.finish(stages_ + at.number * kStageBytes);
        full(at.number).arrive_after_copies();
        if (!B_ASYNC) full(at.number).arrive();  // for what was stored
        at.advance();
    }
    void release(int slot, const Lane& w) const {
        __syncwarp();
        if (w.lane == 0) empty(slot).arrive();
    }
    // Passes over the stages behind the last one, which have been filled with zeros.
    void drain(const Lane& w) {
#pragma unroll
        for (int i = 0; i < STAGES - 1; ++i) {
            full(at_.number).wait(at_.phase);
            release(at_.number, w);
            at_.advance();
        }
        __syncthreads();
    }

    char* stages_;
    unsigned barriers_;
    Slot at_;
};
