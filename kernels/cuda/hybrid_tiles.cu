// hybrid_tiles: decode, list and multiply the 64x64 tiles of a block-hybrid matrix.
//
// A block takes one tile (decode; grid = tiles across, bands), the tiles of one 64-row band (count_rows, list_rows), or
// one such band by kColumns columns of the result (product; grid = column blocks, bands).
//
// The product is plain; sums run over k in order, so the bits are always the same.  It serves float32, float64 and
// int8, and the 16-bit types where no tensor-core kernel can run.
//
// Reference: kernels/cpu_hybrid.py, whose arrays these equal bit for bit.
// Launcher: kernels/hybrid_tiles.py.
#include "hybrid_tile.cuh"

// Add what tile `at` holds with places, once all else has been written.
__device__ void place_spill(Word (*tile)[kTile], const Matrix& a, Count at) {
    __syncthreads();
    for (Count e = a.spill_starts[at] + threadIdx.x; e < a.spill_starts[at + 1]; e += kThreads)
        tile[a.places[e] / kTile][a.places[e] % kTile] = a.spill[e];
}

// Write tile `at` into shared memory as bits; returns false, with nothing written, if it is empty.
__device__ bool load_tile(Word (*tile)[kTile], int* begin, const Matrix& a, Count at) {
    const int kind = a.kinds[at];
    if (kind == kEmpty) return false;
    const Word* from = a.values + a.starts[at];
    const int r = threadIdx.x;
    if (kind == kDense) {
        for (int i = threadIdx.x; i < kTile * kTile; i += kThreads) tile[i / kTile][i % kTile] = from[i];
        return true;
    }
    for (int i = threadIdx.x; i < kTile * kTile; i += kThreads) tile[i / kTile][i % kTile] = 0;
    if (kind == kScattered) {
        place_spill(tile, a, at);
        return true;
    }
    const Row word = r < kTile ? a.codes[Count(a.slots[at]) * kTile + r] : 0;
    if (kind == kBitmap) {
        if (r < kTile) begin[r] = __popcll(word);
        exclusive_sum(begin);
        if (r < kTile) {
            from += begin[r];
            for (Row left = word; left; left &= left - 1) tile[r][__ffsll(left) - 1] = *from++;
        }
        return true;
    }
    __syncthreads();
    if (r < kTile) {
        for (int g = 0; g < kGroups; ++g) {
            const int code = int(word >> (4 * g)) & 15;
            const Word first = from[r * (kTile / 2) + 2 * g], second = from[r * (kTile / 2) + 2 * g + 1];
            tile[r][4 * g + (code & 3)] = first;
            tile[r][4 * g + (code >> 2)] = second;
        }
    }
    place_spill(tile, a, at);
    return true;
}

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
