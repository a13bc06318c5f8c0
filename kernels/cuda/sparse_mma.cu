// sparse_mma: out [m, n] = epilogue(A [m, k] 2:4  @  b [k, n]) with mma.sp, on any chip since sm_80.
//
//   values    [batch, m, 2 ceil(k/4)]    stored elements, rows on 16-byte boundaries   (read)
//   packed    [batch, K atoms, M atoms]  1024-byte atoms of metadata, tensor-core order (read)
//   b         [batch, k, n]              any strides                                   (read)
//   out       [batch, m, n]              any strides                                   (written)
//   workspace [SPLIT, batch, m, n]       sums, n contiguous, or m if OUT_COLUMN; SPLIT > 1 only
//                                        (written, and read by sparse_mma_reduce)
//
// A block takes one tile through a ring of STAGES cp.async stages, which all of its warps fill and multiply: a large
// tile through the ring of mma_ring.cuh, a small one through that of sparse_tile.cuh.  The sums then take the place of
// the stages in shared memory, where those of the warps along K are added, and go through the epilogue to the result
// (tile_store.cuh).
//
// With SPLIT > 1 each of SPLIT blocks takes a part of K and leaves its sums in the workspace; sparse_mma_reduce then
// adds them in the order of the parts, so the bits do not depend on timing.  Blocks are numbered such that those that
// run together share rows of A and columns of b in L2: bands of BAND tiles along M, walked along n.
//
// Macros: those of sparse_tile and tile_store, with WGMMA 0; SPLIT, and BLOCKS, how many blocks a multiprocessor shall
// have room for; kernels/sparse_mma.py chooses.
//
// Reference: reference.matmul and apply_epilogue.  Launcher: kernels/sparse_mma.py.
// Bound by the tensor cores for large n, by the bytes of A for small n.
#include "mma_ring.cuh"

constexpr int BAND = 8;

struct Place { int m, n, part, batch; };

inline Place place_of_block(const Shape& s) {
    const int tiles_m = (s.m + TILE_M - 1) / TILE_M, tiles_n = (s.n + TILE_N - 1) / TILE_N;
    const int part = blockIdx.x % SPLIT, tile = blockIdx.x / SPLIT;
    const int batch = tile / (tiles_m * tiles_n), inside = tile % (tiles_m * tiles_n);
    const int band = inside / (BAND * tiles_n), in_band = inside % (BAND * tiles_n);
    const int height = min(BAND, tiles_m - band * BAND);
    return {(band * BAND + in_band % height) * TILE_M, in_band / height * TILE_N, part, batch};
}

extern "C" __global__ void __launch_bounds__(kThreads, BLOCKS)
sparse_mma(const char* values, const char* packed, const char* b, Out::type* out, Sum* workspace,
           const __grid_constant__ Shape s, const __grid_constant__ EpilogueParams p) {
    extern __shared__ __align__(1024) char shared[];
    const Place at = place_of_block(s);
    const Tile tile(values, packed, b, s, at.m, at.n, at.batch);
    const int stages = (s.k + TILE_K - 1) / TILE_K;
    const int first = stages * at.part / SPLIT, last = stages * (at.part + 1) / SPLIT;
    Sums sums = {};
    if constexpr (kIsLarge) {
        TileCopies copies(tile, s, first, last);
        MmaRing(shared).multiply(sums, last - first, copies);
    } else {
        run_stages(sums, tile, s, shared, first, last);
    }

    Sum* partials = reinterpret_cast<Sum*>(shared);
    store_sums(sums, partials);
    __syncthreads();
    const auto sum = [&](int row, int column) { return block_sum(partials, row, column); };
    if constexpr (SPLIT == 1) {
        store_tile<TILE_M>(sum, s, out, p, at.m, at.n, at.batch);
    } else {
        workspace += (long long)(at.part * s.batch + at.batch) * s.m * s.n;
        each_vector<TILE_M, 1>([&](int row, int column) {
            const long long i = at.m + row, j = at.n + column;
            if (i < s.m && j < s.n) workspace[OUT_COLUMN ? j * s.m + i : i * s.n + j] = sum(row, column);
        });
    }
}

// A thread takes an element of the result at a time; any 1-D grid will do.
extern "C" __global__ void __launch_bounds__(256)
sparse_mma_reduce(const Sum* workspace, Out::type* out, const __grid_constant__ Shape s,
                  const __grid_constant__ EpilogueParams p) {
    const long long each = (long long)s.m * s.n, count = each * s.batch;
    for (long long at = blockIdx.x * 256ll + threadIdx.x; at < count; at += gridDim.x * 256ll) {
        const long long batch = at / each, inside = at % each;
        const long long row = OUT_COLUMN ? inside % s.m : inside / s.n;
        const long long column = OUT_COLUMN ? inside / s.m : inside % s.n;
        Sum x = workspace[at];
        for (int part = 1; part < SPLIT; ++part) x += workspace[part * count + at];
        out[batch * s.out_batch + row * s.out_row + column * s.out_column] =
            epilogue<Kind::OUTPUT, EPILOGUE, ACTIVATION>(x, p, batch, row, column);
    }
}
