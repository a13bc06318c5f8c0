// sparse_skinny: out [m, n] = epilogue(A [m, k] 2:4  @  b [k, n]) for few columns (tokens).
//
//   values [batch, m, 2 ceil(k/4)]    stored elements, rows on 16-byte boundaries    (read once)
//   packed [batch, K atoms, M atoms]  1024-byte atoms of metadata, tensor-core order (read once)
//   b      [batch, k, n]              any strides                                    (read)
//   out    [batch, m, n]              any strides                                    (written)
//
// The time is that of reading A: 9 bytes for every 16 of the dense matrix in 16-bit types, 5 for every 8 in 8-bit ones.
// So a block takes all of n where it can, and keeps STAGES - 1 stages of copies in flight (run_stages in
// sparse_tile.cuh).  K is split twice: over the warps of a block (WARPS_K) and over the SPLIT blocks of a cluster.
// Every block leaves the partial sums of its warps in its shared memory.  After a cluster barrier each block reads all
// partial sums of its share of the rows, its own and those of the other blocks, and adds them in a fixed order: no
// workspace, no atomics.
//
// Macros: those of sparse_tile and tile_store; SPLIT, and BLOCKS, how many blocks a multiprocessor shall have room for;
// kernels/sparse_skinny.py chooses.
//
// Reference: reference.matmul and apply_epilogue.  Launcher: kernels/sparse_skinny.py.
#include "programmatic.cuh"
#include "tile_store.cuh"

constexpr int kRowsOfBlock = TILE_M / SPLIT;  // rows of the result that a block stores

inline Sum bits_to_sum(unsigned x) {
    if constexpr (kA == Kind::int8) return (int)x;
    else return __uint_as_float(x);
}

inline Sum cluster_sum(const Sum* partials, int row, int column) {
    Sum x = 0;
#pragma unroll
    for (int part = 0; part < SPLIT; ++part)
#pragma unroll
        for (int i = 0; i < WARPS_K; ++i) {
            const Sum* at = partials + i * kPartial + row * kPitch + column;
            x += bits_to_sum(load_cluster_4(shared_address(at), part));
        }
    return x;
}

extern "C" __global__ void __launch_bounds__(kThreads, BLOCKS)
#if SPLIT > 1
__cluster_dims__(SPLIT, 1, 1)
#endif
sparse_skinny(const char* values, const char* packed, const char* b, Out::type* out,
              const __grid_constant__ Shape s, const __grid_constant__ EpilogueParams p) {
    extern __shared__ __align__(1024) char shared[];
    const int tiles_m = (s.m + TILE_M - 1) / TILE_M, tiles_n = (s.n + TILE_N - 1) / TILE_N;
    const int part = blockIdx.x % SPLIT, index = blockIdx.x / SPLIT;  // a cluster is one tile
    const int n0 = index % tiles_n * TILE_N, m0 = index / tiles_n % tiles_m * TILE_M;
    const int batch = index / tiles_n / tiles_m;
    const Tile tile(values, packed, b, s, m0, n0, batch);
    const int stages = (s.k + TILE_K - 1) / TILE_K;
    Sums sums = {};
    let_next_start();
    wait_for_previous();
    run_stages(sums, tile, s, shared, stages * part / SPLIT, stages * (part + 1) / SPLIT);

    Sum* partials = reinterpret_cast<Sum*>(shared);
    store_sums(sums, partials);
    if constexpr (SPLIT == 1) {
        __syncthreads();
        const auto sum = [&](int row, int column) { return block_sum(partials, row, column); };
        store_tile<TILE_M>(sum, s, out, p, m0, n0, batch);
    } else {
        cluster_sync();
        const int row0 = part * kRowsOfBlock;
        const auto sum = [&](int row, int column) { return cluster_sum(partials, row0 + row, column); };
        store_tile<kRowsOfBlock>(sum, s, out, p, m0 + row0, n0, batch);
        cluster_sync();  // shared memory must outlive what other blocks read from it
    }
}
