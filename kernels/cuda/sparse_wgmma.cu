// sparse_wgmma: out (m, n) = epilogue(A (m, k; 2:4) @ b (k, n)) on the sparse tensor cores of Hopper.
//
//   values  [batch, m, k/2]                  whole groups, rows on 16-byte boundaries              (read)
//   packed  [batch, atoms_k, atoms_m, 1024]  metadata in atoms of 64x128 (sparse24/_spec.py)       (read)
//   b       [batch, k, n]                    k or n contiguous, n only for 16-bit elements         (read)
//   out     [batch, m, n]                    any strides; fastest with m or n contiguous           (written)
//
// float32 is multiplied as TF32, whose pattern is 1:2 and whose atoms are 64x64, or, with PIECES 3, as bfloat16 pieces
// (sparse_split.cu): values and b then have three sections along k, one for each piece, whose lengths are whole atoms.
//
// The kernel is persistent, with BLOCKS blocks on each multiprocessor.  The last warpgroup of a block is the producer:
// one of its threads asks the TMA to fill a ring of stages.  A stage is BLOCK_K columns of A and as many rows of b.
// The other CONSUMERS warpgroups each own BLOCK_M / CONSUMERS rows of the tile.  They multiply stage after stage, and
// the instructions of one stage still run when they begin with the next.  They write their part of the result while the
// producer already fetches the next tile.  Where the caller knows that all that wrote to A has ended, up to `ahead`
// stages of A, in whole slices, are fetched already while the kernel before this one ends (programmatic.cuh).
//
// Atoms of metadata cover 128 columns, so the loop over k counts slices: a slice is an atom, or the two atoms of a wide
// stage of 8-bit elements.
//
//   IN_FLIGHT  instructions also run on from one slice to the next; 0: each slice ends with a wait (with PIECES each
//              stage)
//   PINGPONG   consumers take whole tiles in turn: one multiplies while the other applies the epilogue
//   CLUSTER    so many blocks, with neighbouring tiles along m, share their loads of b by multicast
//   K_PARTS    where tiles are few: so many blocks of a cluster share one tile along k, and then end
//              (cluster_sums.cuh); sums are added in a fixed order, so the same launch gives the same bits
//
// Shared memory, from the start; everything that is swizzled begins at a multiple of 1024 bytes:
//
//   STAGES stages      b: 128-byte spans of k, [kSpans][BLOCK_N] lines (k contiguous), or spans of 64 columns,
//                      [BLOCK_N / 64][BLOCK_K] lines (n contiguous); then A: [BLOCK_M] lines of 64 kSpans bytes;
//                      each of them PIECES times
//   kSlots slots       metadata of a slice, [kAtomsOfStage][BLOCK_M / 64] atoms
//   output buffers     STAGING for each consumer (hopper_store.cuh)
//   barriers           full ones, then empty ones of all stages (hopper_pipeline.cuh), and one of Turns or ClusterSums
//
// A slice's metadata arrives with its first stage, on that stage's barrier.  A slot is refilled kSlots slices later,
// which is at least STAGES stages later: the producer has then waited until its stage was given back, and so until the
// metadata had been read.
//
// Ragged edges: the TMA reads zeros outside A and b and writes nothing outside out.  But it fills in zeros slowly, so
// the last tiles along m and n have tensor maps of their own, whose boxes end where the matrix does.  Stages then keep
// old data there, which affects only sums that are never stored.
//
// Macros: ELEMENT B_ELEMENT OUTPUT BLOCK_M BLOCK_N BLOCK_K STAGES CONSUMERS BLOCKS CLUSTER K_PARTS
// IN_FLIGHT PINGPONG PROMOTE PIECES B_ROW_MAJOR OUT_ROW_MAJOR OUT_BULK STAGING EPILOGUE ACTIVATION.
// Tiles: kernels/sparse_wgmma_configs.py; their choice: kernels/sparse_wgmma_plan.py and, for pieces, sparse_split.py.
//
// Reference: reference.matmul.  Launcher: kernels/sparse_wgmma.py.  How it works:
// docs/explanation/hopper_kernel.rst.
#include "cluster_sums.cuh"
#include "hopper_metadata.cuh"
#include "hopper_pipeline.cuh"
#include "hopper_store.cuh"
#include "programmatic.cuh"
#include "tile_scheduler.cuh"

