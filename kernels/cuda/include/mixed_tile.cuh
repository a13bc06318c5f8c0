// mixed_tile: tiles of sparse_mixed.cu and grouped_mixed.cu: stages, slices, and how A gets to registers.
//
// A does not go from shared memory to the tensor cores: each thread loads what its fragment is made of, widens that, and
// passes registers.  It does so for one stage while the instructions of the stage before still run.
//
// A stage is BLOCK_K rows of b, a slice 128 columns of A: an atom of metadata or a brick.  So a slice has two stages.
// Shared memory begins with these; everything that is swizzled begins at a multiple of 1024 bytes:
//
//   STAGES stages      b: [BLOCK_N] lines of 64 k (k contiguous), or spans of 64 columns, [BLOCK_N / 64][64] lines
//   kSlots slots       A of a slice (mixed_values.cuh, mixed_bricks.cuh)
//
// A slot is filled with the first stage of its slice, on that stage's barrier, and read until the last one.  It is
// refilled kSlots slices later, at least STAGES stages after its last one: the producer has then waited until that was
// given back.
//
// Included behind the kernel's TensorMaps and Shape, and kHalves: into how many parts, which lie apart in A, the rows of
// a tile fall.
//
// Macros: ELEMENT B_ELEMENT BLOCK_M BLOCK_N BLOCK_K STAGES CONSUMERS BLOCKS B_ROW_MAJOR, as in sparse_wgmma.cu, with
// BLOCK_K 64; ELEMENT, as which A is multiplied, is B_ELEMENT; BITS, of a quantised A, or 0; STORED, without BITS the
// type of A in memory.
#pragma once
#include "hopper_metadata.cuh"
#include "hopper_pipeline.cuh"
#include "widen_nibbles.cuh"

constexpr int kElementBytes = 2;                         // of b
constexpr int kLine = 128;                               // bytes along k of a stage
constexpr int kSpans = 1;                                // lines of a stage and column
constexpr int kSteps = 2;                                // instructions along k in a stage
constexpr int kParts = kAtomK / BLOCK_K;                 // stages of a slice
constexpr int kTileM = BLOCK_M / kHalves;                // rows of A that lie together
constexpr int kRowBlocks = BLOCK_M / (64 * CONSUMERS);   // 64-row blocks of a warpgroup
constexpr int kProducer = CONSUMERS * 128;               // first thread of the producer
constexpr int kThreads = kProducer + 128;

// Some registers of the producer go to the consumers, for their sums and fragments.
constexpr int kConsumerRegisters = 232, kProducerRegisters = 40;
constexpr bool kDealRegisters = CONSUMERS > 1 && BLOCKS == 1;

constexpr u32 kStageBytes = BLOCK_N * kLine;
constexpr int kSlots = STAGES / kParts + 1;
constexpr u32 kSlotsAt = STAGES * kStageBytes;

constexpr u64 kBDescriptor = descriptor(kSwizzle128, 1024, B_ROW_MAJOR ? BLOCK_K * 128 : 16);

// What instructions read of the registers of a thread, for a stage.  They do so while they run, and the compiler does
// not know that; `hold`, placed after the wait for them, keeps the registers until then.
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

// Rows that lie together in A: those of a tile, or of a half of it.
struct RowsOfA {
    int first, count, batch;  // of A, and as many as it has
    int at;                   // of the tile
};

#if BITS
#include "mixed_bricks.cuh"
#else
#include "mixed_values.cuh"
#endif

// Fills all slots with legal codes, wherever they have codes, because those past the last row of A are never fetched.
__device__ inline void clear_codes(u32 shared) {
    for (u32 i = threadIdx.x * 4; i < kSlots * kSlotBytes; i += kThreads * 4)
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(shared + kSlotsAt + i), "r"(0x44444444u) : "memory");
    async_proxy_fence();
}
