// grouped_wgmma: out (m, n) = A[g] (m, k; 2:4) @ b (k, n), with g the group of each column, on Hopper.
//
//   values   [groups, m, k/2]                  whole groups of four, rows on 16-byte boundaries      (read)
//   packed   [groups, atoms_k, atoms_m, 1024]  metadata in atoms of 64x128 (sparse24/_spec.py)       (read)
//   offsets  [groups + 1]                      columns offsets[g] to offsets[g + 1] belong to g      (read)
//   b        [k, n]                            k contiguous, columns on 16-byte boundaries           (read)
//   bias     [groups, m]                       float32, with BIAS                                    (read)
//   out      [m, n]                            m contiguous, columns on 16-byte boundaries           (written)
//
// These are the products of a layer of experts: columns are tokens, sorted by expert.  How many each expert has is
// known to the GPU alone, so blocks find their tiles themselves (include/group_scheduler.cuh).  Offsets outside of
// 0 to n are taken as these; columns that no group has are not written.
//
// Producer, ring and consumers are those of sparse_wgmma.cu.  A tile may read columns of b behind the end of its
// group; what comes of them is not stored (include/group_store.cuh).
//
// Macros: ELEMENT B_ELEMENT OUTPUT OFFSET BLOCK_M BLOCK_N BLOCK_K STAGES CONSUMERS BLOCKS IN_FLIGHT PROMOTE BIAS
// MOST_GROUPS; kernels/grouped_wgmma.py chooses.
//
// Reference: reference_grouped.grouped_matmul.  Launcher: kernels/grouped_wgmma.py.  How it works:
// docs/explanation/kernels.rst.
#define B_ROW_MAJOR 0
#define OUT_ROW_MAJOR 0
#define OUT_BULK 0
#define STAGING 1
#define EPILOGUE 0
#define ACTIVATION 0
#include "group_scheduler.cuh"
#include "group_store.cuh"
#include "hopper_metadata.cuh"
#include "hopper_pipeline.cuh"
#include "programmatic.cuh"

struct TensorMaps { TensorMap of[2]; };  // for whole tiles, and for the last ones along m

struct Shape {
    int m, atoms_m, atoms_k;
    int tail;                // rows of A in a box of the last tiles
    long long packed_batch;  // bytes
};

constexpr int kElementBytes = sizeof(Scalar<Kind::ELEMENT>::type);
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
constexpr int kAtoms = BLOCK_M / kAtomM;                 // metadata atoms of a tile
constexpr int kSlots = (STAGES + kParts - 1) / kParts;   // metadata buffers, one for a slice
constexpr u32 kSlotBytes = kAtomsOfStage * kAtoms * kAtomBytes;
constexpr u32 kMetadataAt = STAGES * kStageBytes;
constexpr u32 kStagingAt = kMetadataAt + kSlots * kSlotBytes;
constexpr u32 kBarriersAt = kStagingAt + CONSUMERS * kStagingBytes;

constexpr u64 kADescriptor = descriptor(kSpans == 2 ? kSwizzle128 : kSwizzle64, 512 * kSpans);
constexpr u64 kBDescriptor = descriptor(kSwizzle128, 1024);

using Ring = Pipeline<STAGES, CONSUMERS * 4, 1>;
constexpr u32 kTableAt = kBarriersAt + Ring::bytes;

#include "tile_consumer.cuh"

// What the copy engine fetches from.
struct Sources {
    const TensorMaps& values;
    const TensorMap& b;
    const unsigned char* packed;
};

