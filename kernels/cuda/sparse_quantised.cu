// sparse_quantised: out [m, n] = epilogue(A [m, k]  @  b [k, n]), A 2:4 and quantised: integers times factors.
//
//   bricks [row blocks, K atoms, bytes]   elements, codes and factors (bricks.cuh)              (read once)
//   b      [batch, k, n]                  columns contiguous, on 16-byte boundaries, or         (read)
//                                         rows of TILE_N columns, one after the other
//   out    [batch, m, n]                  any strides                                           (written)
//
// The time is that of reading A.  Blocks and warps work as decode_blocks.cuh says.  What a tile reads of A lies together
// but for blocks of 16 rows, so a stage comes by a bulk copy for each of those.  Integers become elements of the type of
// b in registers, exactly.  A K atom, 128 columns, is summed by itself; its sums are multiplied by the factors of the
// rows and added up in float32.  So elements need not be rounded as a dequantised matrix is.  Warps multiply by mma.sp
// or, with WGMMA 1, warpgroups by instructions that read b once for 64 rows (wgmma_registers.cuh).
//
// The kernel before this one may have written A, so it has to end before A is read.  But what it writes goes to the L2
// cache, so blocks that start earlier bring the first stages of A there meanwhile.  Where the caller knows that all
// that wrote to A has ended, `ahead` stages of it go to shared memory at once.
//
// Shared memory: STAGES stages of bricks and b, WARPS_K tiles of sums, and the barriers of hopper_pipeline.cuh.
//
// Macros: those of sparse_tile and tile_store, with B_ASYNC 1, and B_COLUMN 1 if WGMMA is; BITS, of an integer; SUMS_AT,
// where the sums lie; BLOCKS, how many blocks a multiprocessor shall have room for; SPLIT is not used.
//
// Reference: reference_quantised.dequantise, then reference.matmul and apply_epilogue.
// Launcher: kernels/sparse_quantised.py.
// Source: PTX ISA, cp.async.bulk, cp.async.bulk.prefetch, griddepcontrol.
#include "programmatic.cuh"
#include "tile_store.cuh"
#include "bricks.cuh"
#if WGMMA
#include "wgmma_registers.cuh"
#endif
namespace hopper {  // as both name a function shared_address
#include "hopper_pipeline.cuh"
}

constexpr bool kManyColumns = true;
constexpr int kAhead = 2;                           // stages that are brought to the L2 cache
constexpr int kRowBlocks = TILE_M / kBrickRows;     // of a tile
constexpr int kBlockBytes = kAtoms * kBrick;        // in a stage
constexpr int kBAt = (kRowBlocks * kBlockBytes + 1023) / 1024 * 1024;
constexpr int kStage = kBAt + kBBytes;
static_assert(TILE_M % kBrickRows == 0 && kBrick % 16 == 0 && kItem == 2);
#include "decode_blocks.cuh"

// What one thread asks of the TMA.
struct Producer {
    const char* bricks;
    DenseStages b;
    const Shape& s;

    // The first stages of A of the block's first tile, but for those that are on their way.
    void bring_near(int begun) const {
        for (int k0 = begun * TILE_K; k0 < min(s.k, kAhead * TILE_K); k0 += TILE_K)
            each_row_block(place_of(blockIdx.x, s), k0, [&](int, const char* from, int bytes) {
                prefetch_bytes(from, bytes);
            });
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
    int bytes(int k0) const { return kRowBlocks * bytes_of_block(k0) + b.bytes(k0); }
    int bytes_of_block(int k0) const { return min(kAtoms, tiles_of(s.k - k0, kBrickColumns)) * kBrick; }

    void load_a(unsigned shared, const Ring::Position& at, const Place& tile, int k0, unsigned barrier) const {
        const unsigned stage = shared + at.stage * kStage;
        each_row_block(tile, k0, [&](int i, const char* from, int bytes) {
            hopper::load_bytes(stage + i * kBlockBytes, from, bytes, barrier);
        });
    }
    // The bricks of a stage by blocks of rows.  Behind the last block any will do.
    template <class Act> void each_row_block(const Place& tile, int k0, Act act) const {
        const int atoms = tiles_of(s.k, kBrickColumns), last = tiles_of(s.m, kBrickRows) - 1;
        const int bytes = bytes_of_block(k0);
#pragma unroll
        for (int i = 0; i < kRowBlocks; ++i) {
            const long long block = min(tile.m0 / kBrickRows + i, last);
            act(i, bricks + (block * atoms + k0 / kBrickColumns) * kBrick, bytes);
        }
    }
};

// The words of one lane of the stored elements of a brick, of rows g and g + 8.
struct Elements {
    unsigned upper[kChunks], lower[kChunks];

    void load(unsigned brick, const Lane& w) {
#pragma unroll
        for (int chunk = 0; chunk < kChunks; chunk += 2) {
            unsigned x[4];
            load_matrices(x, brick + chunk * kChunkBytes + 16 * w.lane);
            upper[chunk] = x[0], lower[chunk] = x[1], upper[chunk + 1] = x[2], lower[chunk + 1] = x[3];
        }
    }
    void fragment(unsigned (&a)[4], int step) const {
        const unsigned of_upper = upper[step / kChunkSteps], of_lower = lower[step / kChunkSteps];
        if (step % kChunkSteps == 0) widen<0>(a, of_upper, of_lower);
        else widen<kChunkSteps - 1>(a, of_upper, of_lower);
    }

