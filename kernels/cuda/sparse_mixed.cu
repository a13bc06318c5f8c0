// sparse_mixed: out (m, n) = epilogue(A (m, k; 2:4) @ b (k, n)) on the sparse tensor cores of Hopper, where elements of
// b have 16 bits and those of A fewer, which become such of b's type.
//
//   values  [batch, m, k/2]                  8-bit elements, rows on 16-byte boundaries           (read, without BITS)
//   packed  [batch, atoms_k, atoms_m, 1024]  codes in atoms of 64x128, those of 8-bit elements    (read)
//           [batch, row blocks, atoms_k, bytes]  or, with BITS, bricks of a quantised A           (read)
//   b       [batch, k, n]                    k or n contiguous                                    (read)
//   out     [batch, m, n]                    any strides; fastest with m or n contiguous          (written)
//
// The kernel works as sparse_wgmma.cu does, with its tiles, its order of tiles, its blocks that share a tile along k
// and its way to the result.  A block has CONSUMERS warpgroups, each of which multiplies BLOCK_M / CONSUMERS rows of a
// tile, and behind them a warpgroup of which one thread, the producer, asks the TMA for what they read.  But A does not
// go from shared memory to the tensor cores: each thread loads what its fragment is made of, widens that, and passes
// registers.  It does so for one stage while the instructions of the stage before still run.
//
// A stage is BLOCK_K rows of b, a slice 128 columns of A: an atom of metadata or a brick.  So a slice has two stages.
//
// Shared memory, from the start; everything that is swizzled begins at a multiple of 1024 bytes:
//
//   STAGES stages      b: [BLOCK_N] lines of 64 k (k contiguous), or spans of 64 columns, [BLOCK_N / 64][64] lines
//   kSlots slots       A of a slice (mixed_values.cuh, mixed_bricks.cuh)
//   output buffers     STAGING for each consumer (hopper_store.cuh)
//   barriers           full ones, then empty ones of all stages (hopper_pipeline.cuh), and one of ClusterSums
//
// A slot is filled with the first stage of its slice, on that stage's barrier, and read until the last one.  It is
// refilled kSlots slices later, at least STAGES stages after its last one: the producer has then waited until that was
// given back.
//
// Ragged edges are those of sparse_wgmma.cu.
//
// Macros: ELEMENT B_ELEMENT OUTPUT BLOCK_M BLOCK_N BLOCK_K STAGES CONSUMERS BLOCKS CLUSTER K_PARTS PIECES B_ROW_MAJOR
// OUT_ROW_MAJOR OUT_BULK STAGING EPILOGUE ACTIVATION, as in sparse_wgmma.cu, with BLOCK_K 64, CLUSTER 1 and PIECES 1;
// ELEMENT, as which A is multiplied, is B_ELEMENT; BITS, of a quantised A, or 0; STORED, without BITS the type of A in
// memory.
// Tiles and their choice: kernels/sparse_mixed_plan.py.
//
// Reference: reference.matmul, of a quantised A behind reference_quantised.dequantise.
// Launcher: kernels/sparse_mixed.py.  How it works: docs/explanation/hopper_kernel.rst.
#include "cluster_sums.cuh"
#include "hopper_metadata.cuh"
#include "hopper_pipeline.cuh"
#include "hopper_store.cuh"
#include "programmatic.cuh"
#include "tile_scheduler.cuh"

struct TensorMaps { TensorMap of[2]; };  // for whole tiles, and for the last ones

struct Shape {
    int m, n, atoms_m, atoms_k;  // atoms, or bricks
    int a_batched, b_batched;  // 0: one operand for all products
    int a_tail, b_tail;        // rows of A and columns of b in a box of the last tiles
    long long packed_batch;    // bytes
};

constexpr int kElementBytes = 2;                         // of b
constexpr int kLine = 128;                               // bytes along k of a stage
constexpr int kSpans = 1;                                // lines of a stage and column
constexpr int kSteps = 2;                                // instructions along k in a stage
constexpr int kParts = kAtomK / BLOCK_K;                 // stages of a slice
constexpr int kRowBlocks = BLOCK_M / (64 * CONSUMERS);   // 64-row blocks of a warpgroup
constexpr int kProducer = CONSUMERS * 128;               // first thread of the producer
constexpr int kThreads = kProducer + 128;

// As in sparse_wgmma.cu where a thread has many sums, and here always: fragments take registers, too.
constexpr int kConsumerRegisters = CONSUMERS == 3 ? 160 : 232;
constexpr int kProducerRegisters = CONSUMERS == 3 ? 32 : 40;
constexpr bool kDealRegisters = CONSUMERS > 1 && BLOCKS == 1;

constexpr int kAtoms = BLOCK_M / kAtomM;                 // metadata atoms of a tile
constexpr u32 kStageBytes = BLOCK_N * kLine;
constexpr int kSlots = STAGES / kParts + 1;

