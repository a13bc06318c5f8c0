// hybrid_scatter: unstructured 16-bit A (m, k) times up to 128 columns: non-zeros become dense tiles in
// shared memory, which the tensor cores of Hopper multiply.
//
//   units  groups and lines of the units of A (include/scatter_units.cuh)                            (read)
//   steps  [blocks][pitch]         the units of a block, and where they are                          (read)
//   parts  [blocks][parts_pitch]   its steps in each band of rows                                    (read)
//   counts [blocks]                its steps and parts; empty ones follow                            (read)
//   b      [k, n]                  n contiguous, rows on 16-byte boundaries                          (read)
//   spill  with BASE, b as [2][k / 4][n]: rows 2 and 3 of every group of four                        (read)
//   right  [k, n]                  with BY_WARPS, b of any strides and up to eight columns instead    (read)
//   out    [m, n]                  any strides                                                    (written)
//
// A step is a unit of up to 128 rows, a band, by 64 columns in which some of the rows has a non-zero, or of 64 by 128: then
// there are twice as many bands, and fewer blocks share one.  The steps of all bands are dealt to blocks in order, so a
// block takes a part of a band, and perhaps parts of the next ones.
// Every stage of the ring has a warp of its own, the writer: it clears the tile and stores the non-zeros
// of the next unit into it, while the copy engine brings 64 rows of b.  A non-zero costs one store and hardly an
// instruction more, nearly always in a bank of its own.  One warpgroup multiplies, by 64 columns with those of b in the
// place of rows, or two, by more.
//
// What takes the time is shared memory: a tile of 16 KB is written in parts and read as a whole.
//
// With BASE, for matrices with a quarter of non-zeros and more, a unit is a 2:4 tile, copied as it is and multiplied by
// sparse instructions, and what spills over it: the third and fourth non-zero of a group of four, which lie in its
// columns 2 and 3.  So the tile that is scattered into has half as many columns and few non-zeros; it is
// multiplied by those lines of b alone, which come a second time.
//
// Units are asked for before the kernel waits for the one before it in the stream; b is not.
// Partial sums are added in a fixed order: the same bits every time.  With CLUSTER > 1 the blocks of a cluster have one
// band, and send one another their sums; else blocks that share a band do so through global memory.
//
// Macros: BASE UNIT_COLUMNS; for the product ELEMENT TILES STAGES BATCH CLUSTER BY_WARPS, which
// kernels/hybrid_scatter_plan.py chooses.
// Without ELEMENT the kernels that pack (include/scatter_pack.cuh).
//
// Reference: a dense product.  Launcher: kernels/hybrid_scatter.py.
#include "numeric.cuh"

using Element = unsigned short;
using Count = long long;
#include "scatter_units.cuh"

#ifndef ELEMENT
#include "scatter_pack.cuh"
#else
#include "block_sums.cuh"
#include "cluster_shares.cuh"
#include "gather_pipeline.cuh"
#include "programmatic.cuh"
#include "uniform.cuh"
#include "wgmma_dense.cuh"

using Out = Scalar<Kind::ELEMENT>;
constexpr int kColumns = 8 * TILES, kLine = 2 * kColumns, kSpan = kLine < 128 ? kLine : 128, kSpans = (kLine + 127) / 128;
constexpr bool kColumnsFirst = TILES == 8 && !BASE;                                // the sums are those of out, transposed
constexpr int kGroups = TILES > 8 && kHalves == 1 ? 2 : 1;                         // warpgroups that multiply
constexpr int kConsumers = 4 * kGroups, kWriters = 8, kThreads = 32 * (kConsumers + kWriters);
// Of a thread: 168 or 128 by the size of a block, dealt out anew.  Writers hold two batches.
constexpr int kConsumerRegisters = 104, kWriterRegisters = kGroups > 1 ? 152 : 200;

