// hybrid_rows: unstructured matrix times one to four columns, by its non-zeros alone.
//
//   deltas [steps][32 lanes][4]  uint8: distance to the row's previous entry
//   values [steps][32 lanes][4]  elements; a filler or padding entry is a zero
//   slices [count + 1]           first step of each slice of 32 rows
//   rows   [32 count]            row of each lane of each slice, or -1: rows are sorted by length
//   begins [count][WARPS][32]    column at which a warp's part of a slice begins
//
// A block takes one slice: a lane a row, each of WARPS warps one part of its steps.  The columns of b
// stand in shared memory in the type of the sums.  The parts' sums are added in order: the same bits
// every time.  Memory-bound from some 80 % zeros: itemsize + 1 bytes a non-zero.
//
// Macros: ELEMENT OUTPUT COLUMNS (1, 2 or 4) WARPS.
// Reference: a dense product.  Launcher: kernels/hybrid_rows.py.
#include "numeric.cuh"

using Count = long long;
using In = Scalar<Kind::ELEMENT>;
using Out = Scalar<Kind::OUTPUT>;
using Sum = decltype(In::load(typename In::type{}));
constexpr int kThreads = 32 * WARPS;

struct alignas(4 * sizeof(typename In::type)) Four { typename In::type x[4]; };
struct alignas(COLUMNS * sizeof(Sum) > 16 ? 16 : COLUMNS * sizeof(Sum)) Line { Sum x[COLUMNS]; };

// kAhead steps of a lane, on their way from memory.
constexpr int kAhead = sizeof(typename In::type) * (COLUMNS + 1) >= 16 ? 2 : 4;
struct Batch {
    unsigned deltas[kAhead];
    Four values[kAhead];

    __device__ void load(const unsigned* from, const Four* values_from, Count at) {
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            deltas[i] = from[(at + i) * 32];
            values[i] = values_from[(at + i) * 32];
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

extern "C" __global__ void __launch_bounds__(kThreads)
product(const unsigned* __restrict__ deltas, const Four* __restrict__ values, const Count* slices, const int* rows,
        const int* begins, const typename In::type* __restrict__ b, Count k, int n, Count b_row, Count b_column,
        typename Out::type* out, Count out_row, Count out_column) {
    extern __shared__ __align__(16) unsigned char shared[];
    auto* lines = reinterpret_cast<Line*>(shared);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Count first = slices[blockIdx.x], steps = slices[blockIdx.x + 1] - first;
    Count at = first + steps * warp / WARPS;
    const Count end = first + steps * (warp + 1) / WARPS;
    deltas += lane;
    values += lane;
    Batch batch;                        // under way while b is staged
    if (at + kAhead <= end) batch.load(deltas, values, at);
    int column = begins[(blockIdx.x * WARPS + warp) * 32 + lane];
#pragma unroll 4
    for (int i = threadIdx.x; i < int(k); i += kThreads) {
        Line line;
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) line.x[c] = c < n ? In::load(b[i * b_row + c * b_column]) : Sum(0);
        lines[i] = line;
    }
    __syncthreads();
    Sum acc[COLUMNS] = {};
    for (; at + kAhead <= end; at += kAhead) {
        const Batch now = batch;
        if (at + 2 * kAhead <= end) batch.load(deltas, values, at + kAhead);
#pragma unroll
        for (int i = 0; i < kAhead; ++i) add_step(acc, column, now.deltas[i], now.values[i], lines);
    }
    for (; at < end; ++at) add_step(acc, column, deltas[at * 32], values[at * 32], lines);

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
