// scatter_writer: the warps of hybrid_scatter.cu that turn units of the matrix into dense tiles in shared memory.
//
// A writer holds two batches of BATCH groups: one is being loaded while the other is stored.  Where a unit was a
// single batch, its tile is cleared by storing zeros where the non-zeros were; otherwise all of it is overwritten.
#pragma once

// Of the matrix, which a block reads once: not kept in L1.
__device__ inline uint4 load_once(const uint4* from) {
    uint4 x;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(from));
    return x;
}
__device__ inline uint2 load_once(const uint2* from) {
    uint2 x;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "l"(from));
    return x;
}
__device__ inline u32 load_once(const u32* from) {
    u32 x;
    asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(x) : "l"(from));
    return x;
}
// Store one half of a word.
__device__ inline void store_low(u32 at, u32 pair) {
    asm volatile("{ .reg .b16 low, high; mov.b32 {low, high}, %1; st.shared.b16 [%0], low; }" ::"r"(at), "r"(pair) : "memory");
}
__device__ inline void store_high(u32 at, u32 pair) {
    asm volatile("{ .reg .b16 low, high; mov.b32 {low, high}, %1; st.shared.b16 [%0], high; }" ::"r"(at), "r"(pair) : "memory");
}
__device__ inline void store_zeros(u32 at) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory");
}
// Address of an element in a lane's bank: `bank` plus 128 bytes times its row, which is byte `which` of `rows`.
// One instruction extracts, multiplies and adds.
template <int which> __device__ u32 place_of(u32 bank, u32 rows) { return __dp4a(rows, 128u << 8 * which, bank); }
// Four elements of a list at these rows of the lane's bank, or zeros.
template <bool zeros> __device__ void store_four(u32 bank, u32 first, u32 second, u32 rows) {
    store_low(place_of<0>(bank, rows), zeros ? 0 : first);
    store_high(place_of<1>(bank, rows), zeros ? 0 : first);
    store_low(place_of<2>(bank, rows), zeros ? 0 : second);
    store_high(place_of<3>(bank, rows), zeros ? 0 : second);
}

// A part of a unit, being loaded or in registers.  Its loops end at the first group that does not exist: skipping every
// missing group by a branch of its own, to another line of code, would take longer than storing a few groups.
struct Batch {
    uint4 elements[BATCH];
    uint2 rows[BATCH];
    u32 words[kMostLines];
    int groups = 0, lines = 0;

    // From group and line `first_*` of a unit on, as much as there is and fits.
    __device__ void load(const unsigned char* units, const Unit& unit, int first_group, int first_line) {
        const int lane = threadIdx.x % 32;
        const unsigned char* at = units + (Count)unit.first * kLineBytes + kBaseBytes;
        const unsigned char* words_at = at + unit.groups * kGroupBytes + first_line * kLineBytes + lane * 4;
        at += first_group * kGroupBytes;
        groups = unit.groups - first_group, lines = unit.lines - first_line;
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            if (i >= groups) break;
            elements[i] = load_once(reinterpret_cast<const uint4*>(at + i * kGroupBytes + lane * 16));
            rows[i] = load_once(reinterpret_cast<const uint2*>(at + i * kGroupBytes + 512 + lane * 8));
        }
#pragma unroll
        for (int i = 0; i < kMostLines; i++) {
            if (i >= lines) break;
            words[i] = load_once(reinterpret_cast<const u32*>(words_at + i * kLineBytes));
        }
    }
    // Store the elements into the tile, or zeros in their place.
    template <bool zeros> __device__ void store(u32 tile) const {
        const u32 even = tile + threadIdx.x % 32 * 4, odd = even + 2;
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            if (i >= groups) break;
            store_four<zeros>(even, elements[i].x, elements[i].y, rows[i].x);
            store_four<zeros>(odd, elements[i].z, elements[i].w, rows[i].y);
        }
#pragma unroll
        for (int i = 0; i < kMostLines; i++) {
            if (i >= lines) break;
            store_low(tile + (words[i] >> 16), zeros ? 0 : words[i]);
        }
    }
};

// By a warp.
__device__ inline void clear(u32 tile) {
#pragma unroll
    for (int i = 0; i < kTileBytes; i += 512) store_zeros(tile + i + threadIdx.x % 32 * 16);
    __syncwarp();  // other lanes may store into the same places now
}

