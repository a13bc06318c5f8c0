// sparse_decode: out [m, n] = epilogue(A [m, k] 2:4  @  b [k, n]) for the few columns of a decoding step.
//
//   values [batch, m, 2 ceil(k/4)]    stored elements, rows on 16-byte boundaries    (read once)
//   packed [batch, K atoms, M atoms]  1024-byte atoms of metadata, tensor-core order (read once)
//   b      [batch, k, n]              columns contiguous, on 16-byte boundaries, or  (read)
//                                     rows of TILE_N columns, one after the other
//   out    [batch, m, n]              any strides                                    (written)
//
// The time is that of reading A.  A block has a ring of stages for all of its tiles.  One thread asks the TMA for stage
// after stage; WARPS_K warps, or teams of WARPS_M * WARPS_N warps, share the K atoms of each stage and multiply by
// mma.sp.  Their sums meet in shared memory at the end of a tile, where they are added in a fixed order.
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
constexpr int kStoredItem = sizeof(Scalar<kStored>::type);
constexpr int kAhead = 2;  // stages that are brought to the L2 cache
constexpr int kAllThreads = kThreads + 32;
constexpr int kABox = 128 / kStoredItem, kBBox = 128 / kItem;  // elements in 128 bytes
constexpr int kRowOfA = TILE_K / 2 * kStoredItem;              // bytes in a stage
constexpr int kABoxes = kRowOfA / 128;                         // of a stage: [TILE_M] rows of 128 bytes
constexpr int kBBoxes = TILE_K / kBBox;                        // [TILE_N] columns of 128 bytes
constexpr int kMetaAt = TILE_M * kRowOfA;                      // in a stage, behind A
constexpr int kBAt = kMetaAt + kMetaBytes;
constexpr int kStage = kBAt + kBBytes;
constexpr int kBarriersAt = SUMS_AT + WARPS_K * kPartial * sizeof(Sum);
constexpr int kAtomRows = smaller(TILE_M, 64);                 // that are in one atom of metadata
constexpr int kAtomsM = TILE_M / kAtomRows;
static_assert(SUMS_AT >= STAGES * kStage);
static_assert(kRowOfA % 128 == 0 && 64 % kAtomRows == 0 && TILE_M % kAtomRows == 0);
static_assert(kMetaAt % 1024 == 0 && kBAt % 1024 == 0 && kStage % 1024 == 0);  // periods of the swizzle

using Ring = hopper::Pipeline<STAGES, kWarps, 1>;

// The barrier of a stage that tells that it has been filled; those of the ring come first.
inline unsigned full_barrier(unsigned shared, const Ring::Position& at) { return shared + kBarriersAt + 8 * at.stage; }

// A tile of the result: its first row and column, and its product of the batch.
struct Place {
    int m0, n0, batch;
};

inline int tiles_of(int size, int tile) { return (size + tile - 1) / tile; }

// Tiles along n: one, unless A is widened.  Those of the same rows follow one another.
inline int tiles_along_n(const Shape& s) { return MIXED ? tiles_of(s.n, TILE_N) : 1; }

inline Place place_of(int number, const Shape& s) {
    const int tiles_n = tiles_along_n(s), tiles_m = tiles_of(s.m, TILE_M);
    const int line = tiles_n == 1 ? number : number / tiles_n;
    return {line % tiles_m * TILE_M, (number - line * tiles_n) * TILE_N, line / tiles_m};
}

// Calls act(tile) for each tile of this block.
template <class Act> inline void each_tile(const Shape& s, Act act) {
    const int tiles = tiles_of(s.m, TILE_M) * tiles_along_n(s) * s.batch;
    for (int number = blockIdx.x; number < tiles; number += gridDim.x) act(place_of(number, s));
}

#if B_COLUMN
using Dense = TensorMap;
#else
using Dense = const char*;
#include "decode_rows.cuh"
#endif
#if MIXED
#include "decode_mixed.cuh"
#endif

inline void multiply(Sums& sums, unsigned stage, const Lane& w) {
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
inline void prefetch_bytes(const char* from, int bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(from), "r"(bytes) : "memory");
}

// What one thread asks of the TMA.
struct Producer {
    const TensorMap& values;
    const Dense& b;
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
        const int stages = min(min(ahead, STAGES), (s.k + TILE_K - 1) / TILE_K);
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
                load_b(shared, at, tile, k0);
            }
        });
    }

  private:
    int bytes(int k0) const { return kBAt + bytes_of_b(k0); }
