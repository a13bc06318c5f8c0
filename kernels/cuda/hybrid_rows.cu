// hybrid_rows: unstructured matrix times one to four columns, reading only its non-zeros.
//
//   deltas  [steps][32 lanes][4]  uint8: distance to the row's previous entry
//   values  [steps][32 lanes][4]  elements; filler (where a distance exceeds 255) and padding are zeros
//   parts   [blocks WARPS + 1]    first step of every warp; slices follow one another
//   begins  [blocks WARPS][32]    column at which a lane of a warp begins
//   starts  [slices + 1]          first warp of every slice
//   heights [slices]              rows of a slice, a power of two
//   rows    [slices][32]          number of a row, at its first lane; -1 at its other lanes, and where there is none
//   b       [k, n]                any strides, n at most COLUMNS
//   out     [m, n]                any strides
//
// A slice is 32 lines, one for each lane.  It has `height` rows of similar length, each cut into 32 / height successive
// lines; the longer the rows, the more lines for each.  A block takes per_block slices, and gives each of them warps in
// proportion to its steps.  The columns of b lie in shared memory, [k][COLUMNS] in the type of the sums; afterwards the
// sums of the warps take their place, [COLUMNS][WARPS][32 lanes].  Those of the warps of a slice are added in order,
// then those of the lanes of a row: the same bits every time.
// Memory-bound from about 80 % zeros on: itemsize + 1 bytes for each non-zero.
//
// What a warp adds first is loaded before the kernel waits for the preceding one in the stream, as no kernel writes it
// (programmatic.cuh).
//
// Macros: ELEMENT OUTPUT COLUMNS (1, 2 or 4) WARPS.
// Reference: a dense product.  Launcher: kernels/hybrid_rows.py.
#include "numeric.cuh"
#include "programmatic.cuh"

using Count = long long;
using In = Scalar<Kind::ELEMENT>;
using Out = Scalar<Kind::OUTPUT>;
using Sum = decltype(In::load(typename In::type{}));
constexpr int kThreads = 32 * WARPS;

struct alignas(4 * sizeof(typename In::type)) Four { typename In::type x[4]; };
struct alignas(COLUMNS * sizeof(Sum) > 16 ? 16 : COLUMNS * sizeof(Sum)) Line { Sum x[COLUMNS]; };

// Steps of a lane are loaded kAhead at a time, while those before them are added.  Most products have few for a warp, so
// more would come at once rather than ahead; and b would wait in the L2 cache behind more than kEarly of them.
constexpr int kAhead = 2, kEarly = 1;
struct Batch {
    unsigned deltas[kAhead];
    Four values[kAhead];

    // Numbers `first` to `last` of the steps from `at` on, as far as there are any.
    template <int first, int last> __device__ void load(const unsigned* from, const Four* values_from, int at, int end) {
#pragma unroll
        for (int i = first; i < last; ++i)
            if (at + i < end) {
                deltas[i] = from[Count(at + i) * 32];
                values[i] = values_from[Count(at + i) * 32];
            }
    }
};

__device__ void add_step(Sum (&acc)[COLUMNS], int& column, unsigned deltas, const Four& four, const Line* b) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        column += (deltas >> (8 * i)) & 255;
        const Line line = b[column];
        const Sum value = In::load(four.x[i]);
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) acc[c] += value * line.x[c];
    }
}

// The dense operand.
struct Right {
    const typename In::type* b;
    Count k;
    int n;
    Count row, column;              // strides in elements
};

// All of b, as lines; a barrier must follow.
__device__ void fetch(Line* lines, const Right& b) {
#pragma unroll 4
    for (int i = threadIdx.x; i < int(b.k); i += kThreads) {
        Line line;
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) line.x[c] = c < b.n ? In::load(b.b[i * b.row + c * b.column]) : Sum(0);
        lines[i] = line;
    }
}

// What a warp adds up at the end: one column of one slice.
struct Share {
    int column, row = -1;           // of the result; the lane has none: -1
    int first = 0, last = 0;        // warps of the block that have a part of it
    int height = 32;                // rows of the slice; 32 / height lanes share one
    bool any;

    __device__ Share(const int* starts, const int* heights, const int* rows, int per_block, int n)
        : column(threadIdx.x / 32 % COLUMNS), any(threadIdx.x / 32 < per_block * COLUMNS && column < n) {
        const int slice = blockIdx.x * per_block + threadIdx.x / 32 / COLUMNS, warp0 = blockIdx.x * WARPS;
        if (!any) return;
        first = starts[slice] - warp0, last = starts[slice + 1] - warp0;
        height = heights[slice], row = rows[slice * 32 + threadIdx.x % 32];
    }
    // Of the sums of all warps: [column][warp][lane].
    __device__ Sum total(const Sum* sums) const {
        Sum sum = 0;
#pragma unroll
        for (int part = 0; part < WARPS; ++part)
            if (part >= first && part < last) sum += sums[(column * WARPS + part) * 32 + threadIdx.x % 32];
        for (int step = 1; step < 32 / height; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
        return sum;
    }
};

extern "C" __global__ void __launch_bounds__(kThreads)
product(const unsigned* __restrict__ deltas, const Four* __restrict__ values, const int* parts, const int* begins,
        const int* starts, const int* heights, const int* rows, int per_block, const typename In::type* __restrict__ b,
        Count k, int n, Count b_row, Count b_column, typename Out::type* out, Count out_row, Count out_column) {
    extern __shared__ __align__(16) unsigned char shared[];
    auto* lines = reinterpret_cast<Line*>(shared);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, number = blockIdx.x * WARPS + warp;
    int at = parts[number];
    const int end = parts[number + 1];
    deltas += lane;
    values += lane;
    let_next_start();
    Batch batch;
    batch.load<0, kEarly>(deltas, values, at, end);
    int column = begins[number * 32 + lane];
    wait_for_previous();
    fetch(lines, {b, k, n, b_row, b_column});
    batch.load<kEarly, kAhead>(deltas, values, at, end);
    __syncthreads();
    Sum acc[COLUMNS] = {};
    for (; at < end; at += kAhead) {
        const Batch now = batch;
        batch.load<0, kAhead>(deltas, values, at + kAhead, end);
#pragma unroll
        for (int i = 0; i < kAhead; ++i)
            if (at + i < end) add_step(acc, column, now.deltas[i], now.values[i], lines);
    }
    const Share share(starts, heights, rows, per_block, n);
    __syncthreads();
    auto* sums = reinterpret_cast<Sum*>(shared);  // in the place of the lines
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i) sums[(i * WARPS + warp) * 32 + lane] = acc[i];
    __syncthreads();
    if (!share.any) return;
    const Sum sum = share.total(sums);
    if (share.row >= 0) out[share.row * out_row + share.column * out_column] = Out::store(sum);
}
