// grouped_mixed: out (m, n) = epilogue(A[g] (m, k; 2:4) @ b (k, n)), with g the group of each column, on Hopper, where
// elements of b have 16 bits and those of A fewer, which become such of b's type.
//
//   values   [groups, m, k/2]                  8-bit elements, rows on 16-byte boundaries           (read, without BITS)
//   packed   [groups, atoms_k, atoms_m, 1024]  codes in atoms of 64x128, those of 8-bit elements    (read)
//            [groups, row blocks, atoms_k, bytes]  or, with BITS, bricks of a quantised A           (read)
//   offsets  [groups + 1]                      columns offsets[g] to offsets[g + 1] belong to g     (read)
//   b        [k, n]                            k contiguous, columns on 16-byte boundaries          (read)
//   out      [m, n]                            m contiguous, columns on 16-byte boundaries; the last (written)
//                                              16 bytes of a column are written whole, with any bits behind m
//
// Epilogue, gate, offsets and the order of tiles are those of grouped_wgmma.cu, but that with BITS the rows of a gate
// are whole bricks.  A goes through registers, where it is widened, as mixed_tile.cuh says; one thread, the producer,
// asks the TMA for what the warpgroups read.
//
// Shared memory: stages and slots as in mixed_tile.cuh, an output buffer for each consumer, the barriers of the ring and
// of the gate, and the table of groups.
//
// Macros: ELEMENT B_ELEMENT STORED BITS BLOCK_M BLOCK_N BLOCK_K STAGES CONSUMERS BLOCKS, as in mixed_tile.cuh; OUTPUT
// OFFSET GATED EPILOGUE ACTIVATION, as in grouped_wgmma.cu.
// Tiles and their choice: kernels/grouped_mixed_configs.py.
//
// Reference: reference_grouped.grouped_matmul, of a quantised A behind reference_quantised.dequantise.
// Launcher: kernels/grouped_mixed.py.  How it works: docs/explanation/kernels.rst.
#define B_ROW_MAJOR 0
#define OUT_ROW_MAJOR 0
#define OUT_BULK 0
#define STAGING 1
#include "group_scheduler.cuh"
#include "group_store.cuh"
#include "programmatic.cuh"

struct TensorMaps { TensorMap of[2]; };  // for whole tiles, and for the last ones along m

struct Shape {
    int m;                   // of the result
    int atoms_m, atoms_k;    // of A: atoms, or bricks
    long long packed_batch;  // bytes
};

constexpr int kHalves = GATED ? 2 : 1;
#include "mixed_tile.cuh"

constexpr u32 kStagingAt = kSlotsAt + kSlots * kSlotBytes;
constexpr u32 kBarriersAt = kStagingAt + CONSUMERS * kStagingBytes;

using Ring = Pipeline<STAGES, CONSUMERS * 4, 1>;
constexpr u32 kGateAt = kBarriersAt + Ring::bytes;
constexpr u32 kTableAt = kGateAt + GroupGate::bytes;

#include "mixed_consumer.cuh"

// The producer, a single thread: asks for the stages of every tile of this block.
class Producer {
  public:
    __device__ Producer(const Weight& weight, const TensorMap& b, const Shape& shape, const Ring& ring, u32 shared)
        : weight_(weight), b_(b), shape_(shape), ring_(ring), shared_(shared) {}

    __device__ void run(GroupScheduler tiles) {
        for (Work work; tiles.advance(work);) {
            const u32 bytes = kHalves * weight_.bytes(rows_of(work, 0)) + kStageBytes;
#pragma unroll 1
            for (int slice = 0; slice < shape_.atoms_k; slice++) {
#pragma unroll
                for (int part = 0; part < kParts; part++, at_.advance()) {
                    const u32 barrier = ring_.acquire(at_, part == 0 ? bytes : kStageBytes);
                    if (part == 0) fetch_a(work, slice, barrier);
                    load_box(shared_ + at_.stage * kStageBytes, b_, slice * kAtomK + part * BLOCK_K, work.first, 0, barrier);
                }
            }
        }
    }

  private:
    // What a tile has of a half of the rows of A, or of all.
    __device__ RowsOfA rows_of(const Work& work, int half) const {
        const int first = work.m * kTileM;
        return {half * shape_.m + first, min(kTileM, shape_.m - first), work.group, half * kTileM};
    }
    // The next slot.
    __device__ void fetch_a(const Work& work, int slice, u32 barrier) {
        const u32 slot = shared_ + kSlotsAt + slot_ * kSlotBytes;
#pragma unroll
        for (int half = 0; half < kHalves; half++) weight_.fetch(rows_of(work, half), slice, slot, barrier);
        slot_ = slot_ + 1 == kSlots ? 0 : slot_ + 1;
    }

    const Weight weight_;
    const TensorMap& b_;
    const Shape& shape_;
    const Ring& ring_;
    u32 shared_;
    Ring::Position at_;
    int slot_ = 0;
};

__device__ inline void consume(const GroupOut& out, const EpilogueParams& params, const Shape& shape,
                               GroupScheduler tiles, const Ring& ring, const GroupGate& gate, u32 shared) {
    const int group = threadIdx.x / 128;
    GroupStore result(out, params, shared + kStagingAt + group * kStagingBytes, gate);
    Consumer consumer(ring, shared, group);
    for (Work work; tiles.advance(work);) {
        consumer.multiply(shape.atoms_k);
#pragma unroll
        for (int r = 0; r < kRowBlocks; r++) {
            const int block = GATED ? r : group * kRowBlocks + r;
            const Part part = {work.m * kTileM + block * 64, work.first, work.end, work.group};
            if (GATED && group == 1)
                result.give(consumer.d[r], part);
            else
                result.store(consumer.d[r], part);
        }
    }
}

extern "C" __global__ void __launch_bounds__(kThreads, BLOCKS)
grouped_mixed(const __grid_constant__ TensorMaps values, const __grid_constant__ TensorMap b, const unsigned char* packed,
              const __grid_constant__ GroupOut out, const __grid_constant__ Shape shape,
              const __grid_constant__ Grouping grouping, const __grid_constant__ EpilogueParams params) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const u32 shared = shared_address(memory);
    const Ring ring(shared + kBarriersAt);
    const GroupGate gate(shared + kStagingAt + kStagingBytes, shared + kGateAt);  // the giver does not store
    const GroupScheduler tiles(grouping, reinterpret_cast<int*>(memory + kTableAt));

    if (threadIdx.x == kProducer) {
        for (int last = 0; last < 2; last++) prefetch_map(values.of[last]);
        prefetch_map(b);
        ring.init();
        if (GATED) gate.init();
    }
    clear_codes(shared);
    let_next_start();
    wait_for_previous();
    tiles.lay_out();

    if (threadIdx.x >= kProducer) {
        if (kDealRegisters) give_registers<kProducerRegisters>();
        if (threadIdx.x / 32 == kProducer / 32 && elected())
            Producer({values, packed, shape}, b, shape, ring, shared).run(tiles);
    } else {
        if (kDealRegisters) take_registers<kConsumerRegisters>();
        consume(out, params, shape, tiles, ring, gate, shared);
    }
}