// What instructions read of the registers of a thread, for a stage.  They do so while they run, and the compiler does
// not know that; `hold`, placed after the wait for them, keeps the registers until then.  The last stage of a tile has
// none: that nothing overwrites its registers tests/test_compile_checks.py sees in the machine code.
struct Fragments {
    u32 a[kRowBlocks][kSteps][4], codes[kRowBlocks][kSteps];

    __device__ void hold() const {
#pragma unroll
        for (int r = 0; r < kRowBlocks; r++)
#pragma unroll
            for (int i = 0; i < kSteps; i++) {
                const u32(&x)[4] = a[r][i];
                asm volatile("" ::"r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(codes[r][i]) : "memory");
            }
    }
};
#include "tile_source.cuh"
#include "widen_nibbles.cuh"
#if BITS
#include "mixed_bricks.cuh"
#else
#include "mixed_values.cuh"
#endif

constexpr u32 kSlotsAt = STAGES * kStageBytes;
constexpr u32 kStagingAt = kSlotsAt + kSlots * kSlotBytes;
constexpr u32 kBarriersAt = kStagingAt + CONSUMERS * STAGING * kStagingBytes;

constexpr u64 kBDescriptor = descriptor(kSwizzle128, 1024, B_ROW_MAJOR ? BLOCK_K * 128 : 16);

using Ring = Pipeline<STAGES, CONSUMERS * 4, CLUSTER>;
using Others = ClusterSums<kRowBlocks, CONSUMERS>;
static_assert(Others::bytes <= kStagingAt && CLUSTER == 1);

// The barrier of a stage that tells that it has been filled; those of the ring come first.
__device__ inline u32 full_barrier(u32 shared, const Ring::Position& at) { return shared + kBarriersAt + 8 * at.stage; }

#include "mixed_producer.cuh"

#include "mixed_consumer.cuh"

__device__ inline void consume(const TensorMap& out_map, const OutView& out, const EpilogueParams& params,
                               const Shape& shape, TileScheduler tiles, const Ring& ring, const Others& parts,
                               u32 shared) {
    const int group = threadIdx.x / 128;
    ResultStore result(out_map, out, params, shape.m, shape.n, shared + kStagingAt + group * STAGING * kStagingBytes);
    Consumer consumer(ring, shared, group);
    Work work;
    while (tiles.advance(work)) {
        consumer.multiply(work.slices);
        if (K_PARTS > 1) {
            parts.meet();
#pragma unroll
            for (int r = 0; r < kRowBlocks; r++) parts.give(consumer.d[r], r);
            parts.await();
        }
#pragma unroll
        for (int r = 0; r < kRowBlocks; r++) {
            const int row = work.m * BLOCK_M + (group * kRowBlocks + r) * 64;
            result.store(consumer.d[r], row, work.n * BLOCK_N, work.batch, [&](auto& sums, int first) {
                return K_PARTS == 1 || parts.add(sums, r, first);
            });
        }
    }
    result.finish();
}

// Fills all slots with legal codes, wherever they have codes, because those past the last row of A are never fetched.
__device__ inline void clear_codes(u32 shared) {
    for (u32 i = threadIdx.x * 4; i < kSlots * kSlotBytes; i += kThreads * 4)
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(shared + kSlotsAt + i), "r"(0x44444444u) : "memory");
    async_proxy_fence();
}

extern "C" __global__ void
#if K_PARTS > 1
__cluster_dims__(K_PARTS, 1, 1)
#endif
__launch_bounds__(kThreads, BLOCKS)
sparse_mixed(const __grid_constant__ TensorMaps values, const __grid_constant__ TensorMaps b,
             const __grid_constant__ TensorMap out_map, const unsigned char* packed,
             int ahead, const __grid_constant__ OutView out, const __grid_constant__ Shape shape,
             const __grid_constant__ Tiling tiling, const __grid_constant__ EpilogueParams params) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const u32 shared = shared_address(memory);
    const u32 of_k = K_PARTS > 1 ? cluster_rank() : 0;
    const Ring ring(shared + kBarriersAt);
    const TileScheduler tiles(tiling, shape.atoms_k, 0, of_k);
    const Others parts(shared, shared + kBarriersAt + Ring::bytes, of_k);

    if (threadIdx.x == kProducer) {
        for (int last = 0; last < 2; last++) prefetch_map(values.of[last]), prefetch_map(b.of[last]);
        if (OUT_BULK) prefetch_map(out_map);
        ring.init();
        if (K_PARTS > 1) parts.init();
    }
    clear_codes(shared);
    let_next_start();
    if constexpr (K_PARTS > 1) cluster_sync(); else __syncthreads();
    const Producer producer({values, b, packed}, shape, ring, shared);
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
        consume(out_map, out, params, shape, tiles, ring, parts, shared);
    }
}
