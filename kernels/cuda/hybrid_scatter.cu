// hybrid_scatter: unstructured 16-bit A (m, k) times up to 64 columns: non-zeros become dense tiles in
// shared memory, which the tensor cores of Hopper multiply.
//
//   units  groups and lines of the units of A (include/scatter_units.cuh)                            (read)
//   steps  [blocks][pitch][TALL]   the units of a block, and where they are                          (read)
//   counts [blocks]                steps of a block that hold anything; empty ones follow           (read)
//   b      [k, n]                  n contiguous, rows on 16-byte boundaries                        (read)
//   out    [m, n]                  any strides                                                     (written)
//
// A block takes TALL units of rows, 128 each, and the steps of a part of k; SPLITS blocks share rows.  A step is
// 64 columns in which some unit has non-zeros.  Every stage of the ring has its own TALL warps, the writers:
// each clears its tile and stores the non-zeros of the next unit into it, while the copy engine brings
// 64 rows of b; TALL warpgroups multiply.  A non-zero costs one store and hardly an instruction
// more, nearly always in a bank of its own.
//
// A writer holds two batches of GROUPS groups and LINES lines: one is on its way while the other is stored.  With
// ERASE a batch is all of a unit, so a tile is cleared by storing zeros where its last non-zeros were;
// else all of it is overwritten.
//
// Units are asked for before the kernel waits for the one before it in the stream; b is not.
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
    int first;                         // where it is, in lines
    int groups, lines;
};
struct Left {
    const unsigned char* units;
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
__device__ inline void store_low(u32 at, u32 pair) {
    asm volatile("{ .reg .b16 low, high; mov.b32 {low, high}, %1; st.shared.b16 [%0], low; }" ::"r"(at), "r"(pair) : "memory");
}
__device__ inline void store_high(u32 at, u32 pair) {
    asm volatile("{ .reg .b16 low, high; mov.b32 {low, high}, %1; st.shared.b16 [%0], high; }" ::"r"(at), "r"(pair) : "memory");
}
__device__ inline void store_zeros(u32 at) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory");
}
// Four elements of a list at these rows of the lane's bank, or zeros.
template <bool zeros> __device__ void store_four(u32 bank, u32 first, u32 second, u32 rows) {
    store_low(bank + __byte_perm(rows, 0, 0x4440) * 128, zeros ? 0 : first);
    store_high(bank + __byte_perm(rows, 0, 0x4441) * 128, zeros ? 0 : first);
    store_low(bank + __byte_perm(rows, 0, 0x4442) * 128, zeros ? 0 : second);
    store_high(bank + __byte_perm(rows, 0, 0x4443) * 128, zeros ? 0 : second);
}

// A part of a unit, on its way or in hand.
struct Batch {
    uint4 elements[GROUPS];
    uint2 rows[GROUPS];
    u32 words[LINES];
    int groups = 0, lines = 0;

    // From group and line `first_*` of a unit on, as much as there is and fits.
    __device__ void load(const unsigned char* units, const Unit& unit, int first_group, int first_line) {
        const int lane = threadIdx.x % 32;
        const unsigned char* at = units + (Count)unit.first * kLineBytes;
        const unsigned char* words_at = at + unit.groups * kGroupBytes + first_line * kLineBytes + lane * 4;
        at += first_group * kGroupBytes;
        groups = unit.groups - first_group, lines = unit.lines - first_line;
#pragma unroll
        for (int i = 0; i < GROUPS; i++)
            if (i < groups) {
                elements[i] = load_once(reinterpret_cast<const uint4*>(at + i * kGroupBytes + lane * 16));
                rows[i] = load_once(reinterpret_cast<const uint2*>(at + i * kGroupBytes + 512 + lane * 8));
            }
#pragma unroll
        for (int i = 0; i < LINES; i++)
            if (i < lines) words[i] = load_once(reinterpret_cast<const u32*>(words_at + i * kLineBytes));
    }
    // Store the elements into the tile, or zeros in their place.
    template <bool zeros> __device__ void store(u32 tile) const {
        const u32 even = tile + threadIdx.x % 32 * 4, odd = even + 2;
#pragma unroll
        for (int i = 0; i < GROUPS; i++)
            if (i < groups) {
                store_four<zeros>(even, elements[i].x, elements[i].y, rows[i].x);
                store_four<zeros>(odd, elements[i].z, elements[i].w, rows[i].y);
            }
#pragma unroll
        for (int i = 0; i < LINES; i++)
            if (i < lines) store_low(tile + (words[i] >> 16), zeros ? 0 : words[i]);
    }
};

// A warp that writes the tile of one stage, again and again.
class Writer {
  public:
    __device__ Writer(const Left& a, const Ring& ring, int warp, u32 shared)
        : units_(a.units), steps_(a.steps + (Count)blockIdx.x * a.pitch * TALL + warp), ring_(ring),
          stage_(warp / TALL), turns_((a.counts[blockIdx.x] - stage_ + STAGES - 1) / STAGES),
          asks_(warp % TALL == 0 && threadIdx.x % 32 == 0), b_(shared + stage_ * kStageBytes + TALL * kTileBytes),
          tile_(shared + stage_ * kStageBytes + warp % TALL * kTileBytes) {
        here_ = unit(0);
        next_ = unit(1);
    }
    __device__ void begin(Batch& first) {
        first.load(units_, here_, 0, 0);
        clear();
        __syncwarp();  // other lanes may store into the same places now
    }
    // Store one batch and ask for the one after it; false when all is done.
    __device__ bool advance(const TensorMap& b, const Batch& batch, Batch& other) {
        if (turn_ == turns_) return false;
        const bool begins = batch_ == 0, ends = ERASE || (batch.groups <= GROUPS && batch.lines <= LINES);
        batch_ = ends ? 0 : batch_ + 1;
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
        const Unit unit = of_next ? next_ : here_;
        batch.load(units_, unit, batch_ * GROUPS, batch_ * LINES);
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

    const unsigned char* units_;
    const Unit* steps_;
    const Ring& ring_;
    int stage_, turns_;
    bool asks_;
    u32 b_, tile_;
    int turn_ = 0, batch_ = 0;
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
