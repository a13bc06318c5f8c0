// hybrid_rows: unstructured matrix times one to four columns, by its non-zeros alone.
//
//   deltas [steps][32 lanes][4]  uint8: distance to the row's previous entry
//   values [steps][32 lanes][4]  elements; a filler or padding entry is a zero
//   slices [count + 1]           first step of each slice of 32 rows
//   rows   [32 count]            row of each lane of each slice, or -1: rows are sorted by length
//   begins [count][WARPS][32]    column at which a warp's part of a slice begins
//
// A block takes one slice: a lane a row, a warp every part of its steps.  The columns of b stand
// in shared memory in the type of the sums.  The parts' sums are added in order: the same bits
// every time.  Memory-bound from some 80 % zeros: itemsize + 1 bytes a non-zero.
//
// Reference: a dense product.  Launcher: kernels/hybrid_rows.py.
#include "numeric.cuh"

using Count = long long;
using In = Scalar<Kind::ELEMENT>;
using Out = Scalar<Kind::OUTPUT>;
using Sum = decltype(In::load(typename In::type{}));
constexpr int kThreads = 32 * WARPS;

struct alignas(4 * sizeof(typename In::type)) Four { typename In::type x[4]; };
struct alignas(COLUMNS * sizeof(Sum) > 16 ? 16 : COLUMNS * sizeof(Sum)) Line { Sum x[COLUMNS]; };

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

extern "C" __global__ void __launch_bounds__(kThreads)
product(const unsigned* __restrict__ deltas, const Four* __restrict__ values, const Count* slices, const int* rows,
        const int* begins, const typename In::type* b, Count k, int n, Count b_row, Count b_column,
        typename Out::type* out, Count out_row, Count out_column) {
    extern __shared__ __align__(16) unsigned char shared[];
    auto* lines = reinterpret_cast<Line*>(shared);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (Count i = threadIdx.x; i < k; i += kThreads) {
        Line line;
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) line.x[c] = c < n ? In::load(b[i * b_row + c * b_column]) : Sum(0);
        lines[i] = line;
    }
    const Count first = slices[blockIdx.x], steps = slices[blockIdx.x + 1] - first;
    Count at = first + steps * warp / WARPS;
    const Count end = first + steps * (warp + 1) / WARPS;
    int column = begins[(blockIdx.x * WARPS + warp) * 32 + lane];
    __syncthreads();
    Sum acc[COLUMNS] = {};
    constexpr int kAhead = 4;
    for (; at + kAhead <= end; at += kAhead) {
        unsigned d[kAhead];
        Four v[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            d[i] = deltas[(at + i) * 32 + lane];
            v[i] = values[(at + i) * 32 + lane];
        }
#pragma unroll
        for (int i = 0; i < kAhead; ++i) add_step(acc, column, d[i], v[i], lines);
    }
    for (; at < end; ++at) add_step(acc, column, deltas[at * 32 + lane], values[at * 32 + lane], lines);

    __syncthreads();
    auto* sums = reinterpret_cast<Sum*>(shared);
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) sums[(c * WARPS + warp) * 32 + lane] = acc[c];
    __syncthreads();
    if (warp >= COLUMNS || warp >= n) return;
    const int row = rows[blockIdx.x * 32 + lane];
    Sum sum = 0;
    for (int part = 0; part < WARPS; ++part) sum += sums[(warp * WARPS + part) * 32 + lane];
    if (row >= 0) out[row * out_row + warp * out_column] = Out::store(sum);
}
