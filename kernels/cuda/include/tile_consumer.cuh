// tile_consumer: a warpgroup of sparse_wgmma.cu and grouped_wgmma.cu that multiplies the stages of a tile.
#pragma once

// The pieces p of A and q of b whose products make up one of float32: p1 q3, p3 q1, p2 q2, p1 q2, p2 q1 and p1 q1.
// Small ones come first, because the instructions truncate their sums.
constexpr int kProducts = 6;
__device__ constexpr int piece_of_a(int product) { return product == 1 ? 2 : product == 2 || product == 4 ? 1 : 0; }
__device__ constexpr int piece_of_b(int product) { return product == 0 ? 2 : product == 2 || product == 3 ? 1 : 0; }

// One consumer warpgroup: its accumulators and its place in the ring.
class Consumer {
    using Sums = Sum[kRowBlocks][BLOCK_N / 2];

  public:
    Sums d;

    // `part`: which rows of a tile, in units of the 64 kRowBlocks rows of a warpgroup.
    __device__ Consumer(const Ring& ring, u32 shared, int part) : ring_(ring), shared_(shared), part_(part) {}

    // Skip the stages of a tile that another warpgroup multiplies.
    __device__ void skip(int slices) {
        const int stage = at_.stage + slices * kParts;
        at_.phase ^= stage / STAGES & 1;
        at_.stage = stage % STAGES;
        slot_ = (slot_ + slices) % kSlots;
    }

    // Begin d = A @ b of one tile over `slices` of k, at the stage of the ring where the last tile ended.
    __device__ void multiply(int slices) {
        Words even, odd;
        even.clear();
        odd.clear();
        multiply_slice<true>(even, odd);
        drain();  // the compiler serialises all groups if it sees metadata loaded while this one runs
        for (int slice = 1; slice < slices; slice++) {
            if (IN_FLIGHT && slice % 2)
                multiply_slice<false>(odd, even);
            else
                multiply_slice<false>(even, odd);
        }
    }
    // Wait for what multiply began.
    __device__ void finish() {
        drain();
#pragma unroll
        for (int r = 0; r < kRowBlocks; r++) pin(d[r]);
    }

    // Like multiply and finish, but after every kPromoted slices the sums are added to a second set by ordinary float32
    // additions, which round.  The instructions keep only about 14 bits of an fp8 sum (source: sparse_tile.cuh).
    __device__ void multiply_promoted(int slices) {
        Sums total = {};
        for (int slice = 0; slice < slices; slice += kPromoted) {
            multiply(min(kPromoted, slices - slice));
            finish();
            add_to(total);
        }
        take(total);
    }

    // The same for bfloat16 pieces that stand for float32, stage by stage: the instructions truncate all sums.
    __device__ void multiply_pieces(int slices) {
        Sums total = {};
        for (int slice = 0; slice < slices; slice++) {
            Words metadata;
#pragma unroll
            for (int part = 0; part < kParts; part++) {
                ring_.wait(at_);
                if (part == 0) fetch(metadata);
                wgmma_fence();
#pragma unroll
                for (int product = 0; product < kProducts; product++)
                    multiply_stage(metadata, part, product > 0, piece_of_a(product), piece_of_b(product));
                group_commit();
                previous_ = at_.stage;
                at_.advance();
                finish();
                add_to(total);
            }
        }
        take(total);
    }

  private:
    using Words = Metadata<kRowBlocks, kAtomsOfStage>;  // of a slice

    __device__ void add_to(Sums& total) const {
#pragma unroll
        for (int r = 0; r < kRowBlocks; r++)
#pragma unroll
            for (int i = 0; i < BLOCK_N / 2; i++) total[r][i] += d[r][i];
    }
    __device__ void take(const Sums& total) {
#pragma unroll
        for (int r = 0; r < kRowBlocks; r++)
#pragma unroll
            for (int i = 0; i < BLOCK_N / 2; i++) d[r][i] = total[r][i];
    }

    // One group of instructions for each stage.  With IN_FLIGHT a group still runs when the next slice begins, so
    // the metadata of `last` must stay in registers; without it the slice ends with a wait.
    // A `fresh` slice overwrites the sums.  As this is known at compile time, they take no registers before it.
    template <bool fresh> __device__ void multiply_slice(Words& metadata, const Words& last) {
#pragma unroll
        for (int part = 0; part < kParts; part++) {
            ring_.wait(at_);
            if (part == 0) fetch(metadata);
            wgmma_fence();
            multiply_stage(metadata, part, part || !fresh);
            group_commit();
            group_wait<1>();
            if (IN_FLIGHT && part == 0) last.hold(shared_);
            if (previous_ >= 0) ring_.release(previous_);
            previous_ = at_.stage;
            at_.advance();
        }
        if (!IN_FLIGHT) drain();
    }
    __device__ void fetch(Words& metadata) {
        const u32 first = kMetadataAt + slot_ * kSlotBytes + part_ * kRowBlocks * kAtomBytes;
        metadata.load(shared_ + first + metadata_offset(), kAtoms * kAtomBytes);
        slot_ = slot_ + 1 == kSlots ? 0 : slot_ + 1;
    }
    __device__ void multiply_stage(const Words& metadata, int part, u32 keep, int a_piece = 0, int b_piece = 0) {
        const u32 stage = shared_ + at_.stage * kStageBytes, rows = part_ * kRowBlocks * 4096 * kSpans;
        const u64 a = kADescriptor | descriptor_start(stage + kAAt + a_piece * kABytes + rows);
        const u64 b = kBDescriptor | descriptor_start(stage + b_piece * kBBytes);
#pragma unroll
        for (int step = 0; step < kSteps; step++) {
            const u32 b_offset = B_ROW_MAJOR ? step * 4096 : step / 2 * BLOCK_N * 128 + step % 2 * 64;
            const int word = part * kSteps + step;
#pragma unroll
            for (int r = 0; r < kRowBlocks; r++) {
                const u64 a_step = a + (r * 4096 * kSpans + step * 32) / 16, b_step = b + b_offset / 16;
                const u32 code = metadata.words[r][kBytes ? word : word % 2];
                if (!kBytes && word >= 2)
                    wgmma_sp<!kBytes>(d[r], a_step, b_step, code, step ? 1 : keep);
                else
                    wgmma_sp<0>(d[r], a_step, b_step, code, step ? 1 : keep);
            }
        }
    }
    // Wait for all groups and give back the last stage.
    __device__ void drain() {
        group_wait<0>();
        if (previous_ >= 0) ring_.release(previous_);
        previous_ = -1;
    }

    const Ring& ring_;
    u32 shared_;
    int part_;
    typename Ring::Position at_;
    int slot_ = 0, previous_ = -1;
};
