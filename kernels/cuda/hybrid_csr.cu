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

constexpr int kThreads = 256, kWarp = 32, kPiece = PIECE;
constexpr int kResident = 4;  // blocks of a multiprocessor
// Elements that a lane reads at once: as many as leave enough registers.
constexpr int kAhead = VECTOR * sizeof(Element) == 16 && sizeof(Element) <= 4 ? 5 : 4;
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
    Count n, column;
    int row;
};
struct Product {
    Result* to;
    Count row, column;
    int wide;  // whether a lane's columns of a row are one aligned vector
};

// What a thread multiplies: elements first, first + step, ... of the `count` that are left of a row.
struct Share {
    Count first;
    int row, count, step;
};
constexpr int kNoRow = -1;

// The share of the thread that is number `turn` of the `step` of a row; nothing beyond the last row, and of long ones.
__device__ Share of_row(const Left& a, Count row, int turn, int step) {
    if (row >= a.m) return {0, kNoRow, 0, step};
    const Count first = a.starts[row], count = a.starts[row + 1] - first;
    if (count > a.most) return {0, kNoRow, 0, step};
    return {first + turn, int(row), int(count) - turn, step};
}

__device__ Share of_piece(const Left& a, int2 piece, int turn, int step) {
    const Count first = a.starts[piece.x] + Count(piece.y) * kPiece;
    const int count = int(min(a.starts[piece.x + 1] - first, Count(kPiece)));
    return {first + turn, piece.x, count - turn, step};
}

// Elements of a row, and their lines of b.  Loads behind the last element repeat the first: with a branch around each of
// them the compiler waits for one after the other.
struct Batch {
    int column[kAhead];
    Sum value[kAhead];
    Right line[kAhead];
};

__device__ Batch read(const int* columns, const Element* values, int at, int count, int step, const Element* b,
                      int b_row) {
    Batch batch;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
        const int e = at + i * step, there = e < count ? e : at;
        batch.column[i] = columns[there];
        batch.value[i] = In::load(values[there]);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
        batch.line[i] = *reinterpret_cast<const Right*>(b + Count(batch.column[i]) * b_row);
    return batch;
}

// Adds the thread's elements times the columns of b from `b` on.
__device__ void multiply(Sums& sums, const Left& a, const Share& share, const Element* b, int b_row) {
    const int count = share.count, step = share.step;
    for (int at = 0; at < count; at += kAhead * step) {
        const Batch batch = read(a.columns + share.first, a.values + share.first, at, count, step, b, b_row);
#pragma unroll
        for (int i = 0; i < kAhead; ++i)
            if (at + i * step < count)
                for (int v = 0; v < VECTOR; ++v) sums.x[v] += batch.value[i] * In::load(batch.line[i].x[v]);
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
    const bool inside = column < right.n, whole = group >= a.count;  // rows, not a piece of one
    const int2 piece = whole ? int2{} : a.pieces[group];
    const Share share = whole ? of_row(a, (group - a.count) * teams + team, part, split)
                              : of_piece(a, piece, team * split + part, teams * split);
    Sums sums = {};
    if (inside) multiply(sums, a, share, right.b + column * right.column, right.row);
    add_split(sums, lanes, split);
    if (whole) {
        if (inside && part == 0 && share.row != kNoRow) store(sums, out, share.row, column, right.n);
        return;
    }
    add_teams(sums, lanes, split);
    if (threadIdx.x >= kWarp) return;
    const int count = int((a.starts[share.row + 1] - a.starts[share.row] + kPiece - 1) / kPiece);
    if (count > 1 && !add_pieces(sums, shared, group - piece.y, piece.y, count, lanes, chunks)) return;
    if (threadIdx.x < lanes && inside) store(sums, out, share.row, column, right.n);
}
