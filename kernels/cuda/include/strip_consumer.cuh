// strip_consumer: a warpgroup of hybrid_wgmma.cu that multiplies the stages of a piece of a strip.
#pragma once

// One consumer warpgroup: its accumulators and its place in the ring.
class Consumer {
  public:
    Sum d[kRowBlocks][BLOCK_N / 2];

    __device__ Consumer(const Ring& ring, u32 shared, int group) : ring_(ring), shared_(shared), group_(group) {}

    // Begin d = A @ b over the stages of a piece, at the stage of the ring where the last piece ended.
    __device__ void multiply(const Piece& piece) {
        const int atoms = (piece.end - piece.first) / kParts;
        plain_ = piece.plain - piece.first;
        Metadata<kRowBlocks> even, odd;
        even.clear();
        odd.clear();
        multiply_atom<true>(even, odd);
        group_wait<0>();  // the compiler serialises all groups if it sees metadata loaded while this one runs
        if (!IN_STAGE || atoms > 1) give_back();
        for (int atom = 1; atom < atoms; atom++) {
            if (atom % 2)
                multiply_atom<false>(odd, even);
            else
                multiply_atom<false>(even, odd);
        }
    }
    // Wait for what multiply began.
    __device__ void finish() {
        group_wait<0>();
        if (!IN_STAGE) give_back();
#pragma unroll
        for (int r = 0; r < kRowBlocks; r++) pin(d[r]);
    }
    // With IN_STAGE: the memory of the last stage, when no consumer reads it any more.  The consumers may use it until
    // each of them has called leave().
    __device__ u32 last_stage() const {
        group_sync(2 + kConsumers, kProducer);
        return shared_ + previous_ * kStageBytes;
    }
    __device__ void leave() {
        async_proxy_fence();  // the TMA will write where threads have written
        __syncwarp();
        give_back();
    }

  private:
    // One group of instructions for each stage.  The last group still runs when the next atom begins, so the metadata
    // of `last` must stay in registers until then.  A `fresh` atom overwrites the sums.
    template <bool fresh> __device__ void multiply_atom(Metadata<kRowBlocks>& metadata, const Metadata<kRowBlocks>& last) {
#pragma unroll
        for (int part = 0; part < kParts; part++) {
            ring_.wait(at_);
            if (plain_-- <= 0) async_proxy_fence();  // makes what threads copied visible to the tensor cores
            if (part == 0) fetch(metadata);
            wgmma_fence();
            multiply_stage(metadata, part, part || !fresh);
            group_commit();
            group_wait<1>();
            if (part == 0) last.hold(shared_);
            give_back();
            previous_ = at_.stage;
            at_.advance();
        }
    }
    __device__ void fetch(Metadata<kRowBlocks>& metadata) {
        metadata.load(shared_ + kMetadataAt + slot_ * kMetadataBytes + group_ * kRowBlocks * kAtomBytes + metadata_offset());
        slot_ = slot_ + 1 == kSlots ? 0 : slot_ + 1;
    }
    __device__ void multiply_stage(const Metadata<kRowBlocks>& metadata, int part, u32 keep) {
        const u32 stage = shared_ + at_.stage * kStageBytes;
        const u64 a = kADescriptor | descriptor_start(stage + kBBytes + group_ * kRowBlocks * kRowBlockBytes);
        const u64 b = kBDescriptor | descriptor_start(stage);
#pragma unroll
        for (int step = 0; step < kSteps; step++)
#pragma unroll
            for (int r = 0; r < kRowBlocks; r++) {
                const u64 a_step = a + (r * kRowBlockBytes + step * 32) / 16, b_step = b + step * 4096 / 16;
                if (part)
                    wgmma_sp<1>(d[r], a_step, b_step, metadata.words[r][step], 1);
                else
                    wgmma_sp<0>(d[r], a_step, b_step, metadata.words[r][step], step ? 1 : keep);
            }
    }
    // Give back the stage before this one, if there is one; its instructions have finished.
    __device__ void give_back() {
        if (previous_ >= 0) ring_.release(previous_);
        previous_ = -1;
    }

    const Ring& ring_;
    u32 shared_;
    int group_, plain_ = 0;
    Ring::Position at_;
    int slot_ = 0, previous_ = -1;
};
