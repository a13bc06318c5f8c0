// hybrid_scatter: unstructured 16-bit A (m, k) times up to 64 columns: non-zeros become dense tiles in
// shared memory, which the tensor cores of Hopper multiply.
//
//   words  [rows][128]             non-zeros of the units of A (include/scatter_units.cuh)         (read)
//   steps  [blocks][pitch][TALL]   the units of a block, and where their words are                 (read)
//   counts [blocks]                steps of a block that hold anything; empty ones follow           (read)
//   b      [k, n]                  n contiguous, rows on 16-byte boundaries                        (read)
//   out    [m, n]                  any strides                                                     (written)
//
// A block takes TALL units of rows, 128 each, and the steps of a part of k; SPLITS blocks share rows.  A step is
// 64 columns in which some unit has non-zeros.  Every stage of the ring has its own TALL warps, the writers:
// each clears its tile and stores the non-zeros of the next unit into it, while the copy engine brings
// 64 lines of b; TALL warpgroups multiply.  A non-zero costs one store and hardly an instruction
// more, in a bank of its own for the most part.
//
// A writer holds two batches of HELD rows of words: one is on its way while the other is stored.  With
// ERASE a batch is all of a unit, so a tile is cleared by storing zeros where its last non-zeros were;
// else all of it is overwritten.
//
// Words are asked for before the kernel waits for the one before it in the stream; b is not.
// Partial sums are added in a fixed order: the same bits every time.
//
// Reference: a dense product.  Launcher: kernels/hybrid_scatter.py.
#include "numeric.cuh"

using Element = unsigned short;
using Count = long long;
#include "scatter_units.cuh"

#ifdef ELEMENT
#include "block_sums.cuh"
#include "hopper_pipeline.cuh"
#include "programmatic.cuh"
#include "wgmma_dense.cuh"

using Out = Scalar<Kind::ELEMENT>;
constexpr int kColumns = 8 * TILES, kLine = 2 * kColumns;
constexpr int kBlockRows = TALL * kUnitRows, kMembers = TALL * 256;       // threads' shares of the sums
constexpr int kConsumers = 4 * TALL, kWriters = STAGES * TALL;            // warps
constexpr int kThreads = 32 * (kConsumers + kWriters);
constexpr u32 kBBytes = kUnitColumns * kLine, kStageBytes = TALL * kTileBytes + kBBytes;
constexpr u32 kBarriersAt = STAGES * kStageBytes;
constexpr int kSteps = kUnitColumns / 16;                                 // instructions of a stage
using Sums = float[4 * TILES];
using Shared = BlockSums<TILES, kMembers, SPLITS>;

struct alignas(16) Unit {
    int column;                        // of its first element
    int first, rows;                   // its words, in rows
    int unused;
};
struct Left {
    const uint4* words;
    const Unit* steps;
    const int* counts;
    int pitch, m;
};
struct Product {
    Out::type* to;
    Count row, column;                 // strides in elements
    int n;
};

// full[s]   one arrival by every writer, one by the writer that asks for b, and the bytes of b
// empty[s]  one arrival by every consumer warp
struct Ring {
    u32 full, empty;

    __device__ explicit Ring(u32 at) : full(at), empty(at + 8 * STAGES) {}
    __device__ void init() const {
        for (int s = 0; s < STAGES; s++) {
            barrier_init(full + 8 * s, TALL + 1);
            barrier_init(empty + 8 * s, kConsumers);
        }
        barrier_init_fence();
    }
};

__device__ inline uint4 load_once(const uint4* from) {
    uint4 x;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(from));
    return x;
}
__device__ inline void store_element(u32 at, u32 element) {
    asm volatile("{ .reg .b16 low, high; mov.b32 {low, high}, %1; st.shared.b16 [%0], low; }" ::"r"(at), "r"(element) : "memory");
}
__device__ inline void store_zeros(u32 at) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory");
}

// Rows of words of a unit, on their way or in hand.
struct Batch {
    uint4 words[HELD];
    int rows = 0;

    __device__ void load(const uint4* from, int count) {
        rows = count;
#pragma unroll
        for (int i = 0; i < HELD; i++)
            if (i < rows) words[i] = load_once(from + i * 32);
    }
    // Store the elements into the tile, or zeros in their place.
    template <bool zeros> __device__ void store(u32 tile) const {
#pragma unroll
        for (int i = 0; i < HELD; i++)
            if (i < rows) {
                store_element(tile + (words[i].x >> 16), zeros ? 0 : words[i].x);
                store_element(tile + (words[i].y >> 16), zeros ? 0 : words[i].y);
                store_element(tile + (words[i].z >> 16), zeros ? 0 : words[i].z);
                store_element(tile + (words[i].w >> 16), zeros ? 0 : words[i].w);
            }
    }
};

// A warp that writes the tile of one stage, again and again.
class Writer {
  public:
    __device__ Writer(const Left& a, const Ring& ring, int warp, u32 shared)
        : words_(a.words + threadIdx.x % 32), steps_(a.steps + (Count)blockIdx.x * a.pitch * TALL + warp), ring_(ring),
          stage_(warp / TALL), turns_((a.counts[blockIdx.x] - stage_ + STAGES - 1) / STAGES),
          asks_(warp % TALL == 0 && threadIdx.x % 32 == 0), b_(shared + stage_ * kStageBytes + TALL * kTileBytes),
          tile_(shared + stage_ * kStageBytes + warp % TALL * kTileBytes) {
        here_ = unit(0);
        next_ = unit(1);
    }
    __device__ void begin(Batch& first) {
        first.load(words_ + (Count)here_.first * 32, min(here_.rows, HELD));
        clear();
        __syncwarp();  // other lanes may store into the same places now
    }
    // Store one batch and ask for the one after it; false when all is done.
    __device__ bool advance(const TensorMap& b, const Batch& batch, Batch& other) {
        if (turn_ == turns_) return false;
        const bool begins = from_ == 0, ends = ERASE || from_ + HELD >= here_.rows;
        from_ = ends ? 0 : from_ + HELD;
        if (!ERASE) ask(other, ends);
        if (begins) open(b, other);
        if (ERASE) ask(other, ends);  // what it held was needed until now
        batch.store<false>(tile_);
        if (ends) publish();
        return true;
    }