struct TensorMaps { TensorMap of[2]; };  // for whole tiles, and for the last ones

struct Shape {
    int m, n, atoms_m, atoms_k;
    int a_batched, b_batched;  // 0: one operand for all products
    int a_tail, b_tail;        // rows of A and columns of b in a box of the last tiles
    long long packed_batch;    // bytes
};

constexpr int kElementBytes = sizeof(Scalar<Kind::ELEMENT>::type);
constexpr int kSpans = BLOCK_K * kElementBytes / 128;    // 128-byte columns of B in a stage
constexpr int kSteps = 2 * kSpans;                       // instructions along k in a stage
constexpr int kAtomsOfStage = BLOCK_K > kAtomK ? BLOCK_K / kAtomK : 1;
constexpr int kSliceK = kAtomsOfStage * kAtomK;          // of k: an atom, or the atoms of a stage
constexpr int kParts = kSliceK / BLOCK_K;                // stages of a slice
constexpr int kSharers = PINGPONG ? 1 : CONSUMERS;       // warpgroups that share a tile
constexpr int kRowBlocks = BLOCK_M / (64 * kSharers);    // 64-row blocks of a warpgroup
constexpr int kProducer = CONSUMERS * 128;               // first thread of the producer
constexpr int kThreads = kProducer + 128;

// A block of two consumers is launched with 168 registers for each thread, one of three with 128: all that the 65,536
// registers of a multiprocessor allow.  It moves some from the producer to the consumers.  A single consumer has
// enough.
constexpr bool kMany = kRowBlocks * BLOCK_N / 2 > 128;
constexpr int kConsumerRegisters = CONSUMERS == 3 ? 160 : kMany ? 232 : 224;
constexpr int kProducerRegisters = CONSUMERS == 3 ? 32 : kMany ? 40 : 56;
constexpr bool kDealRegisters = CONSUMERS > 1 && BLOCKS == 1;

constexpr int kPromoted = 2 / kAtomsOfStage;             // PROMOTE: slices between promotions, 4 fp8 instructions, as cuBLAS
constexpr u32 kABytes = BLOCK_M * 64 * kSpans;
constexpr u32 kBBytes = BLOCK_N * 128 * kSpans;
constexpr u32 kStageBytes = PIECES * (kABytes + kBBytes);
constexpr u32 kAAt = PIECES * kBBytes;                   // where A begins in a stage
constexpr int kAtoms = BLOCK_M / kAtomM;                 // metadata atoms of a tile
constexpr int kSlots = (STAGES + kParts - 1) / kParts;   // metadata buffers, one for a slice
constexpr u32 kSlotBytes = kAtomsOfStage * kAtoms * kAtomBytes;
constexpr u32 kMetadataAt = STAGES * kStageBytes;
constexpr u32 kStagingAt = kMetadataAt + kSlots * kSlotBytes;
constexpr u32 kBarriersAt = kStagingAt + CONSUMERS * STAGING * kStagingBytes;

constexpr u64 kADescriptor = descriptor(kSpans == 2 ? kSwizzle128 : kSwizzle64, 512 * kSpans);
constexpr u64 kBDescriptor = descriptor(kSwizzle128, 1024, B_ROW_MAJOR ? BLOCK_K * 128 : 16);

using Ring = Pipeline<STAGES, kSharers * 4, CLUSTER>;
using Others = ClusterSums<kRowBlocks, CONSUMERS>;
static_assert(Others::bytes <= kMetadataAt && (K_PARTS == 1 || (CLUSTER == 1 && !PINGPONG)));
constexpr bool kClustered = CLUSTER * K_PARTS > 1;

// The barrier of a stage that tells that it has been filled; those of the ring come first.
__device__ inline u32 full_barrier(u32 shared, const Ring::Position& at) { return shared + kBarriersAt + 8 * at.stage; }

#include "tile_producer.cuh"

#include "tile_consumer.cuh"