// A stage: the tile that is scattered into, the 2:4 tile, 64 lines of b, and with BASE those that columns 2 and 3 of every
// group meet a second time.
constexpr u32 kBBytes = kUnitColumns * kSpan * kSpans, kSpillBytes = BASE ? kBBytes / 2 : 0;
constexpr u32 kBaseAt = kTileBytes, kBAt = kBaseAt + kBaseBytes, kSpillAt = kBAt + kBBytes;
constexpr u32 kStageBytes = kSpillAt + kSpillBytes;
static_assert(kStageBytes % (BASE ? 512 : 1024) == 0);                   // what the swizzle of the tiles repeats after
constexpr u32 kBarriersAt = STAGES * kStageBytes;
constexpr u32 kRoomAt = kBarriersAt + 16 * STAGES;                        // of the shares

// Sums of a consumer thread: so many arrays of four for each tile of eight.
constexpr int kSumTiles = kColumnsFirst ? kUnitRows / 8 : TILES, kArrays = kColumnsFirst ? 1 : kUnitRows / 64 / kGroups;
using Sums = float[4 * kSumTiles];
using Others = BlockSums<kSumTiles, 128 * kGroups * kArrays>;
using Shares = ClusterShares<kSumTiles, kArrays, 128 * kGroups, CLUSTER>;

struct alignas(16) Unit {
    int column;                        // of its first element
    int first;                         // where it is, in lines
    int groups, lines;
};
// A block's steps in one band.
struct alignas(16) Part {
    int band, steps;
    int slot;                          // of the sums of the block that begins the band (include/block_sums.cuh)
    int blocks;                        // that share it

    __device__ Others::Group group() const { return {slot, blocks}; }
};
struct Rows {
    int first, end;
};
struct Left {
    const unsigned char* units;
    const Unit* steps;
    const Part* parts;
    const int2* counts;
    int pitch, parts_pitch;
    int m, rows;                       // rows of a band

    __device__ Rows band(int i) const { return {i * rows, min(m, (i + 1) * rows)}; }
};
struct Product {
    Out::type* to;
    Count row, column;                 // strides in elements
    int n;
};

// full[s]   an arrival by the writer when it asks for b, one when the tile is written, and the bytes of b
// empty[s]  one arrival by every consumer warp
struct Ring {
    u32 full, empty;

    __device__ explicit Ring(u32 at) : full(at), empty(at + 8 * STAGES) {}
    __device__ void init() const {
        for (int s = 0; s < STAGES; s++) {
            barrier_init(full + 8 * s, 2);
            barrier_init(empty + 8 * s, kConsumers);
        }
        barrier_init_fence();
    }
};

#include "band_store.cuh"
#include "scatter_consumer.cuh"
#include "scatter_lines.cuh"
#include "scatter_writer.cuh"

