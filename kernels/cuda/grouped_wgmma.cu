// grouped_wgmma: out (m, n) = epilogue(A[g] (m, k; 2:4) @ b (k, n)), with g the group of each column, on Hopper.
//
//   values   [groups, m, k/2]                  whole groups of four, rows on 16-byte boundaries      (read)
//   packed   [groups, atoms_k, atoms_m, 1024]  metadata in atoms of 64x128 (sparse24/_spec.py)       (read)
//   offsets  [groups + 1]                      columns offsets[g] to offsets[g + 1] belong to g      (read)
//   b        [k, n]                            k contiguous, columns on 16-byte boundaries           (read)
//   out      [m, n]                            m contiguous, columns on 16-byte boundaries; the last (written)
//                                              16 bytes of a column are written whole, with any bits behind m
//
// The epilogue is that of epilogue.cuh, with a bias and scales [groups, rows of A] of rows, and scales [n] of columns.
//
// GATED: A[g] has 2 m rows, first those of a gate, then those that it gates.  With x = A[g] @ b, after scales and bias,
// out = activation(x[:m]) * x[m:].  The first half of a tile's rows are of the gate, the second half are the rows that
// they gate; each half belongs to one warpgroup (include/group_gate.cuh).  m is a multiple of 64, because whole atoms
// of metadata are fetched for each half.
//
// These are the products of a layer of experts: columns are tokens, sorted by expert.  Only the GPU knows how many
// tokens each expert has, so blocks find their tiles themselves (include/group_scheduler.cuh).  Offsets below 0 count
// as 0, those above n as n; columns that belong to no group are not written.
//
// Producer, ring, barriers and consumers are those of sparse_wgmma.cu.  A tile may read columns of b behind the end of
// its group; the results of these are not stored (include/group_store.cuh).
//
// Shared memory: the stages of the ring (b, then A, as in sparse_wgmma.cu), the metadata buffers, an output buffer for
// each consumer, the barriers of the ring and of the gate, and the table of groups.
//
// Macros: ELEMENT B_ELEMENT OUTPUT OFFSET BLOCK_M BLOCK_N BLOCK_K STAGES CONSUMERS BLOCKS IN_FLIGHT PROMOTE GATED
// EPILOGUE ACTIVATION; kernels/grouped_wgmma.py chooses.
//
// Reference: reference_grouped.grouped_matmul.  Launcher: kernels/grouped_wgmma.py.  How it works:
// docs/explanation/kernels.rst.
#define B_ROW_MAJOR 0
#define OUT_ROW_MAJOR 0
#define OUT_BULK 0
#define STAGING 1
#include "group_scheduler.cuh"
#include "group_store.cuh"
#include "hopper_metadata.cuh"
#include "hopper_pipeline.cuh"
#include "programmatic.cuh"

struct TensorMaps { TensorMap of[2]; };  // for whole tiles, and for the last ones along m

struct Shape {
    int m;                   // of the result
    int atoms_m, atoms_k;    // of A
    int tail;                // rows of A in a box of the last tiles
    long long packed_batch;  // bytes
};

constexpr int kElementBytes = sizeof(Scalar<Kind::ELEMENT>::type);
constexpr int kHalves = GATED ? 2 : 1;                   // of the rows of A
constexpr int kTileM = BLOCK_M / kHalves;                // rows of the result
constexpr int kSpans = BLOCK_K * kElementBytes / 128;    // 128-byte columns of b in a stage
constexpr int kSteps = 2 * kSpans;                       // instructions along k in a stage
constexpr int kAtomsOfStage = BLOCK_K > kAtomK ? BLOCK_K / kAtomK : 1;
constexpr int kSliceK = kAtomsOfStage * kAtomK;          // of k: an atom, or the atoms of a stage
constexpr int kParts = kSliceK / BLOCK_K;                // stages of a slice
constexpr int kRowBlocks = BLOCK_M / (64 * CONSUMERS);   // 64-row blocks of a warpgroup
constexpr int kProducer = CONSUMERS * 128;               // first thread of the producer
constexpr int kThreads = kProducer + 128;
constexpr int kPromoted = 2 / kAtomsOfStage;             // PROMOTE: slices between promotions, as in sparse_wgmma.cu

// Some registers of the producer go to the consumers; with a single consumer there are enough without.
constexpr bool kDealRegisters = CONSUMERS > 1;
constexpr int kConsumerRegisters = 224, kProducerRegisters = 56;

constexpr u32 kABytes = BLOCK_M * 64 * kSpans;
constexpr u32 kBBytes = BLOCK_N * 128 * kSpans;
constexpr u32 kStageBytes = kABytes + kBBytes;
constexpr u32 kAAt = kBBytes;                            // where A begins in a stage
constexpr int kAtoms = BLOCK_M / kAtomM;                 // metadata atoms of a tile
constexpr int kAtomsOfHalf = kAtoms / kHalves;
constexpr int kSlots = (STAGES + kParts - 1) / kParts;   // metadata buffers, one for a slice
constexpr u32 kSlotBytes = kAtomsOfStage * kAtoms * kAtomBytes;
constexpr u32 kMetadataAt = STAGES * kStageBytes;
constexpr u32 kStagingAt = kMetadataAt + kSlots * kSlotBytes;
constexpr u32 kBarriersAt = kStagingAt + CONSUMERS * kStagingBytes;

constexpr u64 kADescriptor = descriptor(kSpans == 2 ? kSwizzle128 : kSwizzle64, 512 * kSpans);
constexpr u64 kBDescriptor = descriptor(kSwizzle128, 1024);

