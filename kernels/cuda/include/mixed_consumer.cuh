// mixed_consumer: a warpgroup of sparse_mixed.cu or grouped_mixed.cu, which multiplies the stages of a tile by elements of A that it widens.
#pragma once
#include "wgmma_sp_registers.cuh"

// One consumer warpgroup: its accumulators and its place in the ring.
class Consumer {
  public:
    Sum d[kRowBlocks][BLOCK_N / 2];

    __device__ Consumer(const Ring& ring, u32 shared, int group)
        : ring_(ring), slice_(group * kRowBlocks * 64), shared_(shared) {}

    // d = A @ b of one tile over `slices` of k, from the stage of the ring on where the last tile ended.
    __device__ void multiply(int slices) {
        multiply_slice<true>();
        for (int slice = 1; slice < slices; slice++) multiply_slice<false>();
        group_wait<0>();
        odd_.hold();
        ring_.release(previous_);
        previous_ = -1;
#pragma unroll
        for (int r = 0; r < kRowBlocks; r++) pin(d[r]);
    }

  private:
    // One group of instructions for each stage.  It still runs while the fragments of the next stage are made.
    // A `fresh` slice overwrites the sums.
    template <bool fresh> __device__ void multiply_slice() {
        static_assert(kParts == 2);
        multiply_stage<0, fresh>(even_, odd_);
        multiply_stage<1, false>(odd_, even_);
        slot_ = slot_ + 1 == kSlots ? 0 : slot_ + 1;
    }
    template <int part, bool fresh> __device__ void multiply_stage(Fragments& now, const Fragments& last) {
        ring_.wait(at_);
        slice_.load<part>(now, shared_ + kSlotsAt + slot_ * kSlotBytes);
        wgmma_fence();
        issue<fresh>(now);
        group_commit();
        group_wait<1>();
        if (previous_ >= 0) {
            last.hold();
            ring_.release(previous_);
        }
        previous_ = at_.stage;
        at_.advance();
    }
    template <bool fresh> __device__ void issue(const Fragments& from) {
        const u64 b = kBDescriptor | descriptor_start(shared_ + at_.stage * kStageBytes);
#pragma unroll
        for (int i = 0; i < kSteps; i++) {
            const u64 b_step = b + (B_ROW_MAJOR ? i * 4096 : i * 64) / 16;
#pragma unroll
            for (int r = 0; r < kRowBlocks; r++)
                wgmma_sp_registers(d[r], from.a[r][i], b_step, from.codes[r][i], !(fresh && i == 0));
        }
    }

    const Ring& ring_;
    const Slice slice_;
    Fragments even_, odd_;
    u32 shared_;
    typename Ring::Position at_;
    int slot_ = 0, previous_ = -1;
};
