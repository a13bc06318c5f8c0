// group_gate: from the warpgroup with rows of what is gated to the one with those of the gate.
//
// Both have the same elements of their 64 rows in the same registers.  So what one gives lies thread by thread in
// shared memory, in pieces of kPiece columns, 16 bytes of a thread behind those of the one before:
//
//   [kPiece / 8] [128 threads] [4]   float
//
// The two take turns by a pair of barriers, whose other side does not wait: kWanted, the piece before has been read,
// and kGiven, this one is there.
#pragma once
#include "hopper_store.cuh"

class GroupGate {
  public:
    static constexpr int kPiece = kStagingBytes / (64 * 4);  // columns

    // `exchange`: kStagingBytes of shared memory.
    __device__ explicit GroupGate(u32 exchange) : at_(exchange + threadIdx.x % 128 * 16) {}

    template <class Value> __device__ void give(const Value (&x)[kPiece / 2]) const {
        group_sync(kWanted, 256);
#pragma unroll
        for (int i = 0; i < kPiece / 2; i += 4)
            asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};"
                         ::"r"(at_ + i * 512), "f"(float(x[i])), "f"(float(x[i + 1])), "f"(float(x[i + 2])),
                           "f"(float(x[i + 3])) : "memory");
        arrive(kGiven);
    }
    __device__ void take(float (&x)[kPiece / 2]) const {
        arrive(kWanted);
        group_sync(kGiven, 256);
#pragma unroll
        for (int i = 0; i < kPiece / 2; i += 4) {
            const uint4 four = load_shared4(at_ + i * 512);
            x[i] = __uint_as_float(four.x), x[i + 1] = __uint_as_float(four.y);
            x[i + 2] = __uint_as_float(four.z), x[i + 3] = __uint_as_float(four.w);
        }
    }

  private:
    enum Barrier { kWanted = 3, kGiven = 4 };  // 1 and 2 are those within the warpgroups

    __device__ static void arrive(Barrier barrier) { asm volatile("bar.arrive %0, 256;" ::"r"((u32)barrier) : "memory"); }

    u32 at_;
};
