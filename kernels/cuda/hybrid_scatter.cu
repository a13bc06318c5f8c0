// hybrid_scatter: unstructured 16-bit A (m, k) times up to 128 columns.  Warps expand the non-zeros of A to dense
// tiles in shared memory, which the tensor cores of Hopper multiply.
//
//   units  A as groups and lines of elements (include/scatter_units.cuh)                          (read)
//   steps  [blocks][pitch]         the units that a block multiplies, and where they are stored     (read)
//   parts  [blocks][parts_pitch]   how many of these steps belong to which band of rows             (read)
//   counts [blocks]                numbers of steps and parts; entries behind these are unused      (read)
//   leads  [blocks]                where a block's first units lie                                  (read)
//   b      [k, n]                  n contiguous, rows on 16-byte boundaries                         (read)
//   spill  with BASE: b as [2][k / 4][n], the rows 2 and 3 of every group of four                   (read)
//   right  [k, n]                  with BY_WARPS, in place of b: any strides, up to eight columns   (read)
//   out    [m, n]                  any strides                                                      (written)
//
// A band is 128 rows of A.  A unit is 64 neighbouring columns of a band; those without a non-zero are left out.
// (Or a band is 64 rows and a unit 128 columns: with twice as many bands, fewer blocks have to share one.)  A step
// multiplies one unit.  The steps of all bands form one sequence, which is cut into a piece for each block.  So a
// block may begin and end in the middle of a band; what it does in one band is a part.
//
// Every stage of the ring has a warp of its own, its writer.  The writer clears the stage's tile and stores the
// non-zeros of the next unit into it, while the TMA brings the matching rows of b.  A non-zero costs one
// store and hardly any other instruction, and the stores nearly always go to different banks.  One warpgroup
// multiplies the full stages; with more than 64 columns, and units of 64 columns, there are two.  With 64 columns (and
// without BASE) b is the left operand of the instruction, so the sums are those of the transposed result.
//
// Shared memory: STAGES stages (the tile, with BASE the 2:4 tile, the lines of b, with BASE the second copy of some
// lines), two barriers for every stage (struct Ring), and what cluster_shares.cuh needs.  When a block is done, its
// result may take the place of the stages (band_store.cuh).
//
// The bound is shared memory: a tile of 16 KB is mostly written and cleared only where it has non-zeros, but all of it
// is read.
//
// With BASE, for matrices with 27 % of non-zeros and more, a unit is a 2:4 tile, which is copied as it is and
// multiplied by sparse instructions, and its spill: the third and fourth non-zeros of each group of four.  These can
// only lie in columns 2 and 3 of the group, so the tile into which they are scattered has half as many columns.  It
// is multiplied by those rows of b alone, of which the stage holds a second copy.
//
// The first units are brought to the L2 cache, and those of EARLY stages loaded, before the kernel waits for the
// preceding one in the stream, as no kernel writes them; b is loaded afterwards (programmatic.cuh), and would wait
// behind more of them.  Partial sums are added in a fixed order, so the bits are always the same.  With CLUSTER > 1 all
// blocks of a cluster work on one band and exchange their sums directly (cluster_shares.cuh); otherwise blocks that
// share a band exchange them through global memory (block_sums.cuh), or, if very many do (SHARING 2), leave them there
// for `add`, the launch after the product.
//
// Macros: BASE UNIT_COLUMNS; for the product ELEMENT TILES STAGES BATCH EARLY CLUSTER BY_WARPS SHARING, which
// kernels/hybrid_scatter_plan.py chooses.  Without ELEMENT the file holds the kernels that pack
// (include/scatter_pack.cuh).
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
constexpr bool kColumnsFirst = TILES == 8 && !BASE;                                // b is the left operand
constexpr int kGroups = TILES > 8 && kHalves == 1 ? 2 : 1;                         // warpgroups that multiply
constexpr int kConsumers = 4 * kGroups, kWriters = 8, kThreads = 32 * (kConsumers + kWriters);
// Registers of a thread.  A block is launched with 168 for each thread, or with 128 if it has two warpgroups of
// consumers; some move from consumers to writers, which hold two batches.
constexpr int kConsumerRegisters = 104, kWriterRegisters = kGroups > 1 ? 152 : 200;

// A stage: the tile that is scattered into, the 2:4 tile, the lines (rows) of b, and with BASE a second copy of the
// lines that columns 2 and 3 of every group of four multiply.
constexpr u32 kBBytes = kUnitColumns * kSpan * kSpans, kSpillBytes = BASE ? kBBytes / 2 : 0;
constexpr u32 kBaseAt = kTileBytes, kBAt = kBaseAt + kBaseBytes, kSpillAt = kBAt + kBBytes;
constexpr u32 kStageBytes = kSpillAt + kSpillBytes;
static_assert(kStageBytes % (BASE ? 512 : 1024) == 0);                   // period of the swizzle
constexpr u32 kBarriersAt = STAGES * kStageBytes;
constexpr u32 kRoomAt = kBarriersAt + 16 * STAGES;                        // memory of `shares`
constexpr u32 kScratchAt = kBarriersAt - 16 * kThreads;                   // of `others`, in the last stage