  private:
    template <int step> static void widen(unsigned (&a)[4], unsigned of_upper, unsigned of_lower) {
        a[0] = widen_word<kA, step, 0>(of_upper), a[1] = widen_word<kA, step, 0>(of_lower);
        a[2] = widen_word<kA, step, 1>(of_upper), a[3] = widen_word<kA, step, 1>(of_lower);
    }
};

inline unsigned brick_of(unsigned stage, int row, int atom) {
    return stage + row / kBrickRows * kBlockBytes + atom * kBrick;
}

// As load_words of sparse_tile.cuh: the lanes with t > 1 hold the words of the next 16 rows.
inline void load_brick_words(unsigned (&words)[kTilesM][kAtomSteps], unsigned stage, int atom, const Lane& w) {
#pragma unroll
    for (int tile = 0; tile < kTilesM; tile += 2) {
        const int next = kTilesM > 1 ? w.t / 2 : 0;
        const unsigned brick = brick_of(stage, w.row0 + 16 * (tile + next), atom);
        const uint4 x = load_shared_16(brick + kCodesAt + 16 * w.g + 128 * (w.t % 2));
        words[tile][0] = x.x, words[tile][1] = x.y, words[tile][2] = x.z, words[tile][3] = x.w;
    }
}

inline void load_dense(unsigned (&b)[kTilesN][4], unsigned stage, int step, const Lane& w) {
#if B_COLUMN
    load_b_fragments(b, stage + kBAt, step, w);
#else
    load_row_fragments(b, stage + kBAt, step, w);
#endif
}

#if WGMMA
// The warps of a warpgroup have 16 rows each.
inline void multiply_atom(Sums& products, unsigned stage, int atom, const Lane& w) {
    unsigned words[1][kAtomSteps], a[kAtomSteps][4];
    Elements elements;
    load_brick_words(words, stage, atom, w);
    elements.load(brick_of(stage, w.row0, atom), w);
#pragma unroll
    for (int i = 0; i < kAtomSteps; ++i) elements.fragment(a[i], i);
    auto& d = reinterpret_cast<float(&)[TILE_N / 2]>(products);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kAtomSteps; ++i) {
        const unsigned b = stage + kBAt + span<TILE_N, kBChunks>(4 * (atom * kAtomSteps + i));
        if (i == 0) wgmma_sp_registers<0>(d, a[i], kBDescriptor | start(b), words[0][i]);
        else wgmma_sp_registers<1>(d, a[i], kBDescriptor | start(b), words[0][i]);
    }
    wgmma_commit();
    wgmma_wait();
    settle(d, a, words[0]);
}
#else
inline void multiply_atom(Sums& products, unsigned stage, int atom, const Lane& w) {
#pragma unroll
    for (auto& tile : products)
#pragma unroll
        for (auto& sums : tile) sums[0] = sums[1] = sums[2] = sums[3] = 0;
    unsigned words[kTilesM][kAtomSteps];
    Elements elements[kTilesM];
    load_brick_words(words, stage, atom, w);
#pragma unroll
    for (int tile = 0; tile < kTilesM; ++tile) elements[tile].load(brick_of(stage, w.row0 + 16 * tile, atom), w);
#pragma unroll
    for (int i = 0; i < kAtomSteps; ++i) {
        unsigned b[kTilesN][4];
        load_dense(b, stage, atom * kAtomSteps + i, w);
#pragma unroll
        for (int tile = 0; tile < kTilesM; ++tile) {
            unsigned a[4];
            elements[tile].fragment(a, i);
#pragma unroll
            for (int f = 0; f < kTilesN; ++f) {
                if (tile % 2) mma_sp<kA, kB, 1>(products[tile][f], a, b[f], words[tile - 1][i]);
                else mma_sp<kA, kB, 0>(products[tile][f], a, b[f], words[tile][i]);
            }
        }
    }
}
#endif

// sums += factors of the rows * products of an atom
inline void add_scaled(Sums& sums, const Sums& products, unsigned stage, int atom, const Lane& w) {
#pragma unroll
    for (int tile = 0; tile < kTilesM; ++tile) {
        const unsigned factors = brick_of(stage, w.row0 + 16 * tile, atom) + kFactorsAt + 4 * w.g;
        const float upper = __uint_as_float(load_shared_4(factors));
        const float lower = __uint_as_float(load_shared_4(factors + 4 * 8));
#pragma unroll
        for (int f = 0; f < kTilesN; ++f)
#pragma unroll
            for (int q = 0; q < 4; ++q)
                sums[tile][f][q] = fmaf(q < 2 ? upper : lower, products[tile][f][q], sums[tile][f][q]);
    }
}

inline void multiply(Sums& sums, unsigned stage, const Lane& w, int left) {
#pragma unroll
    for (int part = 0; part < kAtoms / WARPS_K; ++part) {
        const int atom = part * WARPS_K + w.warp_k;
        if (atom * kBrickColumns >= left) break;  // the others have not been copied
        Sums products;
        multiply_atom(products, stage, atom, w);
        add_scaled(sums, products, stage, atom, w);
    }
}

extern "C" __global__ void __launch_bounds__(kAllThreads, BLOCKS)
sparse_quantised(const char* bricks, const __grid_constant__ Dense b, Out::type* out, int ahead,
                 const __grid_constant__ Shape s, const __grid_constant__ EpilogueParams p) {
    extern __shared__ __align__(1024) char shared[];
    const Ring ring(shared_address(shared) + kBarriersAt);
    const Producer producer{bricks, {b, s}, s};
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
