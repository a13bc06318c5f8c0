// hybrid_overflow: out += A @ b, in place, for the few elements A that a 2:4 product left out.
//
//   rows [count]        rows of out that get something, each once
//   starts [count + 1]  where a row's elements begin
//   columns, values     the elements, row by row, in the order of the columns
//
// A block takes one row and 2 * THREADS columns of out; a thread two columns.  One thread adds
// to one place, in order: the same bits every time.  Reads a row of b for every element.
//
// Launcher: kernels/hybrid_overflow.py.
#include "numeric.cuh"

using Count = long long;
using In = Scalar<Kind::ELEMENT>;

extern "C" __global__ void __launch_bounds__(THREADS)
add(const int* rows, const int* starts, const int* columns, const In::type* values, const In::type* b, Count n,
    Count b_row, Count b_column, In::type* out, Count out_row, Count out_column) {
    const Count first = (Count(blockIdx.y) * THREADS + threadIdx.x) * 2;
    if (first >= n) return;
    const bool both = first + 1 < n;
    const int from = starts[blockIdx.x], to = starts[blockIdx.x + 1];
    const In::type* right = b + first * b_column;
    In::type* here = out + rows[blockIdx.x] * out_row + first * out_column;
    float low = In::load(here[0]), high = both ? In::load(here[out_column]) : 0;
    for (int e = from; e < to; ++e) {
        const float value = In::load(values[e]);
        const In::type* line = right + columns[e] * b_row;
        low += value * In::load(line[0]);
        if (both) high += value * In::load(line[b_column]);
    }
    here[0] = In::store(low);
    if (both) here[out_column] = In::store(high);
}
