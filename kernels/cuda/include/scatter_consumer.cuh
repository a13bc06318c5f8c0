// scatter_consumer: a warpgroup of hybrid_scatter.cu that multiplies the tiles of the stages by lines of b.
//
// A single warpgroup multiplies all rows of a tile; if there are two, each multiplies 64.  An instruction takes 64 rows
// of the tile or, where b is the left operand, 128 (with units of 128 columns 64).
#pragma once

using Words = u32[2];                                                     // metadata of a thread

class Consumer {
  public:
    Sums sums[kArrays];

    __device__ Consumer(const Ring& ring, u32 shared, int group) : ring_(ring), shared_(shared), group_(group) {}

    // Multiplies the next `steps` stages, at least one, and waits for the sums.  Meanwhile one group of instructions is
    // always in flight; the registers of its metadata must not be reused until it has ended.
    __device__ void multiply(int steps) {
        Words even, odd = {};
        multiply_step<true>(even, odd);
        int i = 1;
        if (BASE)  // a branch between two steps would make the compiler wait for every instruction
            for (; i + 1 < steps; i += 2) {
                multiply_step<false>(odd, even);
                multiply_step<false>(even, odd);
            }
        for (; i < steps; i++) multiply_step<false>(odd, even);  // with BASE once at most
        wgmma_wait();
        if (BASE) hold(even, odd[0] ^ odd[1], shared_);
        release();
        previous_ = -1;
#pragma unroll
        for (int i = 0; i < kArrays; i++) pin(sums[i]);
        if (kTwin) add_twins();
    }

  private:
    // Instructions that add to the same sums wait for one another, 60 cycles each.  With few columns an instruction
    // is shorter than that, so every other one adds to a second set of sums, the twins.
    static constexpr bool kTwin = !BASE && TILES <= 2;
    static constexpr int kBlocks = kColumnsFirst ? kHalves : 2 / kGroups;

    __device__ void add_twins() {
#pragma unroll
        for (int i = 0; i < kArrays; i++) {
            pin(twins_[i]);
#pragma unroll
            for (int j = 0; j < 4 * kSumTiles; j++) sums[i][j] += twins_[i][j];
        }
    }
    // A `fresh` step overwrites the sums.
    template <bool fresh> __device__ void multiply_step(Words& words, const Words& last) {
        const u32 stage = uniform(shared_ + at_.stage * kStageBytes);
        barrier_wait(ring_.full + 8 * at_.stage, at_.phase);
        if (BASE) load(words, stage + kBaseAt + kValueBytes);
        wgmma_fence();
        if (BASE) multiply_base<fresh>(words, stage + kBaseAt, stage + kBAt);
        multiply_tile<fresh && !BASE>(stage, stage + (BASE ? kSpillAt : kBAt));
        wgmma_commit();
        wgmma_wait_but_one();
        if (BASE) hold(last, 0, shared_);
        release();
        previous_ = at_.stage;
        at_.advance();
    }
    __device__ static void load(Words& words, u32 from) {
#pragma unroll
        for (int i = 0; i < 2; i++) words[i] = i < kBlocks ? load_shared(from + i * 512 + threadIdx.x * 4) : 0;
    }
    template <bool fresh> __device__ void multiply_base(const Words& words, u32 values, u32 b_at) {
#if BASE
        const u64 first = b_lines<kUnitColumns>(b_at), second = b_lines<kUnitColumns>(b_at + 32 * kSpan);
#pragma unroll
        for (int i = 0; i < kBlocks; i++) {
            const u32 rows = values + (group_ + i) * kValueBytes / 2;
            const u32 past = past_lines(i, kTileColumns);
            multiply_sparse<0>(of_block(sums, i), half_descriptor(rows), first + past, words[i], !fresh || turn(0, i) > 0);
            multiply_sparse<1>(of_block(sums, i), half_descriptor(rows + 32), second + past, words[i], 1);
        }
#endif
    }
    // The tile that was scattered into.
    template <bool fresh> __device__ void multiply_tile(u32 tile, u32 b_at) {
        constexpr int kSteps = kTileBytes / kTileRows / 32;               // of 16 columns
#pragma unroll
        for (int step = 0; step < kSteps; step++) {
            const u64 b = b_lines<BASE ? kUnitColumns / 2 : kUnitColumns>(b_at + step * 16 * kSpan);
#pragma unroll
            for (int i = 0; i < kBlocks; i++) {
                const u32 rows = tile + (group_ + i) * kTileBytes / 2 + step * 32;
                multiply_dense<kColumnsFirst>(of_block(kTwin && turn(step, i) % 2 ? twins_ : sums, i),
                                              BASE ? half_descriptor(rows) : a_descriptor(rows),
                                              b + past_lines(i, BASE ? kTileColumns / 2 : kTileColumns),
                                              turn(step, i) > kTwin || !fresh);
            }
        }
    }
    // The two blocks of 64 rows of a tile are either different rows of the matrix, or (kHalves > 1) the same rows
    // and different columns.  In the second case they add to the same sums, in turn, and the second block multiplies
    // lines of b that begin `past_lines` further on (in units of 16 bytes).
    __device__ static Sums& of_block(Sums (&all)[kArrays], int i) { return all[i % kArrays]; }
    __device__ static constexpr int turn(int step, int i) { return kHalves > 1 ? step * kBlocks + i : step; }
    __device__ static constexpr u32 past_lines(int i, int lines) { return kHalves > 1 ? i * lines * kSpan / 16 : 0; }
    // Of a stage that has so many lines.
    template <int lines> __device__ static u64 b_lines(u32 at) { return lines_descriptor<TILES, lines>(at); }
    __device__ void release() const {
        if (previous_ >= 0 && threadIdx.x % 32 == 0) barrier_arrive(ring_.empty + 8 * previous_);
    }

    Sums twins_[kArrays];
    const Ring& ring_;
    u32 shared_;
    int group_;                            // its first 64 rows of a tile, in 64 rows
    Cursor<STAGES> at_;
    int previous_ = -1;
};
