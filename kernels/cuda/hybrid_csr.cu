// hybrid_csr: unstructured matrix with hardly any elements times any number of columns.
//
//   starts    [m + 1]      where the elements of a row begin
//   columns   [elements]   int: their columns, ascending in a row
//   values    [elements]
//   pieces    [pieces]     a row of kPiece elements or more, and the number of a piece of it
//   listed    [rows]       with LISTED: where the elements of a row begin, how many there are, and its number; longest
//                          rows first, but in order if their lengths have as many bits
//   b         [k, n]       columns side by side, rows any distance apart
//   out       [m, n]       any strides
//   shared                 where pieces of a row pass on their sums (struct Shared)
//   cuts                   how rows and columns are dealt to blocks (struct Cuts)
//
// A team of lanes * split threads takes a row and WIDE * lanes * VECTOR columns of the result: each lane has WIDE
// times VECTOR adjacent columns, lanes * VECTOR apart, and a split-th of the row's elements, for which it reads vectors
// of b (include/csr_multiply.cuh).  A block has as many teams as it has room for.  Where rows differ in length, they are
// listed, and every range of the list has a `split` of its own, so that all threads of a block have about as much to
// do, and longer rows begin first.
//
// Of listed rows, those of kPiece elements or more are cut into pieces, each for a block; these come before all
// others.  Pieces of a row pass their sums through global memory, and the block that is the last to do so adds them in
// order.  So sums are added in an order that depends on the sizes alone: the same bits every time.
//
// The first elements are loaded before the kernel waits for the preceding one in the stream (programmatic.cuh).
// Bound by the reads of b, from the L2 cache: itemsize * n for each element, but at least 32 bytes.
//
// Macros: ELEMENT OUTPUT PIECE LISTED FOURS WIDE (1 or 2), and VECTOR, a power of two; if it is more than 1, b has
// aligned vectors of so many.
// Reference: a dense product.  Launcher: kernels/hybrid_csr.py.
#include "numeric.cuh"
#include "programmatic.cuh"

using Count = long long;
using In = Scalar<Kind::ELEMENT>;
using Out = Scalar<Kind::OUTPUT>;
using Element = typename In::type;
using Result = typename Out::type;
using Sum = decltype(In::load(Element{}));

constexpr int kThreads = 128, kWarp = 32, kPiece = PIECE;
constexpr int kRanges = 16;  // at most
constexpr int kResident = FOURS && VECTOR <= 4 && sizeof(Element) <= 4 ? 9 : 8;  // blocks of a multiprocessor
constexpr int vector_bytes(int bytes) { return bytes < 16 ? bytes : 16; }
struct alignas(vector_bytes(VECTOR * sizeof(Element))) Right { Element x[VECTOR]; };
struct alignas(vector_bytes(VECTOR * sizeof(Result))) Stored { Result x[VECTOR]; };
constexpr int kSums = WIDE * VECTOR;  // of a lane
struct Sums { Sum x[kSums]; };

struct alignas(16) Row {
    Count first;
    int count, number;
};
struct Left {
    const Count* starts;
    const int* columns;
    const Element* values;
    const int2* pieces;
    const Row* listed;
};
// Rows of about the same length, or places in the list, whose blocks begin with number `block`.
struct Range {
    int block, first, end, split;
};
// How the product is cut up.
struct Cuts {
    int lanes, chunks, pieces, ranges;
    Range range[kRanges];