// A warp that writes the tile of one stage, again and again.  The tile has been cleared.
class Writer {
  public:
    // One without steps does nothing.
    __device__ Writer(const Left& a, const Right& right, const Opening& opening, int steps, const Ring& ring, int stage,
                      u32 shared)
        : right_(right), units_(a.units), steps_(a.steps + (Count)blockIdx.x * a.pitch + stage),
          full_(ring.full + 8 * stage), empty_(ring.empty + 8 * stage),
          turns_((steps - stage + STAGES - 1) / STAGES), tile_(shared + stage * kStageBytes),
          early_(stage < EARLY), here_(opening.unit(0)), next_(opening.unit(1)) {}
    // Load the first batch, if it is one that is asked for before b.
    __device__ void prepare(Batch& first) const {
        if (early_) load_first(first);
    }
    // Announce what the TMA will bring of the first unit, once the barriers have been initialised.
    __device__ void begin() const {
        if (turns_ > 0) lead([&] { announce(); });
    }
    // Ask for the lines of b of the first unit, once the kernel before this one has ended; then for the first batch, if
    // it has not been.
    __device__ void follow(const TensorMap& b, const TensorMap& spill, Lines& lines, Batch& first) const {
        if (turns_ > 0) {
            if (BY_WARPS) lines.load(right_, here_.column);
            else lead([&] { ask_for_lines(b, spill); });
        }
        if (EARLY < STAGES && !early_) load_first(first);
    }
    // Store one batch and load the one after it; false when all is done.
    __device__ bool advance(const TensorMap& b, const TensorMap& spill, Lines& lines, const Batch& batch, Batch& other) {
        if (turn_ == turns_) return false;
        const bool begins = batch_ == 0, ends = batch.groups <= BATCH && batch.lines <= kMostLines;
        if (begins) open(b, spill, other);
        if (BY_WARPS && begins) lines.store(tile_ + kBAt, tile_ + kSpillAt);
        batch_ = ends ? 0 : batch_ + 1;
        const u32 nothing = nothing_after(batch);
        ask(other, ends ? next_ : here_, nothing);
        if (BY_WARPS && ends) lines.load(right_, next_.column + nothing);
        batch.store<false>(tile_);
        if (ends) {
            whole_ = begins;
            publish();
        }
        return true;
    }

  private:
    __device__ Unit unit(int turn) const { return steps_[turn * STAGES]; }
    // Load the next batch, which belongs to this unit; `nothing` is 0 (nothing_after).
    __device__ void ask(Batch& batch, const Unit& unit, u32 nothing) const {
        batch.load(units_ + nothing, unit, batch_ * BATCH, batch_ * kMostLines);
    }
    // Zero, but computed from the batch, so not before it has arrived.  Added to the addresses of the next loads, it
    // keeps them from being issued earlier.  If they were, the stores of this batch would have to wait for them as
    // well, because all loads count on one scoreboard.  (The compiler does not know that columns of units are multiples
    // of kUnitColumns, so it cannot see that this is zero.)
    __device__ u32 nothing_after(const Batch& batch) const { return batch.elements[0].x & here_.column % kUnitColumns; }
    __device__ void load_first(Batch& first) const {
        if (turns_ == 0) return;
        first.load(units_, here_, 0, 0);
        __syncwarp();  // without it the compiler keeps registers on a stack
    }
    // Wait until the stage is free, ask for its lines of b, and clear the tile.  The first turn has begun already.
    __device__ void open(const TensorMap& b, const TensorMap& spill, const Batch& last) {
        if (turn_ == 0) return;
        barrier_wait(empty_, (turn_ & 1) ^ 1);
        lead([&] {
            announce();
            if (!BY_WARPS) ask_for_lines(b, spill);
        });
        if (whole_) last.store<true>(tile_);
        else clear(tile_);
        __syncwarp();
    }
    // Tests elected() directly before the work; a stored result of the test would not do (hopper_ptx.cuh).
    template <class Act> __device__ void lead(Act act) const {
        if (elected()) act();
        __syncwarp();
    }
    // By the leader: announce all bytes that copies will bring to the stage, and ask for those of the matrix.
    __device__ void announce() const {
        barrier_expect(full_, kBaseBytes + (BY_WARPS ? 0 : kBBytes + kSpillBytes));
        if (BASE) load_bytes(tile_ + kBaseAt, units_ + (Count)here_.first * kLineBytes, kBaseBytes, full_);
    }
    // By the leader.
    __device__ void ask_for_lines(const TensorMap& b, const TensorMap& spill) const {
#pragma unroll
        for (int box = 0; box < kSpans * kHalves; box++) {  // of 64 lines
            const int column = box / kHalves * 64, line = here_.column + box % kHalves * 64;
            load_box(tile_ + kBAt + box * 64 * kSpan, b, column, line, 0, full_);
            for (int i = 0; i < (BASE ? 2 : 0); i++)
                load_box(tile_ + kSpillAt + (2 * box + i) * 16 * kSpan, spill, column, line / 4, i, full_);
        }
    }
    __device__ void publish() {
        async_proxy_fence();
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(full_);
        turn_++;
        here_ = next_;
        next_ = unit(turn_ + 1);
    }
    const Right right_;
    const unsigned char* units_;
    const Unit* steps_;
    u32 full_, empty_;                     // barriers of the stage
    int turns_;
    u32 tile_;
    bool early_;                           // the first batch is asked for before b
    int turn_ = 0, batch_ = 0;
    bool whole_ = false;                   // the last unit was one batch
    Unit here_, next_;
};
