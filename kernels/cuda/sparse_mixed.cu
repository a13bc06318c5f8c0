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
// tile, and behind them a warpgroup of which one thread, the producer, asks the TMA for what they read.  But A goes
// through registers, where it is widened, as mixed_tile.cuh says.
//
// Shared memory, from the start:
//
//   stages and slots   as in mixed_tile.cuh
//   output buffers     STAGING for each consumer (hopper_store.cuh)
//   barriers           full ones, then empty ones of all stages (hopper_pipeline.cuh), and one of ClusterSums
//
// Ragged edges are those of sparse_wgmma.cu.
//
// Macros: ELEMENT B_ELEMENT STORED BITS BLOCK_M BLOCK_N BLOCK_K STAGES CONSUMERS BLOCKS B_ROW_MAJOR, as in
// mixed_tile.cuh; OUTPUT CLUSTER K_PARTS PIECES OUT_ROW_MAJOR OUT_BULK STAGING EPILOGUE ACTIVATION, as in
// sparse_wgmma.cu, with CLUSTER 1 and PIECES 1.
// Tiles and their choice: kernels/sparse_mixed_plan.py.
//
// Reference: reference.matmul, of a quantised A behind reference_quantised.dequantise.
// Launcher: kernels/sparse_mixed.py.  How it works: docs/explanation/hopper_kernel.rst.
#include "cluster_sums.cuh"
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

constexpr int kHalves = 1;
#include "mixed_tile.cuh"

constexpr u32 kStagingAt = kSlotsAt + kSlots * kSlotBytes;
constexpr u32 kBarriersAt = kStagingAt + CONSUMERS * STAGING * kStagingBytes;

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