    __device__ Range of_block(int block) const {
        int i = 0;
        while (i + 1 < ranges && block >= range[i + 1].block) ++i;
        return range[i];
    }
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

// What a thread multiplies: its share of these elements of a row, being number `turn` of `step` threads.
struct Share {
    Count first, end;
    int row, turn, step;
};
constexpr int kNoRow = -1;

// Of a row of the range; nothing beyond its last one.
__device__ Share of_row(const Left& a, const Range& range, int row, int turn) {
    if (row >= range.end) return {0, 0, kNoRow, 0, 1};
#if LISTED
    const Row listed = a.listed[row];
    return {listed.first, listed.first + listed.count, listed.number, turn, range.split};
#else
    return {a.starts[row], a.starts[row + 1], row, turn, range.split};
#endif
}

__device__ Share of_piece(const Left& a, int2 piece, int turn, int step) {
    const Count first = a.starts[piece.x] + Count(piece.y) * kPiece;
    return {first, min(a.starts[piece.x + 1], first + kPiece), piece.x, turn, step};
}

#include "csr_multiply.cuh"

// Adds the sums of the `split` threads of a team that have the same columns, in its first `lanes` threads; all threads
// of the block take part.
__device__ void add_split(Sums& sums, int lanes, int split) {
    const int members = lanes * split;
    for (int apart = min(members, kWarp) / 2; apart >= lanes; apart /= 2)
        for (int v = 0; v < kSums; ++v) sums.x[v] += __shfl_down_sync(~0u, sums.x[v], apart);
    if (members <= kWarp) return;
    __shared__ Sums together[kThreads];  // [warps][lanes]
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    if (lane < lanes) together[warp * lanes + lane] = sums;
    __syncthreads();
    if (threadIdx.x % members >= lanes) return;
    for (int i = 1; i < members / kWarp; ++i)
        for (int v = 0; v < kSums; ++v) sums.x[v] += together[(warp + i) * lanes + lane].x[v];
}

// A lane's sums of VECTOR adjacent columns.
__device__ void store_vector(const Sum* sums, const Product& out, Count row, Count column, Count n) {
    Result* const to = out.to + row * out.row + column * out.column;
    if (out.wide) {
        Stored stored;
        for (int v = 0; v < VECTOR; ++v) stored.x[v] = Out::store(sums[v]);
        *reinterpret_cast<Stored*>(to) = stored;
        return;
    }
    for (int v = 0; v < VECTOR; ++v)
        if (column + v < n) to[v * out.column] = Out::store(sums[v]);
}
// All of a lane's sums; from one vector of columns to the next it is `apart`.
__device__ void store(const Sums& sums, const Product& out, Count row, Count column, Count n, int apart) {
    for (int w = 0; w < WIDE; ++w)
        if (column + w * apart < n) store_vector(sums.x + w * VECTOR, out, row, column + w * apart, n);
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
        for (int v = 0; v < kSums; ++v) sums.x[v] += from[v];
    }
    return true;
}

extern "C" __global__ void __launch_bounds__(kThreads, kResident)
product(const Left a, const Dense right, const Product out, const Shared shared, const __grid_constant__ Cuts cuts) {
    let_next_start();
    const int lanes = cuts.lanes, chunks = cuts.chunks, number = blockIdx.x / chunks;
    const bool whole = number >= cuts.pieces;  // rows, not a piece of one
    const int block = number - cuts.pieces;
    const Range range = whole ? cuts.of_block(block) : Range{0, 0, 0, kThreads / lanes};
    const int members = lanes * range.split, team = threadIdx.x / members;
    const int lane = threadIdx.x % lanes, part = threadIdx.x / lanes % range.split;
    const int apart = lanes * VECTOR;
    const Count column = Count(blockIdx.x % chunks) * WIDE * apart + lane * VECTOR;
    const bool inside = column < right.n;
    const int row = range.first + (block - range.block) * (kThreads / members) + team;
    const int2 piece = whole ? int2{} : a.pieces[number];
    const Share share = whole ? of_row(a, range, row, part) : of_piece(a, piece, part, range.split);
    Sums sums = {};
    const int next = column + apart < right.n ? apart : 0;
    if (!inside) wait_for_previous();
    else multiply(sums, a, share, right.b + column * right.column, right.row, next);
    add_split(sums, lanes, range.split);
    if (whole) {
        if (inside && part == 0 && share.row != kNoRow) store(sums, out, share.row, column, right.n, apart);
        return;
    }
    if (threadIdx.x >= kWarp) return;
    const int count = int((a.starts[share.row + 1] - a.starts[share.row] + kPiece - 1) / kPiece);
    if (count > 1 && !add_pieces(sums, shared, number - piece.y, piece.y, count, lanes, chunks)) return;
    if (threadIdx.x < lanes && inside) store(sums, out, share.row, column, right.n, apart);
}