// Where the four sums of a tile of eight go, of a thread of an array of 128; `member` counts threads and arrays.
class Place {
  public:
    __device__ Place(const Rows& band, int tile, int member, const Product& out) {
        const int lane = member % 32, across = 8 * tile + lane % 4 * 2, down = member / 32 * 16 + lane / 4;
        const int row = band.first + (kColumnsFirst ? across : down);
        const int column = kColumnsFirst ? down : across;
        to_ = out.to + row * out.row + column * out.column;
        next_ = kColumnsFirst ? out.row : out.column, eighth_ = 8 * (kColumnsFirst ? out.column : out.row);
        across_ = kColumnsFirst ? band.end - row : out.n - column;
        down_ = kColumnsFirst ? out.n - column : band.end - row;
    }
    __device__ void store(const float4& x) const {
        const float sums[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (i % 2 < across_ && i / 2 * 8 < down_) to_[i % 2 * next_ + i / 2 * eighth_] = Out::store(sums[i]);
    }
    __device__ void to_next_tile() { to_ += 8 * next_, across_ -= 8; }

  private:
    Out::type* to_;
    Count next_, eighth_;                  // strides
    int across_, down_;                    // elements that there are, from the first sum on
};

// Whether no block of another cluster shares the band, and shared memory is free when it is done.
__device__ bool alone(const Part& part, bool last) { return CLUSTER > 1 || part.blocks == 1 && last; }

// The sums of the block's `index`-th part: stored, or given to those that share its band.  The consumers.
__device__ void hand_over(const Sums (&sums)[kArrays], const Part& part, int index, bool last, const Others& others,
                          const Rows& band, const Product& out) {
    if (Others::kKeeps && last) group_sync(1, 32 * kConsumers);  // no instruction reads tiles any more
#pragma unroll
    for (int i = 0; i < kArrays; i++) {
        const int member = i * 128 + threadIdx.x;
        const Sums& x = sums[i];
        if (part.blocks > 1) {
            others.give(x, member, part.group(), 2 * blockIdx.x + (index > 0), last);
            continue;
        }
        Place place(band, 0, member, out);
#pragma unroll
        for (int j = 0; j < kSumTiles; ++j, place.to_next_tile())
            place.store({x[4 * j], x[4 * j + 1], x[4 * j + 2], x[4 * j + 3]});
    }
}

extern "C" __global__ void
#if CLUSTER > 1
__cluster_dims__(CLUSTER, 1, 1)
#endif
__launch_bounds__(kThreads, 1)
product(const Left a, const __grid_constant__ TensorMap b, const __grid_constant__ TensorMap spill,
        const __grid_constant__ Right right, const Product out, const Room room) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const u32 shared = shared_address(memory);
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);               // known to be the same in all lanes
    const Ring ring(shared + kBarriersAt);
    const Others others(room, memory);
    const Shares shares(shared + kRoomAt);
    const BandStore store(shared, shares);
    const int2 counts = a.counts[blockIdx.x];                             // steps, parts
    const Part* parts = a.parts + (Count)blockIdx.x * a.parts_pitch;

    let_next_start();
    if (threadIdx.x == 0) {
        if (!BY_WARPS) prefetch_map(b);
        ring.init();
        shares.init();
    }
    __syncwarp();
    shares.arrive();
    const int stage = warp - kConsumers;
    const bool writes = 0 <= stage && stage < STAGES;
    Writer writer(a, right, writes ? counts.x : 0, ring, writes ? stage : 0, shared);
    Batch even, odd;
    writer.prepare(even);                                                 // what needs no barrier takes as long
    __syncthreads();
    if (warp >= kConsumers) {
        take_registers<kWriterRegisters>();
        writer.begin();
        wait_for_previous();
        Lines lines;
        writer.begin_lines(lines);
        while (writer.advance(b, spill, lines, even, odd) && writer.advance(b, spill, lines, odd, even)) {}
        shares.await();
    } else {
        give_registers<kConsumerRegisters>();
        Consumer consumer(ring, shared, warp / 4);
        wait_for_previous();
        shares.await();
        Part next = parts[0];
        for (int i = 0; i < counts.y; i++) {
            const Part part = next;
            const bool last = i == counts.y - 1;
            next = parts[i + 1];
            consumer.multiply(part.steps);
            if (alone(part, last)) {
                shares.give(consumer.sums);
                group_sync(1, 32 * kConsumers);  // no instruction reads tiles any more
                shares.collect(consumer.sums, [&](int piece, const float4& x) { store.put(piece, x); });
            } else {
                hand_over(consumer.sums, part, i, last, others, a.band(part.band), out);
            }
        }
    }
    for (int i = 0; i < counts.y; i++) {
        const Part part = parts[i];
        const bool last = i == counts.y - 1;
        if (alone(part, last)) {
            __syncthreads();
            store.copy(a.band(part.band), out);
        } else if (part.blocks > 1) {
            others.collect(part.group(), last, [&](const float4& x, int tile, int member) {
                Place(a.band(part.band), tile, member, out).store(x);
            });
        }
    }
}
#endif