__device__ inline void consume(const TensorMap& out_map, const OutView& out, const EpilogueParams& params,
                               const Shape& shape, TileScheduler tiles, const Ring& ring, const Turns& turns,
                               const Others& parts, u32 shared) {
    const int group = threadIdx.x / 128;
    ResultStore result(out_map, out, params, shape.m, shape.n, shared + kStagingAt + group * STAGING * kStagingBytes);
    const int part = PINGPONG ? 0 : group;
    Consumer consumer(ring, shared, part);
    Work work;
    for (int turn = 0; tiles.advance(work); turn++) {
        if (PINGPONG && turn % CONSUMERS != group) {
            consumer.skip(work.slices);
            continue;
        }
        if (PINGPONG) turns.await(turn);
        if constexpr (PIECES > 1)
            consumer.multiply_pieces(work.slices);
        else if constexpr (PROMOTE)
            consumer.multiply_promoted(work.slices);
        else
            consumer.multiply(work.slices);
        if (PINGPONG) turns.pass();
        consumer.finish();
        if (K_PARTS > 1) {
            parts.meet();
#pragma unroll
            for (int r = 0; r < kRowBlocks; r++) parts.give(consumer.d[r], r);
            parts.await();
        }
#pragma unroll
        for (int r = 0; r < kRowBlocks; r++) {
            const int row = work.m * BLOCK_M + (part * kRowBlocks + r) * 64;
            result.store(consumer.d[r], row, work.n * BLOCK_N, work.batch, [&](auto& sums, int first) {
                return K_PARTS == 1 || parts.add(sums, r, first);
            });
        }
    }
    result.finish();
}

// Puts legal codes into all metadata buffers, because atoms past the last row or column of A are never fetched.
__device__ inline void clear_metadata(u32 shared) {
    for (u32 i = threadIdx.x * 4; i < kSlots * kSlotBytes; i += kThreads * 4)
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(shared + kMetadataAt + i), "r"(0x44444444u) : "memory");
    async_proxy_fence();
}

extern "C" __global__ void
#if CLUSTER * K_PARTS > 1
__cluster_dims__(CLUSTER * K_PARTS, 1, 1)
#endif
__launch_bounds__(kThreads, BLOCKS)
sparse_wgmma(const __grid_constant__ TensorMaps values, const __grid_constant__ TensorMaps b,
             const __grid_constant__ TensorMap out_map, const unsigned char* packed,
             int ahead, const __grid_constant__ OutView out, const __grid_constant__ Shape shape,
             const __grid_constant__ Tiling tiling, const __grid_constant__ EpilogueParams params) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const u32 shared = shared_address(memory);
    const u32 rank = kClustered ? cluster_rank() : 0;
    const u32 of_tiles = CLUSTER > 1 ? rank : 0, of_k = K_PARTS > 1 ? rank : 0;
    const Ring ring(shared + kBarriersAt);
    const TileScheduler tiles(tiling, (shape.atoms_k + kAtomsOfStage - 1) / kAtomsOfStage, of_tiles, of_k);
    const Turns turns(shared + kBarriersAt + Ring::bytes);  // `parts` has the same barrier: never both are used
    const Others parts(shared, shared + kBarriersAt + Ring::bytes, of_k);

    if (threadIdx.x == kProducer) {
        for (int last = 0; last < 2; last++) prefetch_map(values.of[last]), prefetch_map(b.of[last]);
        if (OUT_BULK) prefetch_map(out_map);
        if (PINGPONG) turns.init();
        ring.init();
        if (K_PARTS > 1) parts.init();
    }
    clear_metadata(shared);
    let_next_start();
    if constexpr (kClustered) cluster_sync(); else __syncthreads();
    const Producer producer({values, b, packed}, shape, ring, shared, of_tiles);
    const bool fetches = threadIdx.x / 32 == kProducer / 32;
    int begun = 0;  // slices of A that are on their way
    if (fetches && ahead > 0 && elected()) begun = producer.begin(tiles, ahead);
    wait_for_previous();

    if (threadIdx.x >= kProducer) {
        if (kDealRegisters) give_registers<kProducerRegisters>();
        if (fetches && elected()) producer.run(tiles, begun);
        if (K_PARTS > 1) parts.meet();
    } else {
        if (kDealRegisters) take_registers<kConsumerRegisters>();
        consume(out_map, out, params, shape, tiles, ring, turns, parts, shared);
    }
    if constexpr (CLUSTER > 1) {  // a block must not end while its neighbours still write to it
        __syncwarp();
        cluster_sync();
    }
}
