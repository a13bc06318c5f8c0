// hybrid_wgmma: out (m, n) = A (m, k; zeros anywhere) @ b (k, n) on the sparse tensor cores of Hopper.
//
// A comes as strips of BLOCK_M rows, each rewritten as a 2:4 matrix of its own.  The columns of a strip may be any
// columns of A, in any order and more than once; the kernel fetches the rows of b in the same order.  Either most
// columns of a strip stay where they are, 64 together, and slots hold what did not fit (hybrid_evict.cu), or all of
// them are grouped anew (hybrid_regroup.cu).
//
//   values  [2 atoms, BLOCK_M, 32]  stored elements of a stage, swizzled as in shared memory        (read)
//   packed  [atoms, BLOCK_M * 16]   metadata in 64x128 atoms (sparse24/_spec.py), two stages each   (read)
//   sources [2 atoms, 64]           rows of b of every stage (half an atom); k or more: zeros       (read)
//   pieces  [blocks][pitch]         what each block multiplies, in order; an empty one ends them    (read)
//   b       [k, n]                  n contiguous, rows on 16-byte boundaries                        (read)
//   rows    [strips * BLOCK_M]      rows of A in the order of the strips; m or more: none           (read)
//   out     [m, n]                  any strides; fastest with m or n contiguous                     (written)
//   workspace                       with CUTS: where blocks leave sums (include/partial_sums.cuh)   (both)
//
// The main loop is that of sparse_wgmma.cu.  In addition there are stages whose rows of b are not neighbours.  The four
// producer warps copy these rows by cp.async, 128 bytes of four rows with one instruction, to where the TMA would have
// put them.  In a strip the gathered stages come last.
//
// Shared memory: STAGES stages (b: [BLOCK_N / 64] spans of [64 k] lines of 128 bytes; then A: [BLOCK_M] rows of 64
// bytes), kSlots metadata buffers, the output buffers unless IN_STAGE, with SKIPS a word for each stage (which rows
// have elements), the sources of each stage, and the barriers of gather_pipeline.cuh and of ClusterSums.
//
// Tiles rarely fill whole waves of blocks, and strips differ in length.  So some tiles are cut along k: a block gives
// its sums of the beginning of a tile to the next block (include/partial_sums.cuh).  With K_PARTS > 1 every tile is
// cut, and the blocks of a cluster add up their sums.
//
// Where rows differ in density, they are sorted by it before they are cut into strips.  With ROWS_BY_NUMBER each row of
// the result is then stored where `rows` says.  Without it `rows` is not read, and a strip consists of blocks of 64
// neighbouring rows from anywhere in A, chosen such that they are empty in the same columns.
//
// Where zeros are spread unevenly, many columns are empty in 64 or 128 rows of a strip.  Columns that are empty in the
// same rows stand together in a stage.  With SKIPS, 64 rows that are empty in a stage are neither fetched nor
// multiplied there; every fourth source says which rows are not empty:
//
//   bits 0-27   row of b
//   bits 28-31  a bit for each 64 rows of the strip, the lowest for the first: 1 if the stage has elements there
//
// A chunk of the result is arranged in a buffer before it is written.  With IN_STAGE the memory of a tile's last stage
// serves for these buffers, and goes back to the producers afterwards, so that the ring has room for one more stage.
//
// Pieces and sources are read before the kernel waits for the preceding one in the stream, A and b afterwards
// (programmatic.cuh).
//
// Macros: ELEMENT OUTPUT BLOCK_M BLOCK_N STAGES CUTS K_PARTS SKIPS ROWS_BY_NUMBER OUT_ROW_MAJOR
// OUT_BULK STAGING IN_STAGE; kernels/hybrid_wgmma.py chooses.
//
// Reference: the dense product.  Launcher: kernels/hybrid_wgmma.py.  How it works:
// docs/explanation/hybrid.rst.
#define B_ELEMENT ELEMENT
#define B_ROW_MAJOR 1
#define EPILOGUE 0
#define ACTIVATION 0
#include "cluster_sums.cuh"
#include "gather_pipeline.cuh"
#include "hopper_metadata.cuh"
#include "hopper_store.cuh"
#include "partial_sums.cuh"
#include "programmatic.cuh"
#include "uniform.cuh"
#if ROWS_BY_NUMBER
#include "strip_store.cuh"
#endif

