// sparse_quantised: out [m, n] = epilogue(A [m, k]  @  b [k, n]), A 2:4 and quantised: integers times factors.
//
//   bricks [row blocks, K atoms, bytes]   elements, codes and factors (bricks.cuh)              (read once)
//   b      [batch, k, n]                  columns contiguous, on 16-byte boundaries, or         (read)
//                                         rows of TILE_N columns, one after the other
//   out    [batch, m, n]                  any strides                                           (written)
//
// The time is that of reading A.  Blocks and warps work as decode_blocks.cuh says, and multiply as brick_multiply.cuh
// does.  What a tile reads of A lies together but for blocks of 16 rows, so a stage comes by a bulk copy for each.
//
// The kernel before this one may have written A, so it has to end before A is read.  But what it writes goes to the L2
// cache, so blocks that start earlier bring the first stages of A there meanwhile.  Where the caller knows that all
// that wrote to A has ended, `ahead` stages of it go to shared memory at once.
//
// Shared memory: STAGES stages of bricks and b, WARPS_K tiles of sums, and the barriers of hopper_pipeline.cuh.
//
// Macros: those of sparse_tile and tile_store, with B_ASYNC 1, and B_COLUMN 1 if WGMMA is; BITS, of an integer; SUMS_AT,
// where the sums lie; BLOCKS, how many blocks a multiprocessor shall have room for; SPLIT is not used.
//
// Reference: reference_quantised.dequantise, then reference.matmul and apply_epilogue.
// Launcher: kernels/sparse_quantised.py.
// Source: PTX ISA, cp.async.bulk, cp.async.bulk.prefetch, griddepcontrol.
#include "programmatic.cuh"
#include "tile_store.cuh"
#include "brick_stages.cuh"
namespace hopper {  // as both name a function shared_address
#include "hopper_pipeline.cuh"
}

constexpr bool kManyColumns = true;
constexpr int kAhead = 2;  // stages that are brought to the L2 cache
#include "decode_blocks.cuh"
#include "brick_multiply.cuh"

// What one thread asks of the TMA.
struct Producer {
    const char* bricks;
    DenseStages b;
    const Shape& s;

    // The first stages of A of the block's first tile, but for those that are on their way.
    void bring_near(int begun) const {
        for (int k0 = begun * TILE_K; k0 < min(s.k, kAhead * TILE_K); k0 += TILE_K)
            each_brick_row(place_of(blockIdx.x, s), k0, [&](int, const char* from, int bytes) {
                prefetch_bytes(from, bytes);
            });
    }
    // Up to `ahead` stages of A of the block's first tile; returns how many.
    int begin(const Ring& ring, unsigned shared, int ahead) const {
        Ring::Position at;
        const int stages = min(min(ahead, STAGES), tiles_of(s.k, TILE_K));
        for (int i = 0; i < stages; ++i, at.advance())
            load_a(shared, at, place_of(blockIdx.x, s), i * TILE_K, ring.acquire(at, bytes(i * TILE_K)));
        return stages;
    }
    // All stages; of the first `begun` only b is missing.
    void run(const Ring& ring, unsigned shared, int begun) const {
        Ring::Position at;
        each_tile(s, [&](const Place& tile) {
            for (int k0 = 0; k0 < s.k; k0 += TILE_K, at.advance(), --begun) {
                if (begun <= 0) load_a(shared, at, tile, k0, ring.acquire(at, bytes(k0)));
                b.load(shared + at.stage * kStage, tile, k0, full_barrier(shared, at));
            }
        });
    }

  private:
    int bytes(int k0) const { return kRowBlocks * bytes_of_block(s, k0) + b.bytes(k0); }

    void load_a(unsigned shared, const Ring::Position& at, const Place& tile, int k0, unsigned barrier) const {
        const unsigned stage = shared + at.stage * kStage;
        each_brick_row(tile, k0, [&](int i, const char* from, int bytes) {
            hopper::load_bytes(stage + i * kBlockBytes, from, bytes, barrier);
        });
    }
    // Behind the last block any will do.
    template <class Act> void each_brick_row(const Place& tile, int k0, Act act) const {
        const int first = tile.m0 / kBrickRows, last = tiles_of(s.m, kBrickRows) - 1;
        each_row_block(bricks, s, k0, [&](int i) { return min(first + i, last); }, act);
    }
};

extern "C" __global__ void __launch_bounds__(kBlockThreads, BLOCKS)
sparse_quantised(const char* bricks, const __grid_constant__ Dense b, Out::type* out, int ahead,
                 const __grid_constant__ Shape s, const __grid_constant__ EpilogueParams p) {
    extern __shared__ __align__(1024) char shared[];
    const Ring ring(shared_address(shared) + kBarriersAt);
    const Producer producer{bricks, {b, s}, s};
    const bool fetches = threadIdx.x / 32 == kThreads / 32;
    int begun = 0;  // stages of A that are on their way
    let_next_start();
    if (fetches && hopper::elected()) {
        ring.init();
#if B_COLUMN
        hopper::prefetch_map(b);
#endif
        begun = producer.begin(ring, shared_address(shared), ahead);
        producer.bring_near(begun);
    }
    if (s.n < TILE_N) clear_b(shared);
    __syncthreads();
    wait_for_previous();
    if (threadIdx.x < kThreads) {
        if constexpr (kDealRegisters) hopper::take_registers<kConsumerRegisters>();
        consume(ring, s, shared, out, p);
    } else {
        if constexpr (kDealRegisters) hopper::give_registers<kFetcherRegisters>();
        if (fetches && hopper::elected()) producer.run(ring, shared_address(shared), begun);
    }
}
