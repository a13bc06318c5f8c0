// hybrid_overflow: out += A @ b, in place, where A holds the few elements that a 2:4 product left out.
//
//   rows    [count]      rows of out that get something, each once           (read)
//   starts  [count + 1]  where a row's elements begin                        (read)
//   columns, values      the elements, row by row, in the order of columns   (read)
//   b       [k, n]       any strides                                         (read)
//   out     [m, n]       any strides                                         (updated)
//
// A warp takes one row of out and as many of its columns as 32 lanes hold in 16 bytes each: 256 of 16 bits, 128 of
// float32 and of int8, whose results are int32.  Those of a lane are neighbours where rows of b can be read by vectors,
// otherwise they are 32 apart.  kAhead rows of b are loaded at once, without shared memory.  Sums of floats are float32,
// of sums of kAhead products, which keeps the errors of long rows small; but the element of out has been rounded by the
// 2:4 product before.  An element of out is updated by a single lane, which adds in order: the same bits every time.
//
// Where the columns of out are contiguous (TURNED), a block of 32 warps collects their sums in shared memory and adds
// them column by column: rows that are neighbours in the list mostly are neighbours in memory, too.
//
// Macros: ELEMENT OUTPUT THREADS TURNED, B_VECTOR and OUT_VECTOR: whether a lane's elements can be read, and stored, at
// once.  Launcher: kernels/hybrid_overflow.py.
#include "numeric.cuh"

using Count = long long;
using In = Scalar<Kind::ELEMENT>;
using Out = Scalar<Kind::OUTPUT>;
using Sum = decltype(In::load(In::type()));
constexpr int kOwn = 16 / sizeof(Out::type), kAhead = 4, kApart = B_VECTOR ? 1 : 32;
constexpr int kColumns = 32 * kOwn, kWarps = THREADS / 32;
template <class Element> struct alignas(kOwn * sizeof(Element)) Own { Element x[kOwn]; };
struct Sums { Sum x[kOwn]; };

// A lane's elements of a line: all at once, or those below n one by one.
template <bool vector, class Element>
__device__ Own<Element> read(const Element* line, Count first, Count n, Count column) {
    if constexpr (vector) return *reinterpret_cast<const Own<Element>*>(line + first);
    Own<Element> own;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
        const Count c = first + kApart * i;
        own.x[i] = c < n ? line[c * column] : Element(0);
    }
    return own;
}
template <bool vector, class Element>
__device__ void write(const Own<Element>& own, Element* line, Count first, Count n, Count column) {
    if constexpr (vector) {
        *reinterpret_cast<Own<Element>*>(line + first) = own;
    } else {
#pragma unroll
        for (int i = 0; i < kOwn; ++i)
            if (first + kApart * i < n) line[(first + kApart * i) * column] = own.x[i];
    }
}

// The elements from..to of a row, times a lane's columns of b.
__device__ Sums multiply(int from, int to, const int* columns, const In::type* values, const In::type* b, Count first,
                         Count n, Count b_row, Count b_column) {
    Sums sums = {};
    for (int e = from; e < to; e += kAhead) {
        Own<In::type> lines[kAhead];
#pragma unroll
        for (int j = 0; j < kAhead; ++j)
            if (e + j < to) lines[j] = read<B_VECTOR>(b + columns[e + j] * b_row, first, n, b_column);
        Sums few = {};
#pragma unroll
        for (int j = 0; j < kAhead; ++j) {
            if (e + j >= to) break;
            const Sum value = In::load(values[e + j]);
#pragma unroll
            for (int i = 0; i < kOwn; ++i) few.x[i] += value * In::load(lines[j].x[i]);
        }
#pragma unroll
        for (int i = 0; i < kOwn; ++i) sums.x[i] += few.x[i];
    }
    return sums;
}

__device__ Out::type added(Out::type before, Sum sum) { return Out::store(Out::load(before) + sum); }

extern "C" __global__ void __launch_bounds__(THREADS)
add(const int* rows, const int* starts, int count, const int* columns, const In::type* values, const In::type* b,
    Count n, Count b_row, Count b_column, Out::type* out, Count out_row, Count out_column) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, own_first = B_VECTOR ? lane * kOwn : lane;
    const int block_number = blockIdx.y * kWarps, number = block_number + warp;
    const Count block_first = Count(blockIdx.x) * kColumns, first = block_first + own_first;
#if TURNED
    Sums sums = {};
    if (number < count && first < n)
        sums = multiply(starts[number], starts[number + 1], columns, values, b, first, n, b_row, b_column);
    __shared__ Sum tile[32][kColumns + 1];
    static_assert(kWarps == 32);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) tile[warp][own_first + kApart * i] = sums.x[i];
    __syncthreads();
    if (block_number + lane >= count) return;
    Out::type* line = out + rows[block_number + lane] * out_row + block_first * out_column;
    for (int c = warp; c < kColumns && block_first + c < n; c += kWarps)
        line[c * out_column] = added(line[c * out_column], tile[lane][c]);
#else
    if (number >= count || first >= n) return;
    Out::type* line = out + rows[number] * out_row;
    Own<Out::type> own = read<OUT_VECTOR>(line, first, n, out_column);
    const Sums sums = multiply(starts[number], starts[number + 1], columns, values, b, first, n, b_row, b_column);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) own.x[i] = added(own.x[i], sums.x[i]);
    write<OUT_VECTOR>(own, line, first, n, out_column);
#endif
}
