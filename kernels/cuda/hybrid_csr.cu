// hybrid_csr: unstructured matrix with hardly any elements times any number of columns.
//
//   starts    [m + 1]      where the elements of a row begin
//   columns   [elements]   int: their columns, ascending in a row
//   values    [elements]
//   pieces    [pieces]     a row of more than `most` elements, and the number of a piece of it
//
// A team of lanes * split threads takes a row and lanes * VECTOR columns of the result: each lane has VECTOR adjacent
// columns, for which it reads a vector of b for every split-th element.  Teams are parts of a warp, so short rows share
// one.  Long rows are cut into pieces of kPiece elements, each for a block, whose teams take turns; their blocks come
// first.  Pieces of a row pass their sums through global memory, and the block that is the last to do so adds them in
// order.  So sums are added in an order that depends on the sizes alone: the same bits every time.
// Bound by the reads of b, from the L2 cache: itemsize * n for each element, but at least 32 bytes.
//
// Macros: ELEMENT OUTPUT PIECE VECTOR (a power of two; if it is more than 1, b has aligned vectors of so many).
// Reference: a dense product.  Launcher: kernels/hybrid_csr.py.
#include "numeric.cuh"

using Count = long long;
using In = Scalar<Kind::ELEMENT>;
using Out = Scalar<Kind::OUTPUT>;
using Element = typename In::type;
using Result = typename Out::type;
using Sum = decltype(In::load(Element{}));

constexpr int kThreads = 256, kWarp = 32, kAhead = 4;  // elements of a lane that are read at once
constexpr int kPiece = PIECE;
// Blocks of a multiprocessor, as many as leave enough registers.
constexpr int kResident = VECTOR == 8 ? 3 : 4;
constexpr int vector_bytes(int bytes) { return bytes < 16 ? bytes : 16; }
struct alignas(vector_bytes(VECTOR * sizeof(Element))) Right { Element x[VECTOR]; };
struct alignas(vector_bytes(VECTOR * sizeof(Result))) Stored { Result x[VECTOR]; };
struct Sums { Sum x[VECTOR]; };

struct Left {
    const Count* starts;
    const int* columns;
    const Element* values;
    const int2* pieces;
    Count m;
    int count, most;  // pieces; elements of a row that is none
};
// What blocks of the pieces of a row pass on.
struct Shared {
    Sums* sums;         // [pieces][chunks][lanes]
    unsigned* arrived;  // [pieces][chunks]: blocks that have, by the first piece of each row; zero between launches
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

// Adds the sums of all teams of the block, for its first team.
__device__ void add_teams(Sums& sums, int lanes, int split) {
    __shared__ Sums together[kThreads];  // [teams][lanes]
    const int team = threadIdx.x / (lanes * split), lane = threadIdx.x % lanes, part = threadIdx.x / lanes % split;
    if (part == 0) together[team * lanes + lane] = sums;
    __syncthreads();
    if (threadIdx.x >= lanes) return;
    for (int i = 1; i < kThreads / (lanes * split); ++i)
        for (int v = 0; v < VECTOR; ++v) sums.x[v] += together[i * lanes + lane].x[v];
}

// Passes on the sums of a piece, and adds those of all pieces of its row in the block that comes last, which returns
// true.  For a whole warp, of which the first `lanes` threads have sums.
__device__ bool add_pieces(Sums& sums, const Shared& shared, Count first, int number, int count, int lanes,
                           int chunks) {
    const int lane = threadIdx.x, chunk = blockIdx.x % chunks;
    Sums* const slots = shared.sums + (first * chunks + chunk) * lanes + lane;
    const Count apart = Count(chunks) * lanes;
    if (lane < lanes) slots[number * apart] = sums;
    __threadfence();
    __syncwarp();
    unsigned before = 0;
    if (lane == 0) before = atomicInc(shared.arrived + first * chunks + chunk, count - 1);  // and back to 0
    if (__shfl_sync(~0u, before, 0) != count - 1) return false;
    __threadfence();
    if (lane >= lanes) return true;
    sums = {};
    for (int i = 0; i < count; ++i) {
        const volatile Sum* const from = slots[i * apart].x;
        for (int v = 0; v < VECTOR; ++v) sums.x[v] += from[v];
    }
    return true;
}

extern "C" __global__ void __launch_bounds__(kThreads, kResident)
product(const Left a, const Dense right, const Product out, const Shared shared, int lanes, int split, int chunks) {
    const int teams = kThreads / (lanes * split), team = threadIdx.x / (lanes * split);
    const int lane = threadIdx.x % lanes, part = threadIdx.x / lanes % split;
    const Count group = blockIdx.x / chunks, column = (Count(blockIdx.x % chunks) * lanes + lane) * VECTOR;
    const bool inside = column < right.n;
    const Element* const b = right.b + column * right.column;
    Sums sums = {};

    if (group >= a.count) {
        const Count row = (group - a.count) * teams + team;
        const Count first = row < a.m ? a.starts[row] : 0, last = row < a.m ? a.starts[row + 1] : 0;
        const bool here = row < a.m && inside && last - first <= a.most;
        if (here) multiply(sums, a, first + part, last, split, b, right.row);
        add_split(sums, lanes, split);
        if (here && part == 0) store(sums, out, row, column, right.n);
        return;
    }
    const int2 piece = a.pieces[group];
    const Count row = piece.x, first = a.starts[row] + Count(piece.y) * kPiece;
    const int count = int((a.starts[row + 1] - a.starts[row] + kPiece - 1) / kPiece);
    const Count last = min(first + kPiece, a.starts[row + 1]);
    if (inside) multiply(sums, a, first + team * split + part, last, teams * split, b, right.row);
    add_split(sums, lanes, split);
    add_teams(sums, lanes, split);
    if (threadIdx.x >= kWarp) return;
    if (count > 1 && !add_pieces(sums, shared, group - piece.y, piece.y, count, lanes, chunks)) return;
    if (threadIdx.x < lanes && inside) store(sums, out, row, column, right.n);
}