using Ring = Pipeline<STAGES, CONSUMERS * 4, 1>;
constexpr u32 kGateAt = kBarriersAt + Ring::bytes;
constexpr u32 kTableAt = kGateAt + GroupGate::bytes;

#include "tile_consumer.cuh"

// What the TMA fetches from.
struct Sources {
    const TensorMaps& values;
    const TensorMap& b;
    const unsigned char* packed;
};

// The producer, a single thread: asks for the stages of every tile of this block.
class Producer {
  public:
    __device__ Producer(const Sources& from, const Shape& shape, const Ring& ring, u32 shared)
        : from_(from), shape_(shape), ring_(ring), shared_(shared) {}

    __device__ void produce(GroupScheduler tiles) {
        for (Work work; tiles.advance(work);) {
            const bool last = shape_.m - work.m * kTileM < kTileM;
            const u32 bytes = ((last ? shape_.tail : kTileM) * kHalves * 64 + BLOCK_N * 128) * kSpans;
            const int atoms_of_half = min(kAtomsOfHalf, shape_.atoms_m / kHalves - work.m * kAtomsOfHalf);
#pragma unroll 1
            for (int atom = 0; atom < shape_.atoms_k; atom += kAtomsOfStage) {
                const int atoms = min(kAtomsOfStage, shape_.atoms_k - atom);
                const u32 metadata_bytes = kHalves * atoms * atoms_of_half * kAtomBytes;
                for (int part = 0; part < kParts; part++) {
                    const u32 barrier = ring_.acquire(at_, bytes + (part == 0 ? metadata_bytes : 0));
                    if (part == 0) fetch_metadata(work, atom, atoms, atoms_of_half * kAtomBytes, barrier);
                    fetch(work, atom * kAtomK + part * BLOCK_K, from_.values.of[last], barrier);
                    at_.advance();
                }
            }
        }
    }

  private:
    // The metadata of a slice of k, into the next buffer.
    __device__ void fetch_metadata(const Work& work, int atom, int atoms, u32 bytes_of_half, u32 barrier) {
        const u32 to = shared_ + kMetadataAt + slot_ * kSlotBytes;
        const unsigned char* group = from_.packed + work.group * shape_.packed_batch;
#pragma unroll
        for (int i = 0; i < kAtomsOfStage; i++) {
            if (i >= atoms) continue;
#pragma unroll
            for (int half = 0; half < kHalves; half++) {
                const int at = work.m * kAtomsOfHalf + half * (shape_.atoms_m / kHalves);
                const unsigned char* from = group + ((long long)(atom + i) * shape_.atoms_m + at) * kAtomBytes;
                load_bytes(to + (i * kAtoms + half * kAtomsOfHalf) * kAtomBytes, from, bytes_of_half, barrier);
            }
        }
        slot_ = slot_ + 1 == kSlots ? 0 : slot_ + 1;
    }
    __device__ void fetch(const Work& work, int k, const TensorMap& values, u32 barrier) const {
        const u32 stage = shared_ + at_.stage * kStageBytes;
#pragma unroll
        for (int half = 0; half < kHalves; half++)
            load_box(stage + kAAt + half * (kABytes / kHalves), values, k / 2, half * shape_.m + work.m * kTileM,
                     work.group, barrier);
#pragma unroll
        for (int span = 0; span < kSpans; span++)
            load_box(stage + span * BLOCK_N * 128, from_.b, k + span * (128 / kElementBytes), work.first, 0, barrier);
    }

    const Sources& from_;
    const Shape& shape_;
    const Ring& ring_;
    u32 shared_;
    Ring::Position at_;
    int slot_ = 0;
};

__device__ inline void consume(const GroupOut& out, const EpilogueParams& params, const Shape& shape,
                               GroupScheduler tiles, const Ring& ring, const GroupGate& gate, u32 shared) {
    const int group = threadIdx.x / 128;
    const int slices = (shape.atoms_k + kAtomsOfStage - 1) / kAtomsOfStage;
    GroupStore result(out, params, shared + kStagingAt + group * kStagingBytes, gate);
    Consumer consumer(ring, shared, group);
    for (Work work; tiles.advance(work);) {
        if constexpr (PROMOTE)
            consumer.multiply_promoted(slices);
        else
            consumer.multiply(slices);
        consumer.finish();
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

// Puts legal codes into all metadata buffers, because atoms past the last row or column of A are never fetched.
__device__ inline void clear_metadata(u32 shared) {
    for (u32 i = threadIdx.x * 4; i < kSlots * kSlotBytes; i += kThreads * 4)
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(shared + kMetadataAt + i), "r"(0x44444444u) : "memory");
    async_proxy_fence();
}

extern "C" __global__ void __launch_bounds__(kThreads, BLOCKS)
grouped_wgmma(const __grid_constant__ TensorMaps values, const __grid_constant__ TensorMap b, const unsigned char* packed,
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
    clear_metadata(shared);
    let_next_start();
    wait_for_previous();
    tiles.lay_out();

    if (threadIdx.x >= kProducer) {
        if (kDealRegisters) give_registers<kProducerRegisters>();
        if (threadIdx.x / 32 == kProducer / 32 && elected())
            Producer({values, b, packed}, shape, ring, shared).produce(tiles);
    } else {
        if (kDealRegisters) take_registers<kConsumerRegisters>();
        consume(out, params, shape, tiles, ring, gate, shared);
    }
}
