// sparse_decode: out [m, n] = epilogue(A [m, k] 2:4  @  b [k, n]) for the few columns of a decoding step.
//
//   values [batch, m, 2 ceil(k/4)]    stored elements, rows on 16-byte boundaries    (read once)
//   packed [batch, K atoms, M atoms]  1024-byte atoms of metadata, tensor-core order (read once)
//   b      [batch, k, n]              columns contiguous, on 16-byte boundaries, or  (read)
//                                     rows of TILE_N columns, one after the other
//   out    [batch, m, n]              any strides                                    (written)
//
// The time is that of reading A.  Blocks and warps work as decode_producer.cuh and decode_blocks.cuh say, and multiply
// by mma.sp, or with WGMMA 1 by wgmma.sp.
//
// Stages are those of sparse_tile.cuh, whose swizzle is that of the TMA.  What lies outside of A and b comes as zeros.
// The elements of A may be of 8 bits where those of b are of 16 (decode_mixed.cuh).
//
// Shared memory: STAGES stages, WARPS_K tiles of sums, and the barriers of hopper_pipeline.cuh.
//
// Macros: those of sparse_tile and tile_store, with B_ASYNC 1, and WGMMA 1 only with MIXED and B_COLUMN 1; STORED, the
// type of A in memory, and MIXED, 1 where that is not ELEMENT, as which it is multiplied; SUMS_AT, where the sums lie;
// BLOCKS, how many blocks a multiprocessor shall have room for; SPLIT is not used.
//
// Reference: reference.matmul and apply_epilogue.  Launcher: kernels/sparse_decode.py.
// Source: PTX ISA, cp.async.bulk.tensor, cp.async.bulk.prefetch.tensor.
#include "tile_store.cuh"
namespace hopper {  // as both name a function shared_address
#include "hopper_pipeline.cuh"
}
using hopper::TensorMap;

constexpr Kind kStored = Kind::STORED;
constexpr bool kManyColumns = MIXED;
constexpr int kStoredItem = sizeof(Scalar<kStored>::type);
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
#include "decode_producer.cuh"
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

// A and its metadata.
struct Weight {
    const TensorMap& values;
    const char* packed;
    const Shape& s;

    int bytes(int) const { return kBAt; }
    void prefetch(const Place& tile, int k0) const {
        each_box(tile, k0, [&](int, int x, int y, int z) { prefetch_box(values, x, y, z); });
        each_atom(tile, k0, [&](int, const char* from) { prefetch_bytes(from, kAtomRows * 16); });
    }
    void load(unsigned stage, const Place& tile, int k0, unsigned barrier) const {
        each_box(tile, k0, [&](int i, int x, int y, int z) {
            hopper::load_box(stage + i * TILE_M * 128, values, x, y, z, barrier);
        });
        each_atom(tile, k0, [&](int i, const char* from) {
            hopper::load_bytes(stage + kMetaAt + i * kAtomRows * 16, from, kAtomRows * 16, barrier);
        });
    }

  private:
    template <class Act> void each_box(const Place& tile, int k0, Act act) const {
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

extern "C" __global__ void __launch_bounds__(kBlockThreads, BLOCKS)
sparse_decode(const __grid_constant__ TensorMap values, const char* packed, const __grid_constant__ Dense b,
              Out::type* out, int ahead, const __grid_constant__ Shape s,
              const __grid_constant__ EpilogueParams p) {
    extern __shared__ __align__(1024) char shared[];
    multiply_tiles(shared, Weight{values, packed, s}, b, out, ahead, s, p);
}
