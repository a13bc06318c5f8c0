// hybrid_csr: unstructured matrix with hardly any elements times any number of columns.
//
//   starts    [m + 1]      where the elements of a row begin
//   columns   [elements]   int: their columns, ascending in a row
//   values    [elements]
//   long_rows [longs]      int: rows of more than `most` elements, the longest first
//
// A team of lanes * split threads takes a row and lanes * VECTOR columns of the result: each lane has VECTOR neighbouring
// columns, for which it reads a vector of b for every split-th element.  Teams are parts of a warp, so short rows share
// one.  A long row is taken by a whole block, whose teams take turns; the blocks of long rows come first.  Sums are
// added in an order that depends on the sizes alone: the same bits every time.
// Bound by the reads of b, from the L2 cache: itemsize * n for each element.
//
// Macros: ELEMENT OUTPUT VECTOR (power of two; b has aligned vectors of so many elements where it is more than 1).
// Reference: a dense product.  Launcher: kernels/hybrid_csr.py.
#include "numeric.cuh"

using Count = long long;
using In = Scalar<Kind::ELEMENT>;
using Out = Scalar<Kind::OUTPUT>;
using Element = typename In::type;
using Result = typename Out::type;
using Sum = decltype(In::load(Element{}));

constexpr int kThreads = 256, kWarp = 32, kAhead = 4;  // elements of a lane that are read at once
constexpr int vector_bytes(int bytes) { return bytes < 16 ? bytes : 16; }
struct alignas(vector_bytes(VECTOR * sizeof(Element))) Right { Element x[VECTOR]; };
struct alignas(vector_bytes(VECTOR * sizeof(Result))) Stored { Result x[VECTOR]; };
struct Sums { Sum x[VECTOR]; };

struct Left {
    const Count* starts;
    const int* columns;
    const Element* values;
    const int* long_rows;
    Count m;
    int longs, most;  // rows that are long; elements of one that is not
};
struct Dense {
    const Element* b;
    Count n, row, column;
};
struct Product {
    Result* to;
    Count row, column;
    int wide;  // whether a lane's columns of a row are one aligned vector
};

// Adds elements first, first + step, ... of a row, times the columns of b from `b` on.
__device__ void multiply(Sums& sums, const Left& a, Count first, Count last, int step, const Element* b, Count b_row) {
    for (Count at = first; at < last; at += kAhead * step) {
        Sum value[kAhead];
        Right line[kAhead] = {};
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            const Count e = at + i * step;
            value[i] = Sum(0);
            if (e >= last) continue;
            value[i] = In::load(a.values[e]);
            line[i] = *reinterpret_cast<const Right*>(b + a.columns[e] * b_row);
        }
#pragma unroll
        for (int i = 0; i < kAhead; ++i)
            for (int v = 0; v < VECTOR; ++v) sums.x[v] += value[i] * In::load(line[i].x[v]);
    }
}

// Adds the sums of the `split` threads that have the same columns; all threads of the warp take part.
__device__ void add_split(Sums& sums, int lanes, int split) {
    for (int apart = lanes * split / 2; apart >= lanes; apart /= 2)
        for (int v = 0; v < VECTOR; ++v) sums.x[v] += __shfl_down_sync(~0u, sums.x[v], apart);
}

__device__ void store(const Sums& sums, const Product& out, Count row, Count column, Count n) {
    Result* const to = out.to + row * out.row + column * out.column;
    if (out.wide) {
        Stored stored;
        for (int v = 0; v < VECTOR; ++v) stored.x[v] = Out::store(sums.x[v]);
        *reinterpret_cast<Stored*>(to) = stored;
        return;
    }
    for (int v = 0; v < VECTOR; ++v)
        if (column + v < n) to[v * out.column] = Out::store(sums.x[v]);
}

extern "C" __global__ void __launch_bounds__(kThreads)
product(const Left a, const Dense right, const Product out, int lanes, int split, int chunks) {
    __shared__ Sums together[kThreads];  // [teams][lanes]
    const int teams = kThreads / (lanes * split), team = threadIdx.x / (lanes * split);
    const int lane = threadIdx.x % lanes, part = threadIdx.x / lanes % split;
    const Count group = blockIdx.x / chunks, column = (Count(blockIdx.x % chunks) * lanes + lane) * VECTOR;
    const bool is_long = group < a.longs, inside = column < right.n;
    const Count row = is_long ? a.long_rows[group] : (group - a.longs) * teams + team;
    const Element* const b = right.b + column * right.column;

    Sums sums = {};
    Count first = 0, last = 0;
    if (row < a.m && inside) { first = a.starts[row]; last = a.starts[row + 1]; }
    if (is_long) {
        multiply(sums, a, first + team * split + part, last, teams * split, b, right.row);
        add_split(sums, lanes, split);
        if (part == 0) together[team * lanes + lane] = sums;
        __syncthreads();
        if (team > 0 || part > 0 || !inside) return;
        for (int i = 1; i < teams; ++i)
            for (int v = 0; v < VECTOR; ++v) sums.x[v] += together[i * lanes + lane].x[v];
        store(sums, out, row, column, right.n);
        return;
    }
    const bool here = row < a.m && inside && last - first <= a.most;
    if (here) multiply(sums, a, first + part, last, split, b, right.row);
    add_split(sums, lanes, split);
    if (here && part == 0) store(sums, out, row, column, right.n);
}