// Some atoms of a strip, for one tile of the result.
struct alignas(16) Piece {
    int first, end, plain;  // stages of the whole matrix; up to `plain` the rows of b are neighbours
    int row, column;        // of the result; `row` only with ROWS_BY_NUMBER, in the order of the strips
    int helpers;            // blocks before this one that give their sums of the tile; -1: this one gives its own
    int unused[2];
    int rows[4];            // without ROWS_BY_NUMBER: where each 64 rows of the strip begin

    __device__ bool gives() const { return CUTS && helpers < 0; }
};
struct Operands {
    const unsigned char *values, *packed;
    const int* sources;
    const Piece* pieces;
    const unsigned short* b;
    int b_pitch;  // bytes
    int pitch;    // pieces
    int m, n, k;
    const int* rows;
};

constexpr int BLOCK_K = 64, kConsumers = SKIPS && BLOCK_N <= 128 ? BLOCK_M / 64 : 2;
constexpr int kRowBlocks = BLOCK_M / (64 * kConsumers);    // of 64 rows, of a consumer
constexpr int kProducer = kConsumers * 128;              // first thread of the producers
constexpr int kThreads = kProducer + 128;
// Registers of a thread, multiples of 8.  Together they must not exceed what the block was launched with, or setmaxnreg
// would wait for ever.
constexpr int kProducerRegisters = 40, kConsumerRegisters = kConsumers == 2 ? 232 : 104;
static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <= (kConsumers + 1) * (65536 / kThreads / 8 * 8));

constexpr int kParts = kAtomK / BLOCK_K;                 // stages of an atom
constexpr int kSteps = BLOCK_K / 32;                     // instructions of a stage
constexpr u32 kRowBlockBytes = 64 * BLOCK_K;
constexpr u32 kABytes = BLOCK_M * BLOCK_K;
constexpr u32 kBBytes = BLOCK_N * BLOCK_K * 2;
constexpr u32 kStageBytes = kABytes + kBBytes;
constexpr u32 kMetadataBytes = kConsumers * kRowBlocks * kAtomBytes;
// Metadata buffers, one for kParts stages.  With SKIPS a buffer is read for each of these stages, not once for all, so
// it is needed longer and there is one more.
constexpr int kSlots = SKIPS ? STAGES / kParts + 1 : (STAGES + kParts - 1) / kParts;
constexpr u32 kMetadataAt = STAGES * kStageBytes;
constexpr u32 kStagingAt = kMetadataAt + kSlots * kMetadataBytes;
constexpr u32 kStaging = STAGING * kStagingBytes;  // of a consumer
// With SKIPS a word for each stage: a bit for each 64 rows of the strip that are not empty in it.
constexpr u32 kLiveAt = kStagingAt + (IN_STAGE ? 0 : kConsumers * kStaging);
constexpr u32 kSourcesAt = kLiveAt + 16 * ((STAGES + 3) / 4);
constexpr u32 kBarriersAt = kSourcesAt + STAGES * BLOCK_K * 4;

constexpr int kLiveShift = 28;                           // in a source

constexpr u64 kADescriptor = descriptor(kSwizzle64, 512);
constexpr u64 kBDescriptor = descriptor(kSwizzle128, 1024, BLOCK_K * 128);

using Ring = GatherPipeline<STAGES, kConsumers * 4>;
using Cluster = ClusterSums<kRowBlocks, kConsumers>;
static_assert(Cluster::bytes <= kMetadataAt);
static_assert(!IN_STAGE || K_PARTS == 1 && kConsumers * kStaging <= kStageBytes);
static_assert(kRowBlocks * BLOCK_N / kChunk % STAGING == 0);  // each piece begins with the first buffer

// A stage's place in the ring, and the metadata buffer of its atom.
struct Place {
    Ring::Position at;
    int slot = 0;

    __device__ void advance(int part) {  // past this part of an atom
        at.advance();
        if (part == kParts - 1) slot = slot + 1 == kSlots ? 0 : slot + 1;
    }
    __device__ void skip(int stages) {  // the first of which begins an atom
        const int after = at.stage + stages;
        at.phase ^= after / STAGES & 1;
        at.stage = after % STAGES;
        slot = (slot + stages / kParts) % kSlots;
    }
};

#include "strip_producer.cuh"

#if SKIPS
#include "live_consumer.cuh"
#else
#include "strip_consumer.cuh"
#endif

// Call act(piece, its rows) for each piece of this block.  The rows are passed where they lie in memory, because a
// consumer indexes them by its number, and registers cannot be indexed.
template <class Act> __device__ void for_each_piece(const Operands& of, Act act) {
    int number = blockIdx.x * of.pitch;  // a pointer would take two registers
    for (Piece piece = of.pieces[number]; piece.first < piece.end; piece = of.pieces[++number])
        act(piece, of.pieces[number].rows);
}

