// decode_blocks: what the products of a decoding step share: tiles, the boxes of b, and the turns of the warps.
//
// A block has a ring of stages for all of its tiles.  One thread asks the TMA for stage after stage; WARPS_K warps, or
// teams of WARPS_M * WARPS_N warps, share the K atoms of each stage and multiply them.  Their sums meet in shared memory
// at the end of a tile, where they are added in a fixed order.
//
// Included where these are known: kManyColumns, whether b may have more columns than a tile; kStage, the bytes of a
// stage, and kBAt, where b lies in it.  SUMS_AT is where the sums lie, behind all stages.
#pragma once

// A block has its consumers, and a warp that fetches; or a warpgroup, of which one warp fetches, where consumers need
// registers that the others give away.  Then 65536 registers are 40 for each thread of the latter and 232 for the others.
constexpr bool kDealRegisters = TILE_N >= 128;
constexpr int kBlockThreads = kThreads + (kDealRegisters ? 128 : 32);
constexpr int kFetcherRegisters = 40, kConsumerRegisters = 232;
static_assert(!kDealRegisters || (kThreads == 256 && BLOCKS == 1));

constexpr int kBBox = 128 / kItem;         // elements in 128 bytes
constexpr int kBBoxes = TILE_K / kBBox;    // [TILE_N] columns of 128 bytes
constexpr int kBarriersAt = SUMS_AT + WARPS_K * kPartial * sizeof(Sum);
static_assert(SUMS_AT >= STAGES * kStage);
static_assert(kBAt % 1024 == 0 && kStage % 1024 == 0);  // periods of the swizzle

using Ring = hopper::Pipeline<STAGES, kWarps, 1>;

// The barrier of a stage that tells that it has been filled; those of the ring come first.
inline unsigned full_barrier(unsigned shared, const Ring::Position& at) { return shared + kBarriersAt + 8 * at.stage; }

// A tile of the result: its first row and column, and its product of the batch.
struct Place {
    int m0, n0, batch;
};

inline int tiles_of(int size, int tile) { return (size + tile - 1) / tile; }

// Those of the same rows follow one another.
inline int tiles_along_n(const Shape& s) { return kManyColumns ? tiles_of(s.n, TILE_N) : 1; }

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

inline void prefetch_bytes(const char* from, int bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(from), "r"(bytes) : "memory");
}

#if B_COLUMN
using Dense = hopper::TensorMap;
using HeldDense = const Dense&;
#else
using Dense = const char*;
using HeldDense = Dense;
#include "decode_rows.cuh"
#endif

// Stages of b.
struct DenseStages {
    HeldDense b;
    const Shape& s;

#if B_COLUMN
    int bytes(int) const { return kBBoxes * 128 * (kManyColumns ? min(TILE_N, s.n) : s.n); }
    void load(unsigned stage, const Place& tile, int k0, unsigned barrier) const {
#pragma unroll
        for (int i = 0; i < kBBoxes; ++i)
            hopper::load_box(stage + kBAt + i * TILE_N * 128, b, k0 + i * kBBox, tile.n0,
                             s.b_batch ? tile.batch : 0, barrier);
    }
#else
    int bytes(int k0) const { return min(TILE_K, s.k - k0) * kRowOfB; }
    void load(unsigned stage, const Place& tile, int k0, unsigned barrier) const {
        const char* from = b + tile.batch * s.b_batch * kItem + (long long)k0 * kRowOfB;
        hopper::load_bytes(stage + kBAt, from, bytes(k0), barrier);
    }
#endif
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

// Multiplies a stage, of which `left` columns of K are in the matrix, or more if that is all.  Each kernel defines it.
inline void multiply(Sums& sums, unsigned stage, const Lane& w, int left);

// Multiplies and stores all tiles of the block.
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
            multiply(sums, shared_address(stage), w, s.k - k0);
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
    for (int i = threadIdx.x; i < STAGES * chunks; i += kBlockThreads)
        reinterpret_cast<uint4*>(shared + i / chunks * kStage + kBAt)[i % chunks] = {};
    hopper::async_proxy_fence();  // the TMA writes to its neighbours afterwards
}
