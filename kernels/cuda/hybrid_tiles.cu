// hybrid_tiles: decode and multiply the 64x64 tiles of a block-hybrid matrix.
//
//   decode   out [m, k]            rows of contiguous elements, `row_pitch` apart             (written)
//   product  out [m, n], b [k, n]  any strides; `across` tiles in a band            (written; read)
//
// A block takes one tile (decode; grid = tiles across, bands), or one 64-row band by kColumns columns of the result
// (product; grid = column blocks, bands).
//
// The product is plain; sums run over k in order, so the bits are always the same.  It serves float32, float64 and
// int8, and the 16-bit types where no tensor-core kernel can run.
//
// Macros: WORD (hybrid_tile.cuh), and for product ELEMENT OUTPUT.
// Reference: kernels/cpu_hybrid.py, whose arrays these equal bit for bit.
// Launcher: kernels/hybrid_tiles.py.
#include "hybrid_load.cuh"

extern "C" __global__ void __launch_bounds__(kThreads)
decode(Word* out, Count m, Count k, Count row_pitch, const Matrix a) {
    __shared__ Word tile[kTile][kTile];
    __shared__ int begin[kTile];
    const Count row0 = Count(blockIdx.y) * kTile, column0 = Count(blockIdx.x) * kTile;
    const bool any = load_tile(tile, begin, a, Count(blockIdx.y) * gridDim.x + blockIdx.x);
    __syncthreads();
    for (int i = threadIdx.x; i < kTile * kTile; i += kThreads) {
        const int r = i / kTile, c = i % kTile;
        if (row0 + r < m && column0 + c < k) out[(row0 + r) * row_pitch + column0 + c] = any ? tile[r][c] : Word(0);
    }
}

#ifdef ELEMENT
#include "numeric.cuh"

using In = Scalar<Kind::ELEMENT>;
using Out = Scalar<Kind::OUTPUT>;
using Acc = decltype(In::load(typename In::type{}));
constexpr int kColumns = sizeof(Acc) == 8 ? 16 : 32, kOwn = kColumns / 16;

__device__ Acc number(Word bits) { return In::load(*reinterpret_cast<const typename In::type*>(&bits)); }

extern "C" __global__ void __launch_bounds__(kThreads)
product(typename Out::type* out, const typename In::type* b, Count m, Count n, Count k, Count b_row,
        Count b_column, Count out_row, Count out_column, int across, const Matrix a) {
    __shared__ Word tile[kTile][kTile];
    __shared__ Acc right[kTile][kColumns];
    __shared__ int begin[kTile];
    const int row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * kOwn;
    const Count row0 = Count(blockIdx.y) * kTile, column0 = Count(blockIdx.x) * kColumns;
    Acc acc[4][kOwn] = {};
    for (int t = 0; t < across; ++t) {
        __syncthreads();
        if (!load_tile(tile, begin, a, Count(blockIdx.y) * across + t)) continue;
        for (int i = threadIdx.x; i < kTile * kColumns; i += kThreads) {
            const Count r = Count(t) * kTile + i / kColumns, c = column0 + i % kColumns;
            right[i / kColumns][i % kColumns] = r < k && c < n ? In::load(b[r * b_row + c * b_column]) : Acc(0);
        }
        __syncthreads();
#pragma unroll 8
        for (int i = 0; i < kTile; ++i)
            for (int x = 0; x < 4; ++x)
                for (int y = 0; y < kOwn; ++y) acc[x][y] += number(tile[row + x][i]) * right[i][column + y];
    }
    for (int x = 0; x < 4; ++x)
        for (int y = 0; y < kOwn; ++y)
            if (row0 + row + x < m && column0 + column + y < n)
                out[(row0 + row + x) * out_row + (column0 + column + y) * out_column] = Out::store(acc[x][y]);
}
#endif