// How the sums of a tile are completed, if other blocks have a part of them.
struct Exchange {
    const Cluster& cluster;
    PartialSums<kRowBlocks, kConsumers> partial;

    // Send the blocks of the cluster what they add, and wait for theirs; or wait for the blocks before this one.
    __device__ void begin(const Consumer& consumer, const Piece& piece) const {
        if constexpr (K_PARTS > 1) {
            cluster.meet();
#pragma unroll
            for (int r = 0; r < kRowBlocks; r++) cluster.give(consumer.d[r], r);
            cluster.await();
        } else if constexpr (CUTS) {
            partial.await(piece.helpers);
        }
    }
    // Add what the others have to these sums of row block r, or give them away; false if this block does not store them.
    template <class Sums> __device__ bool complete(Sums& sums, const Piece& piece, int r, int first) const {
        if constexpr (K_PARTS > 1) return cluster.add(sums, r, first);
        if (piece.gives())
            partial.give(sums, r, first);
        else if (CUTS)
            partial.add(sums, piece.helpers, r, first);
        return !piece.gives();
    }
};

// Where a consumer arranges chunks of the result.
__device__ inline u32 staging(const Consumer& consumer, u32 shared, int group) {
#if IN_STAGE
    return consumer.last_stage() + group * kStaging;
#else
    return shared + kStagingAt + group * kStaging;
#endif
}

__device__ inline void consume(const TensorMap& out_map, const OutView& out, const EpilogueParams& params,
                               const Operands& of, const Ring& ring, const Exchange& exchange, u32 shared) {
    const int group = uniform(threadIdx.x / 128);
    Consumer consumer(ring, shared, group);
    for_each_piece(of, [&](const Piece& piece, const int* rows) {
        int row[kRowBlocks];
#pragma unroll
        for (int r = 0; r < kRowBlocks; r++)
            row[r] = ROWS_BY_NUMBER ? piece.row + (group * kRowBlocks + r) * 64 : rows[group * kRowBlocks + r];
        consumer.multiply(piece);
        consumer.finish();
        exchange.begin(consumer, piece);
#if ROWS_BY_NUMBER
        const StripStore result(out, of.rows, of.m, of.n, staging(consumer, shared, group));
#else
        ResultStore result(out_map, out, params, of.m, of.n, staging(consumer, shared, group));
#endif
#pragma unroll
        for (int r = 0; r < kRowBlocks; r++)
            result.store(consumer.d[r], row[r], piece.column, 0,
                         [&](auto& sums, int first) { return exchange.complete(sums, piece, r, first); });
        if (piece.gives()) exchange.partial.publish();
#if IN_STAGE
        result.finish();
        consumer.leave();
#endif
    });
    if (OUT_BULK) store_wait<0>();  // shared memory must outlive the copies
}

__device__ inline void produce(const TensorMap& b, const Operands& of, const Ring& ring, u32 shared) {
    Producer producer(b, of, ring, shared);
    for_each_piece(of, [&](const Piece& piece, const int*) { producer.fetch(piece); });
}

extern "C" __global__ void
#if K_PARTS > 1
__cluster_dims__(K_PARTS, 1, 1)
#endif
__launch_bounds__(kThreads, 1)
hybrid_wgmma(const __grid_constant__ TensorMap b, const __grid_constant__ TensorMap out_map,
             const __grid_constant__ OutView out, const __grid_constant__ Operands of,
             const __grid_constant__ Workspace workspace, const __grid_constant__ EpilogueParams params) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const u32 shared = uniform(shared_address(memory));
    const Ring ring(shared + kBarriersAt);
    const Cluster cluster(shared, shared + kBarriersAt + Ring::bytes, K_PARTS > 1 ? cluster_rank() : 0);

    if (threadIdx.x == kProducer) {
        prefetch_map(b);
        if (OUT_BULK) prefetch_map(out_map);
        ring.init();
        if (K_PARTS > 1) cluster.init();
    }
    let_next_start();
    __syncthreads();  // no cluster_sync: the blocks of a cluster meet before they send sums

    if (threadIdx.x >= kProducer) {
        give_registers<kProducerRegisters>();
        produce(b, of, ring, shared);
        if (K_PARTS > 1) cluster.meet();
    } else {
        take_registers<kConsumerRegisters>();
        wait_for_previous();
        const Exchange exchange = {cluster, PartialSums<kRowBlocks, kConsumers>(workspace)};
        consume(out_map, out, params, of, ring, exchange, shared);
    }
}
