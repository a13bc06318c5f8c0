// mixed_consumer: a warpgroup of sparse_mixed.cu, which widens the elements of A and multiplies the stages of a tile.
//
// A slot holds the elements of a slice of A, 64 bytes a row, whose 16-byte units are exchanged by the TMA's swizzle of
// 64 bytes, and behind them its codes, 16 bytes a row.  Each unit, and each word of codes, is a step: 32 columns of A.
// Of a step, lane (g, t) of a warp takes rows g and g + 8:
//
//   elements   bytes 2 t, 2 t + 1 and those 8 further
//   codes      the first half of the word if t is even, else the second half (of lanes 2 and 3 none is taken)
#pragma once
#include "widen_bytes.cuh"
#include "wgmma_sp_registers.cuh"

// What instructions read of the registers of a thread, for a stage.  They do so while they run, and the compiler does
// not know that; `hold`, placed after the wait for them, keeps the registers until then.
struct Fragments {
    u32 a[kRowBlocks][kSteps][4], codes[kRowBlocks][kSteps];

    __device__ void hold() const {
#pragma unroll
        for (int r = 0; r < kRowBlocks; r++)
#pragma unroll
            for (int i = 0; i < kSteps; i++) {
                const u32(&x)[4] = a[r][i];
                asm volatile("" ::"r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(codes[r][i]) : "memory");
            }
    }
};

// One consumer warpgroup: its accumulators and its place in the ring.
class Consumer {
  public:
    Sum d[kRowBlocks][BLOCK_N / 2];

    __device__ Consumer(const Ring& ring, u32 shared, int group) : ring_(ring), shared_(shared) {
        const u32 lane = threadIdx.x % 32, t = lane % 4;
        row_ = group * kRowBlocks * 64 + threadIdx.x / 32 % 4 * 16 + lane / 4;
        word_ = 4 * (t / 2);
        halves_ = t % 2 ? 0x7632 : 0x5410;
    }

    // d = A @ b of one tile over `slices` of k, from the stage of the ring on where the last tile ended.
    __device__ void multiply(int slices) {
        multiply_slice<true>();
        for (int slice = 1; slice < slices; slice++) multiply_slice<false>();
        group_wait<0>();
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
        load<part>(now);
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
    template <int part> __device__ void load(Fragments& to) const {
        const u32 slot = shared_ + kSlotsAt + slot_ * kSlotBytes;
#pragma unroll
        for (int r = 0; r < kRowBlocks; r++) {
            const u32 row = row_ + 64 * r, codes = slot + kABytes + row * 16 + part * 8;
            const uint2 upper = load_shared2(codes), lower = load_shared2(codes + 8 * 16);
            to.codes[r][0] = __byte_perm(upper.x, lower.x, halves_);
            to.codes[r][1] = __byte_perm(upper.y, lower.y, halves_);
#pragma unroll
            for (int i = 0; i < kSteps; i++) {
                const u32 unit = (part * kSteps + i) ^ (row / 2 % 4);  // rows 8 further have the same
                load_rows(to.a[r][i], slot + row * kRowOfA + unit * 16 + word_);
            }
        }
    }
    __device__ void load_rows(u32 (&a)[4], u32 from) const {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const u32 at = from + half * 8 * kRowOfA;
            const u32 bytes = __byte_perm(load_shared(at), load_shared(at + 8), halves_);
            a[half] = widen_pair<Kind::STORED, Kind::ELEMENT, false>(bytes);
            a[half + 2] = widen_pair<Kind::STORED, Kind::ELEMENT, true>(bytes);
        }
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
    Fragments even_, odd_;
    u32 shared_, row_, word_, halves_;
    typename Ring::Position at_;
    int slot_ = 0, previous_ = -1;
};
