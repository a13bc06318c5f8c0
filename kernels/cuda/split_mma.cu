// split_mma: out [m, n] = epilogue(A [m, k] 2:4  @  b [k, n]) in float32, of operands in bfloat16 pieces, with mma.sp.
//
//   values  [batch, m, k/2]            pieces in sections, rows on 16-byte boundaries           (read)
//   packed  [batch, K atoms, M atoms]  1024-byte atoms of metadata, tensor-core order           (read)
//   b       [batch, k, n]              pieces in sections; k or n contiguous, lines on 16-byte  (read)
//                                      boundaries
//   out     [batch, m, n]              any strides                                              (written)
//
// k has six sections, as sparse_split.cu arranges them, each as long as k of the matrix, rounded up to whole atoms.
//
// A block takes one tile through a ring of STAGES cp.async stages, which all of its warps fill and multiply: a large
// tile through the ring of mma_ring.cuh, a small one through that of copy_ring.cuh.  Tensor cores truncate their sums,
// so they sum within a stage only (of a warp: 128 elements along k), and the sums of stages are added by float32
// additions, which round.
//
// Macros: those of sparse_tile and tile_store, with WGMMA 0 and B_ASYNC 1; BLOCKS, how many blocks a multiprocessor
// shall have room for; SPLIT is not used.  kernels/split_mma.py chooses.
//
// Reference: reference.matmul and apply_epilogue.  Launcher: kernels/split_mma.py.
// Bound by the tensor cores.
#include "copy_ring.cuh"
#include "mma_ring.cuh"

static_assert(B_ASYNC);
constexpr int BAND = 8;  // tiles along m that run together and share columns of b in L2

struct Place { int m, n, batch; };

inline Place place_of_block(const Shape& s) {
    const int tiles_m = (s.m + TILE_M - 1) / TILE_M, tiles_n = (s.n + TILE_N - 1) / TILE_N;
    const int batch = blockIdx.x / (tiles_m * tiles_n), inside = blockIdx.x % (tiles_m * tiles_n);
    const int band = inside / (BAND * tiles_n), in_band = inside % (BAND * tiles_n);
    const int height = min(BAND, tiles_m - band * BAND);
    return {(band * BAND + in_band % height) * TILE_M, in_band / height * TILE_N, batch};
}

// Stage i of a tile.
inline void fill(unsigned stage, int i, const Tile& tile, const Shape& s) {
    const int k0 = i * TILE_K, of_b = k0 * kItem;
    copy_lines<TILE_M, TILE_M, kAChunks>(stage, 0, tile.values + tile.m0 * s.a_pitch, s.a_pitch, of_b / 2,
                                         s.values_per_row * kItem, s.m - tile.m0);
    tile.load_meta(stage, s, k0);
    const unsigned to = stage + kABytes + kMetaBytes;
    if constexpr (B_COLUMN) {
        const long long pitch = s.b_column * kItem;
        copy_lines<TILE_N, TILE_N, kBChunks>(to, 0, tile.b + tile.n0 * pitch, pitch, of_b, s.k * kItem, s.n - tile.n0);
    } else {
        const long long pitch = s.b_row * kItem;
        copy_lines<TILE_K, TILE_K, kBChunks>(to, 0, tile.b + k0 * pitch, pitch, tile.n0 * kItem, s.n * kItem, s.k - k0);
    }
}

extern "C" __global__ void __launch_bounds__(kThreads, BLOCKS)
split_mma(const char* values, const char* packed, const char* b, float* out, const __grid_constant__ Shape s,
          const __grid_constant__ EpilogueParams p) {
    extern __shared__ __align__(1024) char shared[];
    const Place at = place_of_block(s);
    const Tile tile(values, packed, b, s, at.m, at.n, at.batch);
    const int stages = (s.k + TILE_K - 1) / TILE_K;
    Sums sums = {};
    if constexpr (kIsLarge) {
        TileCopies copies(tile, s, 0, stages);
        MmaRing(shared).multiply<true>(sums, stages, copies);
    } else {
        const Lane lane;
        through_ring(
            shared_address(shared), stages,
            [&](unsigned stage, int i) { fill(stage, i, tile, s); },
            [&](unsigned stage) {
                Sums products = {};
                multiply_stage(products, stage, lane);
                add(sums, products);
            });
    }
    Sum* partials = reinterpret_cast<Sum*>(shared);
    store_sums(sums, partials);
    __syncthreads();
    store_tile<TILE_M>([&](int row, int column) { return block_sum(partials, row, column); }, s, out, p, at.m, at.n,
                       at.batch);
}
