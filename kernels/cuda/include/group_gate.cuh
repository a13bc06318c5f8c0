// group_gate: hands the sums of the gated projection from warpgroup 1 to warpgroup 0, which has those of the gate.
//
// Both warpgroups hold the same elements of their 64 rows in the same registers.  So a thread gives its sums to the
// thread of the same number, through shared memory, a piece of kPiece columns at a time:
//
//   [kPiece / 8] [128 threads] [4]   float; a thread reads and writes 16 bytes at a time
//
//   barrier   completes when a piece ...   arrivals
//   given     has been written             one by every warp of the giver
//   taken     has been read                one by every warp of the taker
//
// Piece i waits for phase i of `given` before it is read, and for phase i - 1 of `taken` before it is written.
#pragma once
#include "hopper_store.cuh"

class GroupGate {
  public:
    static constexpr int kPiece = kStagingBytes / (64 * 4);  // columns
    static constexpr u32 bytes = 16;

    // `exchange`: kStagingBytes of shared memory; `barriers`: `bytes` of it.
    __device__ GroupGate(u32 exchange, u32 barriers)
        : at_(exchange + threadIdx.x % 128 * 16), given_(barriers), taken_(barriers + 8) {}

    __device__ void init() const {  // by one thread, before a block barrier
        barrier_init(given_, kArrivals);
        barrier_init(taken_, kArrivals);
        barrier_init_fence();
    }
    template <class Value> __device__ void give(const Value (&x)[kPiece / 2]) {
        barrier_wait(taken_, turn_ ^ 1);  // the piece before this one
#pragma unroll
        for (int i = 0; i < kPiece / 2; i += 4)
            asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};"
                         ::"r"(at_ + i * 512), "f"(float(x[i])), "f"(float(x[i + 1])), "f"(float(x[i + 2])),
                           "f"(float(x[i + 3])) : "memory");
        arrive(given_);
    }
    __device__ void take(float (&x)[kPiece / 2]) {
        barrier_wait(given_, turn_);
#pragma unroll
        for (int i = 0; i < kPiece / 2; i += 4) {
            const uint4 four = load_shared4(at_ + i * 512);
            x[i] = __uint_as_float(four.x), x[i + 1] = __uint_as_float(four.y);
            x[i + 2] = __uint_as_float(four.z), x[i + 3] = __uint_as_float(four.w);
        }
        arrive(taken_);
    }

  private:
    static constexpr u32 kArrivals = 4;  // warps

    __device__ void arrive(u32 barrier) {
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
        turn_ ^= 1;
    }

    u32 at_, given_, taken_;
    u32 turn_ = 0;  // parity of the pieces so far
};
