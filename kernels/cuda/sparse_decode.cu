// sparse_decode: out [m, n] = epilogue(A [m, k] 2:4  @  b [k, n]) for the few columns of a decoding step.
//
//   values [batch, m, 2 ceil(k/4)]    stored elements, rows on 16-byte boundaries    (read once)
//   packed [batch, K atoms, M atoms]  1024-byte atoms of metadata, tensor-core order (read once)
//   b      [batch, k, n]              columns contiguous, on 16-byte boundaries, or  (read)
//                                     rows of TILE_N columns, one after the other
//   out    [batch, m, n]              any strides                                    (written)
//
// The time is that of reading A.  Blocks and warps work as decode_blocks.cuh says, and multiply by mma.sp.
//
// Stages are those of sparse_tile.cuh, whose swizzle is that of the TMA.  What lies outside of A and b comes as zeros.
// The elements of A may be of 8 bits where those of b are of 16 (decode_mixed.cuh).
//
// The kernel before this one may have written A, so it has to end before A is read.  But what it writes goes to the L2
// cache, so blocks that start earlier bring the first stages of A there meanwhile.  Where the caller knows that all
// that wrote to A has ended, `ahead` stages of it go to shared memory at once.
//
// Shared memory: STAGES stages, WARPS_K tiles of sums, and the barriers of hopper_pipeline.cuh.
//
// Macros: those of sparse_tile and tile_store, with B_ASYNC 1 and WGMMA 0; STORED, the type of A in memory, and MIXED, 1
// where that is not ELEMENT, as which it is multiplied; SUMS_AT, where the sums lie; BLOCKS, how many blocks a
// multiprocessor shall have room for; SPLIT is not used.
//
// Reference: reference.matmul and apply_epilogue.  Launcher: kernels/sparse_decode.py.
// Source: PTX ISA, cp.async.bulk.tensor, cp.async.bulk.prefetch.tensor, griddepcontrol.
#include "programmatic.cuh"
#include "tile_store.cuh"
namespace hopper {  // as both name a function shared_address
#include "hopper_pipeline.cuh"
}
using hopper::TensorMap;

constexpr Kind kStored = Kind::STORED;
constexpr bool kManyColumns = MIXED;
constexpr int kStoredItem = sizeof(Scalar<kStored>::type);
constexpr int kAhead = 2;  // stages that are brought to the L2 cache
constexpr int kABox = 128 / kStoredItem;           // elements in 128 bytes
constexpr int kRowOfA = TILE_K / 2 * kStoredItem;  // bytes in a stage
constexpr int kABoxes = kRowOfA / 128;             // of a stage: [TILE_M] rows of 128 bytes
constexpr int kMetaAt = TILE_M * kRowOfA;          // in a stage, behind A
constexpr int kBAt = kMetaAt + kMetaBytes;
constexpr int kStage = kBAt + kBBytes;
constexpr int kAtomRows = smaller(TILE_M, 64);     // that are in one atom of metadata
constexpr int kAtomsM = TILE_M / kAtomRows;
static_assert(kRowOfA % 128 == 0 && 64 % kAtomRows == 0 && TILE_M % kAtomRows == 0);
static_assert(kMetaAt % 1024 == 0);  // a period of the swizzle
#include "decode_blocks.cuh"
#if MIXED
#include "decode_mixed.cuh"
#endif

inline void multiply(Sums& sums, unsigned stage, const Lane& w, int) {
#if MIXED
    multiply_mixed(sums, stage, w);
#elif B_COLUMN
    multiply_stage(sums, stage, w);
#else
    multiply_rows(sums, stage, w);
#endif
}

inline void prefetch_box(const TensorMap& map, int x, int y, int z) {
    asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%0, {%1, %2, %3}];"
                 :: "l"(&map), "r"(x), "r"(y), "r"(z) : "memory");
}

// What one thread asks of the TMA.
struct Producer {
    const TensorMap& values;
    DenseStages b;
    const char* packed;
    const Shape& s;

    // The first stages of A of the block's first tile, but for those that are on their way.
    void bring_near(int begun) const {
        const Place tile = place_of(blockIdx.x, s);
        for (int k0 = begun * TILE_K; k0 < min(s.k, kAhead * TILE_K); k0 += TILE_K) {
            each_box_of_a(tile, k0, [&](int, int x, int y, int z) { prefetch_box(values, x, y, z); });
            each_atom(tile, k0, [&](int, const char* from) { prefetch_bytes(from, kAtomRows * 16); });
        }
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
    int bytes(int k0) const { return kBAt + b.bytes(k0); }
    void load_a(unsigned shared, const Ring::Position& at, const Place& tile, int k0, unsigned barrier) const {
        const unsigned stage = shared + at.stage * kStage;
        each_box_of_a(tile, k0, [&](int i, int x, int y, int z) {
            hopper::load_box(stage + i * TILE_M * 128, values, x, y, z, barrier);
        });
        each_atom(tile, k0, [&](int i, const char* from) {
            hopper::load_bytes(stage + kMetaAt + i * kAtomRows * 16, from, kAtomRows * 16, barrier);
        });
    }
    template <class Act> void each_box_of_a(const Place& tile, int k0, Act act) const {
#pragma unroll
        for (int i = 0; i < kABoxes; ++i) act(i, k0 / 2 + i * kABox, tile.m0, s.a_batch ? tile.batch : 0);
    }
    // Rows of the tile in the metadata atoms of a stage.  Behind the last atoms any legal codes will do.
    template <class Act> void each_atom(const Place& tile, int k0, Act act) const {
        const int last = (s.k - 1) / 128, left = s.meta_atoms_m - 1 - tile.m0 / 64;
        const char* rows = packed + tile.batch * s.meta_batch + tile.m0 / 64 * 1024 + tile.m0 % 64 * 16;
#pragma unroll
        for (int i = 0; i < kAtoms; ++i)
#pragma unroll
            for (int j = 0; j < kAtomsM; ++j) {
                const long long atom = (long long)min(k0 / 128 + i, last) * s.meta_atoms_m + (j ? min(j, left) : 0);
                act(i * kAtomsM + j, rows + atom * 1024);
            }
    }
};

extern "C" __global__ void __launch_bounds__(kAllThreads, BLOCKS)
sparse_decode(const __grid_constant__ TensorMap values, const __grid_constant__ Dense b, const char* packed,
              Out::type* out, int ahead, const __grid_constant__ Shape s,
              const __grid_constant__ EpilogueParams p) {
    extern __shared__ __align__(1024) char shared[];
    const Ring ring(shared_address(shared) + kBarriersAt);
    const Producer producer{values, {b, s}, packed, s};
    const bool fetches = threadIdx.x >= kThreads;
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
    if (!fetches) consume(ring, s, shared, out, p);
    else if (hopper::elected()) producer.run(ring, shared_address(shared), begun);
}