// One thread: the stages of every tile of this block.
__device__ inline void produce(const Sources& from, const Shape& shape, GroupScheduler tiles, const Ring& ring, u32 shared) {
    Ring::Position at;
    int slot = 0;
    const long long next_atom = (long long)shape.atoms_m * kAtomBytes;
    for (Work work; tiles.advance(work);) {
        const int row = work.m * BLOCK_M, atom_m = work.m * kAtoms;
        const bool last = shape.m - row < BLOCK_M;
        const u32 bytes = ((last ? shape.tail : BLOCK_M) * 64 + BLOCK_N * 128) * kSpans;
        const u32 metadata_bytes = min(kAtoms, shape.atoms_m - atom_m) * kAtomBytes;
        const unsigned char* metadata = from.packed + work.group * shape.packed_batch + atom_m * kAtomBytes;
#pragma unroll 1
        for (int atom = 0; atom < shape.atoms_k; atom += kAtomsOfStage) {
            const int atoms = min(kAtomsOfStage, shape.atoms_k - atom);
            for (int part = 0; part < kParts; part++) {
                const int k = atom * kAtomK + part * BLOCK_K;
                const u32 stage = shared + at.stage * kStageBytes;
                const u32 barrier = ring.acquire(at, bytes + (part == 0 ? atoms * metadata_bytes : 0));
                if (part == 0) {
                    const u32 to = shared + kMetadataAt + slot * kSlotBytes;
#pragma unroll
                    for (int i = 0; i < kAtomsOfStage; i++, metadata += next_atom)
                        if (i < atoms) load_bytes(to + i * kAtoms * kAtomBytes, metadata, metadata_bytes, barrier);
                    slot = slot + 1 == kSlots ? 0 : slot + 1;
                }
                load_box(stage + kBBytes, from.values.of[last], k / 2, row, work.group, barrier);
#pragma unroll
                for (int span = 0; span < kSpans; span++)
                    load_box(stage + span * BLOCK_N * 128, from.b, k + span * (128 / kElementBytes), work.first, 0, barrier);
                at.advance();
            }
        }
    }
}

__device__ inline void consume(const GroupOut& out, const Shape& shape, GroupScheduler tiles, const Ring& ring, u32 shared) {
    const int group = threadIdx.x / 128;
    const int slices = (shape.atoms_k + kAtomsOfStage - 1) / kAtomsOfStage;
    const GroupStore result(out, shared + kStagingAt + group * kStagingBytes);
    Consumer consumer(ring, shared, group);
    for (Work work; tiles.advance(work);) {
        if constexpr (PROMOTE)
            consumer.multiply_promoted(slices);
        else
            consumer.multiply(slices);
        consumer.finish();
#pragma unroll
        for (int r = 0; r < kRowBlocks; r++)
            result.store(consumer.d[r], work.m * BLOCK_M + (group * kRowBlocks + r) * 64, work.first, work.end, work.group);
    }
}

// Puts legal codes into all buffers: atoms past the last row or column are never fetched.
__device__ inline void clear_metadata(u32 shared) {
    for (u32 i = threadIdx.x * 4; i < kSlots * kSlotBytes; i += kThreads * 4)
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(shared + kMetadataAt + i), "r"(0x44444444u) : "memory");
    async_proxy_fence();
}

extern "C" __global__ void __launch_bounds__(kThreads, BLOCKS)
grouped_wgmma(const __grid_constant__ TensorMaps values, const __grid_constant__ TensorMap b, const unsigned char* packed,
              const __grid_constant__ GroupOut out, const __grid_constant__ Shape shape,
              const __grid_constant__ Grouping grouping) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const u32 shared = shared_address(memory);
    const Ring ring(shared + kBarriersAt);
    const GroupScheduler tiles(grouping, reinterpret_cast<int*>(memory + kTableAt));

    if (threadIdx.x == kProducer) {
        for (int last = 0; last < 2; last++) prefetch_map(values.of[last]);
        prefetch_map(b);
        ring.init();
    }
    clear_metadata(shared);
    let_next_start();
    wait_for_previous();
    tiles.lay_out();

    if (threadIdx.x >= kProducer) {
        if (kDealRegisters) give_registers<kProducerRegisters>();
        if (threadIdx.x / 32 == kProducer / 32 && elected()) produce({values, b, packed}, shape, tiles, ring, shared);
    } else {
        if (kDealRegisters) take_registers<kConsumerRegisters>();
        consume(out, shape, tiles, ring, shared);
    }
}
