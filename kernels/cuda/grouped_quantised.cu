// grouped_quantised: out (m, n) = epilogue(A[g] (m, k)  @  b (k, n)), with g the group of each column, A 2:4 and quantised:
// integers times factors.
//
//   bricks   [groups, row blocks, K atoms, bytes]  elements, codes and factors (bricks.cuh)               (read)
//   offsets  [groups + 1]                          columns offsets[g] to offsets[g + 1] belong to g       (read)
//   b        [k, n]                                k contiguous, columns on 16-byte boundaries            (read)
//   out      [m, n]                                m contiguous, columns on 16-byte boundaries; the last  (written)
//                                                  16 bytes of a column are written whole, with zeros
//                                                  behind m
//
// The time is that of reading the matrices of the groups that have columns.  Blocks find their tiles as
// group_scheduler.cuh says, and multiply as brick_multiply.cuh does: one thread asks the TMA for stage after stage, and
// WARPS_K teams of warps share the K atoms of each.  Their sums meet in shared memory at the end of a tile, from where
// they go through the epilogue, and with GATED through the gate, to the result (group_results.cuh).  Columns behind the
// end of a group, which a tile reads of the next one, are multiplied but not stored.
//
// Shared memory: STAGES stages of bricks and b, WARPS_K tiles of sums, barriers, and the table of groups.
//
// Macros: those of brick_multiply and group_results, with B_COLUMN and B_ASYNC 1, and OFFSET; BITS, of an integer;
// SUMS_AT, where the sums lie; BLOCKS, how many blocks a multiprocessor shall have room for.
//
// Reference: reference_quantised.dequantise, then reference_grouped.grouped_matmul.
// Launcher: kernels/grouped_quantised.py.
// Source: PTX ISA, cp.async.bulk, griddepcontrol.
#define BLOCK_N TILE_N
#include "programmatic.cuh"
#include "group_results.cuh"
#include "brick_stages.cuh"
namespace hopper {  // as both name a function shared_address
#include "hopper_pipeline.cuh"
}

constexpr bool kManyColumns = true;
#include "decode_blocks.cuh"
#include "brick_multiply.cuh"

constexpr int kTableAt = kBarriersAt + Ring::bytes;

// What one thread asks of the TMA.
struct Producer {
    const char* bricks;
    DenseStages b;
    const Shape& s;  // m has the rows of the result

    void run(const Ring& ring, unsigned shared, GroupScheduler tiles) const {
        Ring::Position at;
        for (Work work; tiles.advance(work);) {
            const char* of_group = bricks + work.group * s.a_batch;
            const Place tile = {0, work.first, 0};
            for (int k0 = 0; k0 < s.k; k0 += TILE_K, at.advance()) {
                const unsigned stage = shared + at.stage * kStage;
                const unsigned barrier = ring.acquire(at, kRowBlocks * bytes_of_block(s, k0) + b.bytes(k0));
                each_row_block(of_group, s, k0, [&](int i) { return number_of(i, work); },
                               [&](int i, const char* from, int bytes) {
                                   hopper::load_bytes(stage + i * kBlockBytes, from, bytes, barrier);
                               });
                b.load(stage, tile, k0, barrier);
            }
        }
    }

  private:
    // The block of rows that is the tile's i-th; behind the last one of a half any will do.
    int number_of(int i, const Work& work) const {
        constexpr int of_half = kTileRows / kBrickRows;
        const int blocks = tiles_of(s.m, kBrickRows), block = work.m * of_half + i % of_half;
        return i / of_half * blocks + min(block, blocks - 1);
    }
};

inline void consume_groups(const Ring& ring, const Shape& s, char* shared, GroupScheduler tiles,
                           const GroupResults& results) {
    const Lane w;
    Sum* partials = reinterpret_cast<Sum*>(shared + SUMS_AT);
    Ring::Position at;
    for (Work work; tiles.advance(work);) {
        Sums sums = {};
        for (int k0 = 0; k0 < s.k; k0 += TILE_K, at.advance()) {
            ring.wait(at);
            multiply(sums, shared_address(shared) + at.stage * kStage, w, s.k - k0);
            ring.release(at.stage + nothing(sums, w));
        }
        hopper::group_sync(1, kThreads);  // now nobody reads the sums of the tile before
        store_sums(sums, partials);
        hopper::group_sync(1, kThreads);
        results.store(partials, work);
    }
}

extern "C" __global__ void __launch_bounds__(kBlockThreads, BLOCKS)
grouped_quantised(const char* bricks, const __grid_constant__ Dense b, Out::type* out, const __grid_constant__ Shape s,
                  const __grid_constant__ Grouping grouping, const __grid_constant__ EpilogueParams p) {
    extern __shared__ __align__(1024) char shared[];
    const Ring ring(shared_address(shared) + kBarriersAt);
    const GroupScheduler tiles(grouping, reinterpret_cast<int*>(shared + kTableAt));
    const bool fetches = threadIdx.x / 32 == kThreads / 32;
    if (fetches && hopper::elected()) {
        ring.init();
        hopper::prefetch_map(b);
    }
    if (s.n < TILE_N) clear_b(shared);
    let_next_start();
    wait_for_previous();
    tiles.lay_out();
    if (threadIdx.x < kThreads) {
        if constexpr (kDealRegisters) hopper::take_registers<kConsumerRegisters>();
        consume_groups(ring, s, shared, tiles, {out, s, p});
    } else {
        if constexpr (kDealRegisters) hopper::give_registers<kFetcherRegisters>();
        if (fetches && hopper::elected()) Producer{bricks, {b, s}, s}.run(ring, shared_address(shared), tiles);
    }
}