  private:
    __device__ Unit unit(int turn) const { return steps_[turn * kWriters]; }
    // The next batch: of this unit, or the first of the next.
    __device__ void ask(Batch& batch, bool of_next) const {
        const int first = of_next ? next_.first : here_.first, rows = of_next ? next_.rows : here_.rows;
        batch.load(words_ + (Count)(first + from_) * 32, min(rows - from_, HELD));
    }
    // Wait until the stage is free, ask for its lines of b, and clear the tile.
    __device__ void open(const TensorMap& b, const Batch& last) {
        barrier_wait(ring_.empty + 8 * stage_, (turn_ & 1) ^ 1);
        if (asks_) {
            barrier_expect(ring_.full + 8 * stage_, kBBytes);
            load_box(b_, b, 0, here_.column, 0, ring_.full + 8 * stage_);
        }
        if (turn_ > 0) {
            if (ERASE) last.store<true>(tile_);
            else clear();
            __syncwarp();
        }
    }
    __device__ void publish() {
        async_proxy_fence();
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(ring_.full + 8 * stage_);
        turn_++;
        here_ = next_;
        next_ = unit(turn_ + 1);
    }
    __device__ void clear() const {
#pragma unroll
        for (int i = 0; i < kTileBytes; i += 512) store_zeros(tile_ + i + threadIdx.x % 32 * 16);
    }

    const uint4* words_;
    const Unit* steps_;
    const Ring& ring_;
    int stage_, turns_;
    bool asks_;
    u32 b_, tile_;
    int turn_ = 0, from_ = 0;
    Unit here_, next_;
};

// A consumer warpgroup: sums of 128 rows, 64 at a time.
class Consumer {
  public:
    Sums sums[2];

    __device__ Consumer(const Ring& ring, int group, u32 shared)
        : ring_(ring), b_(shared + TALL * kTileBytes), tile_(shared + group * kTileBytes) {}

    // At least one step.  One group of instructions is always under way.
    __device__ void multiply(int steps) {
        multiply_step<true>();
        for (int i = 1; i < steps; i++) multiply_step<false>();
        wgmma_wait();
        release();
        pin(sums[0]);
        pin(sums[1]);
    }

  private:
    // A `fresh` step overwrites the sums.
    template <bool fresh> __device__ void multiply_step() {
        barrier_wait(ring_.full + 8 * at_.stage, at_.phase);
        const u32 stage = at_.stage * kStageBytes;
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < kSteps; step++) {
            const u64 b = b_descriptor<TILES>(b_ + stage + step * 16 * kLine);
#pragma unroll
            for (int r = 0; r < 2; r++)
                multiply_dense<TILES>(sums[r], a_descriptor(tile_ + stage + r * 8192 + step * 32), b, step || !fresh);
        }
        wgmma_commit();
        wgmma_wait_but_one();
        release();
        previous_ = at_.stage;
        at_.advance();
    }
    __device__ void release() const {
        if (previous_ >= 0 && threadIdx.x % 32 == 0) barrier_arrive(ring_.empty + 8 * previous_);
    }

    const Ring& ring_;
    u32 b_, tile_;
    Cursor<STAGES> at_;
    int previous_ = -1;
};

// Four sums of thread `member` of the block, of column tile j.
__device__ void store_sums(const float4& x, int j, int member, int m, const Product& out) {
    const int lane = member % 32, column = 8 * j + lane % 4 * 2;
    const Count row = (Count)(blockIdx.x / SPLITS) * kBlockRows + member / 32 * 16 + lane / 4;
    const float sums[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < 4; ++i)
        if (row + i / 2 * 8 < m && column + i % 2 < out.n)
            out.to[(row + i / 2 * 8) * out.row + (column + i % 2) * out.column] = Out::store(sums[i]);
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
product(const Left a, const __grid_constant__ TensorMap b, const Product out, const Room room) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const u32 shared = shared_address(memory);
    const int warp = threadIdx.x / 32, group = warp / 4;
    const Ring ring(shared + kBarriersAt);
    const Shared others(room);
    const auto store = [&](const float4& x, int j, int member) { store_sums(x, j, member, a.m, out); };

    let_next_start();
    if (threadIdx.x == 0) {
        prefetch_map(b);
        ring.init();
    }
    __syncthreads();
    if (warp >= kConsumers) {
        Writer writer(a, ring, warp - kConsumers, shared);
        Batch even, odd;
        writer.begin(even);
        wait_for_previous();
        while (writer.advance(b, even, odd) && writer.advance(b, odd, even)) {}
    } else {
        Consumer consumer(ring, group, shared);
        consumer.multiply(a.counts[blockIdx.x]);
        wait_for_previous();
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int member = (2 * group + r) * 128 + threadIdx.x % 128;
            const Sums& x = consumer.sums[r];
            if (SPLITS > 1) others.give(x, member);
            else
#pragma unroll
                for (int j = 0; j < TILES; ++j) store({x[4 * j], x[4 * j + 1], x[4 * j + 2], x[4 * j + 3]}, j, member);
        }
    }
    if (SPLITS > 1) others.collect(store);
}
#endif