// Sums of a consumer thread: kArrays arrays, each with four sums for every tile of eight rows or columns.
constexpr int kSumTiles = kColumnsFirst ? kUnitRows / 8 : TILES, kArrays = kColumnsFirst ? 1 : kUnitRows / 64 / kGroups;
using Sums = float[4 * kSumTiles];
constexpr Sharing kSharing = Sharing(SHARING);
using Others = BlockSums<kSumTiles, 128 * kGroups * kArrays, kSharing>;
using Shares = ClusterShares<kSumTiles, kArrays, 128 * kGroups, CLUSTER>;
static_assert(Others::kKeptBytes <= kScratchAt && 128 * (kLine | 16) <= kScratchAt);  // what is kept, and `BandStore`

#include "scatter_tables.cuh"

struct Product {
    Out::type* to;
    Count row, column;                 // strides in elements
    int n;
};

//   barrier   completes when             arrivals
//   full[s]   stage s has been filled    two by its writer, when it asks for copies and when the tile is
//                                        written, and the bytes of the copies
//   empty[s]  stage s may be refilled    one by every consumer warp
//
// Phases and parities as in hopper_pipeline.cuh.
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
#include "scatter_parts.cuh"

#if SHARING == 2
// Add up what the blocks of the product before it have given.  As many blocks and threads as there.
extern "C" __global__ void __launch_bounds__(kThreads, 1) add(const Left a, const Product out, const Room room) {
    __shared__ float4 scratch[kThreads];
    const Others others(room, nullptr, scratch);
    let_next_start();
    wait_for_previous();
    for (int i = 0; i < a.counts[blockIdx.x].y; i++) {
        const Part part = a.parts[(Count)blockIdx.x * a.parts_pitch + i];
        if (part.blocks == 1) continue;
        others.collect(part.group(), false, [&](const float4& x, int tile, int member) {
            Place(a.band(part.band), tile, member, out).store(x);
        });
    }
}
#endif

// By a writer: fill its stage again and again, from one batch while the other is loaded.
__device__ inline void write(Writer& writer, const TensorMap& b, const TensorMap& spill, Batch& even) {
    Batch odd;
    Lines lines;
    writer.begin();
    wait_for_previous();
    writer.follow(b, spill, lines, even);
    while (writer.advance(b, spill, lines, even, odd) && writer.advance(b, spill, lines, odd, even)) {}
}

extern "C" __global__ void
#if CLUSTER > 1
__cluster_dims__(CLUSTER, 1, 1)
#endif
__launch_bounds__(kThreads, 1)
product(const Left a, const __grid_constant__ Leads leads, const __grid_constant__ TensorMap b,
        const __grid_constant__ TensorMap spill, const __grid_constant__ Right right, const Product out, const Room room) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const u32 shared = shared_address(memory);
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);               // so the compiler knows it is uniform
    const Ring ring(shared + kBarriersAt);
    const Others others(room, memory, memory + kScratchAt);
    const Shares shares(shared + kRoomAt);
    const BandStore store(shared, shares);
    const int stage = warp - kConsumers;
    const bool writes = 0 <= stage && stage < STAGES;
    const Opening opening(a, writes ? stage : 0);

    let_next_start();
    if (threadIdx.x == 0) {
        leads.prefetch(a.units);
        if (!BY_WARPS) prefetch_map(b);
        ring.init();
        shares.init();
    }
    __syncwarp();
    shares.arrive();
    if (writes) clear(shared + stage * kStageBytes);
    const int2 counts = opening.counts();                                 // steps, parts
    const Parts parts = {a, a.parts + (Count)blockIdx.x * a.parts_pitch, counts.y, others, shares, store, out};
    Writer writer(a, right, opening, writes ? counts.x : 0, ring, writes ? stage : 0, shared);
    Batch first;
    writer.prepare(first);                                             // while thread 0 makes the barriers
    __syncthreads();
    if (warp >= kConsumers) {
        take_registers<kWriterRegisters>();
        write(writer, b, spill, first);
        shares.await();
    } else {
        give_registers<kConsumerRegisters>();
        Consumer consumer(ring, shared, warp / 4);
        wait_for_previous();
        shares.await();
        parts.multiply(consumer, opening.part());
    }
    parts.finish();
}
#endif
