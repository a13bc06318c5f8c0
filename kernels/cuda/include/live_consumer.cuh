// live_consumer: a warpgroup of hybrid_wgmma.cu with SKIPS.  It has 64 or 128 rows of a strip, multiplies the stages in
// which they have elements, and passes over the others.
//
// The loop over stages to pass over stands between the instructions, not around them, and every run of stages in which
// the same rows have elements is a loop of its own.  If an instruction stood in a branch, the compiler would insert a
// wait for all instructions there.
#pragma once

class Consumer {
    static constexpr u32 kAll = (1 << kRowBlocks) - 1;  // a bit for each 64 rows

  public:
    Sum d[kRowBlocks][BLOCK_N / 2];

    __device__ Consumer(const Ring& ring, u32 shared, int group) : ring_(ring), shared_(shared), group_(group) {}

    // d = A @ b over the stages of a piece, beginning at the stage of the ring where the last piece ended.
    __device__ void multiply(const Piece& piece) {
        left_ = piece.end - piece.first;
        clear();
        even_ = odd_ = {};  // otherwise the compiler would keep the old ones in registers until here
        u32 live = find();
        while (live) {
            if (live == kAll) live = multiply_run<kAll>();
            if (kRowBlocks == 2 && live == 1) live = multiply_run<1>();
            if (kRowBlocks == 2 && live == 2) live = multiply_run<2>();
        }
    }
    // The sums are there: multiply has waited.
    __device__ void finish() {
#pragma unroll
        for (int r = 0; r < kRowBlocks; r++) pin(d[r]);
    }
    // With IN_STAGE: the memory of the last stage, when no consumer reads it any more.  The consumers may use it until
    // each of them has called leave().
    __device__ u32 last_stage() const {
        group_sync(2 + kConsumers, kProducer);
        return shared_ + last() * kStageBytes;
    }
    __device__ void leave() const {
        async_proxy_fence();  // the TMA will write where threads have written
        __syncwarp();
        ring_.release(last());
    }

  private:
    // The metadata of a stage's instructions.
    struct Words {
        uint2 of[kRowBlocks];
    };

    __device__ void clear() {
#pragma unroll
        for (int r = 0; r < kRowBlocks; r++)
#pragma unroll
            for (int i = 0; i < BLOCK_N / 2; i++) d[r][i] = 0;
    }
    // Wait for the next stage in which these rows have elements; a bit for each 64 rows that do, 0 past the last stage.
    __device__ u32 find() {
        for (; left_ > 0; pass()) {
            ring_.wait(at_);
            const u32 word = load_shared(shared_ + kLiveAt + 4 * at_.stage) >> group_ * kRowBlocks;
            u32 live = 0;
#pragma unroll
            for (int r = 0; r < kRowBlocks; r++)
                live |= __any_sync(~0u, word >> r & 1) ? 1u << r : 0;  // so the compiler knows it is the same in all lanes
            if (live) return live;
            drain();  // gives back the last stage, without which the producers might not go on
            if (!IN_STAGE || left_ > 1) ring_.release(at_.stage);
        }
        return 0;
    }
    // Wait for the instructions, and give back their stage.
    __device__ void drain() {
        group_wait<0>();
        hold(even_);
        hold(odd_);
        give_back();
        running_ = false;
    }
    // Give back the stage before this one, if it was multiplied; its instructions have finished.
    __device__ void give_back() const {
        if (running_ && (!IN_STAGE || left_ > 0)) ring_.release(last());
    }
    __device__ int last() const { return at_.stage == 0 ? STAGES - 1 : at_.stage - 1; }
    __device__ void pass() {
        at_.advance();
        left_--;
        half_ = half_ + 1 == kParts * kSlots ? 0 : half_ + 1;
    }
    // Multiply all stages up to the first in which not just `rows` have elements; returns the rows of that one.
    template <u32 rows> __device__ u32 multiply_run() {
        u32 live;
        while (true) {
            multiply_stage<rows>(even_, odd_);
            if ((live = find()) != rows) break;
            multiply_stage<rows>(odd_, even_);
            if ((live = find()) != rows) break;
        }
        drain();
        return live;
    }
    // One group of instructions, which still runs when the next stage begins.  Its metadata `words` must stay in their
    // registers until it has ended, as must those of the group before it, `last`, up to the wait here.
    template <u32 rows> __device__ void multiply_stage(Words& words, const Words& last) {
        const u32 stage = shared_ + at_.stage * kStageBytes;
        const u64 a = kADescriptor | descriptor_start(stage + kBBytes + group_ * kRowBlocks * kRowBlockBytes);
        const u64 b = kBDescriptor | descriptor_start(stage);
        async_proxy_fence();  // makes what threads copied visible to the tensor cores
        load<rows>(words);
        wgmma_fence();
#pragma unroll
        for (int r = 0; r < kRowBlocks; r++) {
            if (!(rows >> r & 1)) continue;
            const u64 of_rows = a + r * kRowBlockBytes / 16;
            wgmma_sp<0>(d[r], of_rows, b, words.of[r].x, 1);
            wgmma_sp<0>(d[r], of_rows + 32 / 16, b + 4096 / 16, words.of[r].y, 1);
        }
        group_commit();
        group_wait<1>();
        hold(last);
        give_back();
        running_ = true;
        pass();
    }
    // Only lanes 0 and 1 of a quad need words, those of the half atom of this stage, so the selector is always 0.
    // Lanes 2 and 3 read the same words.
    template <u32 rows> __device__ void load(Words& words) const {
        const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
        const u32 of_lane = 16 * (lane / 4) + 128 * (lane & 1) + 256 * warp;
        const u32 of_stage = half_ / kParts * kMetadataBytes + half_ % kParts * 8;
        const u32 from = shared_ + kMetadataAt + of_stage + group_ * kRowBlocks * kAtomBytes + of_lane;
#pragma unroll
        for (int r = 0; r < kRowBlocks; r++)
            if (rows >> r & 1) words.of[r] = load_shared2(from + r * kAtomBytes);
    }
    // A store that never happens, as in hopper_metadata.cuh: a use that keeps the registers up to here.
    __device__ void hold(const Words& words) const {
        u32 x = 0;
#pragma unroll
        for (int r = 0; r < kRowBlocks; r++) x ^= words.of[r].x ^ words.of[r].y;
        asm volatile("{ .reg .pred p; setp.eq.u32 p, %1, 1; @p st.shared.u32 [%1], %0; }"
                     ::"r"(x), "r"(shared_) : "memory");
    }

    const Ring& ring_;
    u32 shared_;
    int group_, left_ = 0;
    Ring::Position at_;
    u32 half_ = 0;  // which half of which metadata buffer
    bool running_ = false;  // instructions of the stage before this one
    Words even_, odd_;
};
