// live_consumer: a warpgroup of hybrid_wgmma.cu that multiplies 64 rows of a strip by the stages in which they have
// elements, and passes by the others.
//
// What is passed by is a loop of its own between the instructions: the compiler waits for all of them wherever they
// stand in a branch.
#pragma once

class Consumer {
  public:
    Sum d[1][BLOCK_N / 2];

    __device__ Consumer(const Ring& ring, u32 shared, int group) : ring_(ring), shared_(shared), group_(group) {}

    // Begin d = the products of the stages.  The ring goes on where the last work left it.
    __device__ void multiply(const Piece& piece) {
        left_ = piece.end - piece.first;
        plain_ = piece.plain - piece.first;
        clear();
        while (true) {
            if (!find()) break;
            multiply_stage(even_, odd_);
            if (!find()) break;
            multiply_stage(odd_, even_);
        }
    }
    // Wait for what multiply began.
    __device__ void finish() {
        drain();
        pin(d[0]);
    }

  private:
    // The metadata of a stage's two instructions.
    struct Words {
        u32 first, second;
    };

    __device__ void clear() {
#pragma unroll
        for (int i = 0; i < BLOCK_N / 2; i++) d[0][i] = 0;
    }
    // Wait for the next stage in which these rows have elements; false: there is none.
    __device__ bool find() {
        for (; left_ > 0; pass()) {
            ring_.wait(at_);
            const u32 live = load_shared(shared_ + kLiveAt + 4 * at_.stage) >> group_;
            if (__any_sync(~0u, live & 1)) return true;  // the same in all lanes, and known to be
            drain();  // or the stages after it might never come
            ring_.release(at_.stage);
        }
        return false;
    }
    // Wait for the instructions, and give back their stage.
    __device__ void drain() {
        group_wait<0>();
        hold(even_);
        hold(odd_);
        if (previous_ >= 0) ring_.release(previous_);
        previous_ = -1;
    }
    __device__ void pass() {
        at_.advance();
        left_--, plain_--;
        part_ ^= 1;
        if (part_ == 0) slot_ = slot_ + 1 == kSlots ? 0 : slot_ + 1;
    }
    // One group of instructions, of which one still runs when the next stage begins: its words, `last`, must stay.
    __device__ void multiply_stage(Words& words, const Words& last) {
        const u32 stage = shared_ + at_.stage * kStageBytes;
        const u64 a = kADescriptor | descriptor_start(stage + kBBytes + group_ * kRowBlockBytes);
        const u64 b = kBDescriptor | descriptor_start(stage);
        if (plain_ <= 0) async_proxy_fence();  // the tensor cores read what threads have copied
        words = words_of_stage();
        wgmma_fence();
        wgmma_sp<0>(d[0], a, b, words.first, 1);
        wgmma_sp<0>(d[0], a + 32 / 16, b + 4096 / 16, words.second, 1);
        group_commit();
        group_wait<1>();
        hold(last);
        if (previous_ >= 0) ring_.release(previous_);
        previous_ = at_.stage;
        pass();
    }
    // Lanes 2 and 3 of a quad read what lanes 0 and 1 need of either half of an atom, so that the selector is 0.
    __device__ Words words_of_stage() const {
        const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
        const u32 offset = 16 * (lane / 4) + 128 * (lane & 1) + 256 * warp + 8 * part_;
        const uint2 x = load_shared2(shared_ + kMetadataAt + slot_ * kMetadataBytes + group_ * kAtomBytes + offset);
        return {x.x, x.y};
    }
    // A use that never happens, as in hopper_metadata.cuh.
    __device__ void hold(const Words& words) const {
        asm volatile("{ .reg .pred p; setp.eq.u32 p, %1, 1; @p st.shared.u32 [%1], %0; }"
                     ::"r"(words.first ^ words.second), "r"(shared_) : "memory");
    }

    const Ring& ring_;
    u32 shared_;
    int group_, left_ = 0, plain_ = 0;
    Ring::Position at_;
    int part_ = 0, slot_ = 0, previous_ = -1;
    Words even_ = {0, 0}, odd_ = {0, 0};
};