#if B_COLUMN
    int bytes_of_b(int) const { return kBBoxes * 128 * (MIXED ? min(TILE_N, s.n) : s.n); }
#else
    int bytes_of_b(int k0) const { return min(TILE_K, s.k - k0) * kRowOfB; }
#endif
    void load_a(unsigned shared, const Ring::Position& at, const Place& tile, int k0, unsigned barrier) const {
        const unsigned stage = shared + at.stage * kStage;
        each_box_of_a(tile, k0, [&](int i, int x, int y, int z) {
            hopper::load_box(stage + i * TILE_M * 128, values, x, y, z, barrier);
        });
        each_atom(tile, k0, [&](int i, const char* from) {
            hopper::load_bytes(stage + kMetaAt + i * kAtomRows * 16, from, kAtomRows * 16, barrier);
        });
    }
    void load_b(unsigned shared, const Ring::Position& at, const Place& tile, int k0) const {
        const unsigned stage = shared + at.stage * kStage, barrier = full_barrier(shared, at);
#if B_COLUMN
#pragma unroll
        for (int i = 0; i < kBBoxes; ++i)
            hopper::load_box(stage + kBAt + i * TILE_N * 128, b, k0 + i * kBBox, tile.n0,
                             s.b_batch ? tile.batch : 0, barrier);
#else
        const char* from = b + tile.batch * s.b_batch * kItem + (long long)k0 * kRowOfB;
        hopper::load_bytes(stage + kBAt, from, bytes_of_b(k0), barrier);
#endif
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

// Zero in lane 0, but only when all products so far are there.  That lane gives a stage back: as it has to know this zero,
// it does so behind the matrix loads of the stage, which the next copy would overtake while they are queued.  A fence of
// the proxies (fence.proxy.async) does it as well, and takes 1 to 5 % longer (docs/benchmarks/log_few_tokens.rst).
inline unsigned nothing(const Sums& sums, const Lane& w) {
    unsigned bits = 0;
#pragma unroll
    for (int tile = 0; tile < kTilesM; ++tile)
#pragma unroll
        for (int f = 0; f < kTilesN; ++f) bits |= reinterpret_cast<const unsigned&>(sums[tile][f][0]);
    asm volatile("and.b32 %0, %0, %1;" : "+r"(bits) : "r"(w.lane));  // the compiler must not know that it is zero
    return bits;
}

inline void consume(const Ring& ring, const Shape& s, char* shared, Out::type* out, const EpilogueParams& p) {
    const Lane w;
    Sum* partials = reinterpret_cast<Sum*>(shared + SUMS_AT);
    Ring::Position at;
    each_tile(s, [&](const Place& tile) {
        Sums sums = {};
        for (int k0 = 0; k0 < s.k; k0 += TILE_K) {
            char* const stage = shared + at.stage * kStage;
            ring.wait(at);
#if !B_COLUMN
            if (k0 + TILE_K > s.k) clear_rows(stage, s.k - k0);
#endif
            multiply(sums, shared_address(stage), w);
            ring.release(at.stage + nothing(sums, w));
            at.advance();
        }
        hopper::group_sync(1, kThreads);  // now nobody reads the sums of the tile before
        store_sums(sums, partials);
        hopper::group_sync(1, kThreads);
        const auto sum = [&](int row, int column) { return block_sum(partials, row, column); };
        store_tile<TILE_M>(sum, s, out, p, tile.m0, tile.n0, tile.batch);
    });
}

// Where b has fewer columns than a tile, its boxes have no more either; the other columns of all stages become zeros.
inline void clear_b(char* shared) {
    constexpr int chunks = kBBytes / 16;
    for (int i = threadIdx.x; i < STAGES * chunks; i += kAllThreads)
        reinterpret_cast<uint4*>(shared + i / chunks * kStage + kBAt)[i % chunks] = {};
    hopper::async_proxy_fence();  // the TMA writes to its neighbours afterwards
}

extern "C" __global__ void __launch_bounds__(kAllThreads, BLOCKS)
sparse_decode(const __grid_constant__ TensorMap values, const __grid_constant__ Dense b, const char* packed,
              Out::type* out, int ahead, const __grid_constant__ Shape s,
              const __grid_constant__ EpilogueParams p) {
    extern __shared__ __align__(1024) char shared[];
    const Ring ring(shared_address(shared) + kBarriersAt);
    const Producer producer{values, b, packed, s};
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
