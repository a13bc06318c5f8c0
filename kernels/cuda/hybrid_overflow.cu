// hybrid_overflow: out += A @ b, in place, where A holds the few elements that a 2:4 product left out.
//
//   rows    [count]      rows of out that get something, each once           (read)
//   starts  [count + 1]  where a row's elements begin                        (read)
//   columns, values      the elements, row by row, in the order of columns   (read)
//   b       [k, n]       any strides                                         (read)
//   out     [m, n]       any strides                                         (updated)
//
// A warp takes one row of out and as many of its columns as 32 lanes hold in 16 bytes each: 256 of 16 bits, 128 of
// float32.  Those of a lane are neighbours where b and out can be read 16 bytes at a time (VECTOR), otherwise columns
// that are 32 apart.  kAhead rows of b are loaded at once, without shared memory.  An element of out is updated by a
// single lane, which adds in order: the same bits every time.  Sums are float32, but the element of out has been rounded
// by the 2:4 product before.
//
// Macros: ELEMENT THREADS VECTOR.  Launcher: kernels/hybrid_overflow.py.
#include "numeric.cuh"

using Count = long long;
using In = Scalar<Kind::ELEMENT>;
constexpr int kOwn = 16 / sizeof(In::type), kAhead = 4;
struct alignas(16) Own { In::type x[kOwn]; };

// A lane's elements of a line: side by side, or 32 columns apart and only those below n.
__device__ Own read(const In::type* line, Count first, Count n, Count column) {
#if VECTOR
    return *reinterpret_cast<const Own*>(line + first);
#else
    Own own;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
        const Count c = first + 32 * i;
        own.x[i] = c < n ? line[c * column] : In::store(0);
    }
    return own;
#endif
}
__device__ void write(const Own& own, In::type* line, Count first, Count n, Count column) {
#if VECTOR
    *reinterpret_cast<Own*>(line + first) = own;
#else
#pragma unroll
    for (int i = 0; i < kOwn; ++i)
        if (first + 32 * i < n) line[(first + 32 * i) * column] = own.x[i];
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS)
add(const int* rows, const int* starts, int count, const int* columns, const In::type* values, const In::type* b,
    Count n, Count b_row, Count b_column, In::type* out, Count out_row, Count out_column) {
    const int number = blockIdx.y * (THREADS / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    const Count first = Count(blockIdx.x) * 32 * kOwn + (VECTOR ? lane * kOwn : lane);
    if (number >= count || first >= n) return;
    const int from = starts[number], to = starts[number + 1];
    In::type* line = out + rows[number] * out_row;
    const Own before = read(line, first, n, out_column);
    float sums[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) sums[i] = In::load(before.x[i]);
    for (int e = from; e < to; e += kAhead) {
        Own lines[kAhead];
#pragma unroll
        for (int j = 0; j < kAhead; ++j)
            if (e + j < to) lines[j] = read(b + columns[e + j] * b_row, first, n, b_column);
#pragma unroll
        for (int j = 0; j < kAhead; ++j) {
            if (e + j >= to) break;
            const float value = In::load(values[e + j]);
#pragma unroll
            for (int i = 0; i < kOwn; ++i) sums[i] += value * In::load(lines[j].x[i]);
        }
    }
    Own after;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) after.x[i] = In::store(sums[i]);
    write(after, line, first, n, out_column);
}
