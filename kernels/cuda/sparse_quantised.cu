// sparse_quantised: out [m, n] = epilogue(A [m, k]  @  b [k, n]), A 2:4 and quantised: integers times factors.
//
//   bricks [batch, row blocks, K atoms, bytes]  elements, codes and factors (bricks.cuh)        (read once)
//   b      [batch, k, n]                       columns contiguous, on 16-byte boundaries, or    (read)
//                                              rows of TILE_N columns, one after the other
//   out    [batch, m, n]                       any strides                                      (written)
//
// The time is that of reading A.  Blocks and warps work as decode_producer.cuh and decode_blocks.cuh say, and multiply as
// brick_multiply.cuh does.  What a stage has of a block of 16 rows lies together in memory, so it comes by a bulk copy.
//
// Shared memory: STAGES stages of bricks and b, WARPS_K tiles of sums, and the barriers of hopper_pipeline.cuh.
//
// Macros: those of sparse_tile and tile_store, with B_ASYNC 1, and B_COLUMN 1 if WGMMA is; BITS, of an integer; SUMS_AT,
// where the sums lie; BLOCKS, how many blocks a multiprocessor shall have room for; SPLIT is not used.
//
// Reference: reference_quantised.dequantise, then reference.matmul and apply_epilogue.
// Launcher: kernels/sparse_quantised.py.
// Source: PTX ISA, cp.async.bulk.
#include "tile_store.cuh"
#include "brick_stages.cuh"
namespace hopper {  // as both name a function shared_address
#include "hopper_pipeline.cuh"
}

constexpr bool kManyColumns = true;
#include "decode_producer.cuh"
#include "brick_multiply.cuh"

// The bricks of A.
struct Weight {
    const char* bricks;
    const Shape& s;

    int bytes(int k0) const { return kRowBlocks * bytes_of_block(s, k0); }
    void prefetch(const Place& tile, int k0) const {
        each_brick_row(tile, k0, [&](int, const char* from, int bytes) { prefetch_bytes(from, bytes); });
    }
    void load(unsigned stage, const Place& tile, int k0, unsigned barrier) const {
        each_brick_row(tile, k0, [&](int i, const char* from, int bytes) {
            hopper::load_bytes(stage + i * kBlockBytes, from, bytes, barrier);
        });
    }

  private:
    // Behind the last block any will do.
    template <class Act> void each_brick_row(const Place& tile, int k0, Act act) const {
        const int first = tile.m0 / kBrickRows, last = tiles_of(s.m, kBrickRows) - 1;
        each_row_block(bricks + tile.batch * s.a_batch, s, k0, [&](int i) { return min(first + i, last); }, act);
    }
};

extern "C" __global__ void __launch_bounds__(kBlockThreads, BLOCKS)
sparse_quantised(const char* bricks, const __grid_constant__ Dense b, Out::type* out, int ahead,
                 const __grid_constant__ Shape s, const __grid_constant__ EpilogueParams p) {
    extern __shared__ __align__(1024) char shared[];
    multiply_tiles(shared, Weight{bricks, s}, b, out, ahead, s, p);
}
