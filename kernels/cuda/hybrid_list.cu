// hybrid_list: list the elements of a block-hybrid matrix row by row, as CSR has them.
//
//   counts   [m]         non-zeros of every row; zeros before                (written by count_rows)
//   starts   [m]         where the elements of a row begin                   (read by list_rows)
//   columns, values      the elements, row by row, in the order of columns   (written by list_rows)
//
// A block takes the tiles of one 64-row band (grid = bands), `across` of them, from left to right: first to count, then
// to write.
//
// Macros: WORD (hybrid_tile.cuh).
// Reference: kernels/cpu_hybrid_held.py, whose arrays these equal bit for bit.
// Launcher: kernels/hybrid_list.py.
#include "hybrid_load.cuh"

constexpr int kWarp = 32;

// The non-zeros of a row of a tile as bits, for a whole warp; no padding or placeholder is one.
__device__ Row held(const Word* row) {
    const int lane = threadIdx.x % kWarp;
    const unsigned low = __ballot_sync(~0u, row[lane] != 0), high = __ballot_sync(~0u, row[kWarp + lane] != 0);
    return Row(high) << kWarp | low;
}

// Calls ``take(r, tile[r], column0)`` with a warp for each row of each tile of a band, from left to right.
template <class Take> __device__ void walk_band(const Matrix& a, int across, Take take) {
    __shared__ Word tile[kTile][kTile];
    __shared__ int begin[kTile];
    for (int t = 0; t < across; ++t) {
        __syncthreads();
        if (!load_tile(tile, begin, a, Count(blockIdx.x) * across + t)) continue;
        __syncthreads();
        for (int r = threadIdx.x / kWarp; r < kTile; r += kThreads / kWarp) take(r, tile[r], t * kTile);
    }
}

// Counts the non-zeros of every row; grid = bands.
extern "C" __global__ void __launch_bounds__(kThreads) count_rows(Count* counts, Count m, int across, const Matrix a) {
    const Count row0 = Count(blockIdx.x) * kTile;
    walk_band(a, across, [&](int r, const Word* row, int) {
        const int count = __popcll(held(row));
        if (threadIdx.x % kWarp == 0 && row0 + r < m) counts[row0 + r] += count;
    });
}

// Lists the non-zeros of every row from starts[row] on, and their columns; grid = bands.
extern "C" __global__ void __launch_bounds__(kThreads)
list_rows(const Count* starts, int* columns, Word* values, Count m, int across, const Matrix a) {
    __shared__ Count next[kTile];
    const Count row0 = Count(blockIdx.x) * kTile;
    if (threadIdx.x < kTile && row0 + threadIdx.x < m) next[threadIdx.x] = starts[row0 + threadIdx.x];
    walk_band(a, across, [&](int r, const Word* row, int column0) {
        const Row bits = held(row);
        for (int c = threadIdx.x % kWarp; c < kTile; c += kWarp) {
            if ((bits >> c & 1) == 0) continue;
            const Count at = next[r] + __popcll(bits & ((Row(1) << c) - 1));
            columns[at] = column0 + c;
            values[at] = row[c];
        }
        __syncwarp();
        if (threadIdx.x % kWarp == 0) next[r] += __popcll(bits);
        __syncwarp();
    });
}
