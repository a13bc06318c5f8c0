// sparse_fma: out [m, n] = epilogue(A [m, k] 2:4  @  b [k, n]) without tensor cores, for every type.
//
//   values [batch, m, 2 ceil(k/4)]          ELEMENT, any row pitch                 (read)
//   packed [batch, K atoms, M atoms, 1024]  metadata                               (read)
//   b      [batch, k, n]                    B_ELEMENT, any strides                 (read)
//   out    [batch, m, n]                    OUTPUT, any strides                    (written)
//
// A block of 256 threads makes a tile of 64 rows by 32 COLUMNS columns of the result: each of its eight warps makes
// eight rows, each lane COLUMNS columns.  All lanes of a warp meet the same codes, so a branch on the code never
// diverges.  The four rows of b from which a group selects two are loaded into registers once for all eight rows of A.
// Each of the six codes has a branch with multiply-adds of its own, which take the two selected rows.  So a product
// takes half the multiply-adds of the dense one.  It serves float32 and float64, which tensor cores do not multiply at
// 2:4, and any operand that the tensor-core kernels refuse.
//
// Sums run over ascending k in float, double (float64) or int (int8): first inside a tile of 32 columns of A, then over
// the tiles, which keeps the rounding error near that of a blocked sum.
//
// Macros: ELEMENT B_ELEMENT OUTPUT; B_ROW_MAJOR (1: neighbouring threads read along n of b, 0: along k); COLUMNS, which
// kernels/sparse_fma.py chooses; and those of epilogue.cuh.
//
// Reference: reference.matmul.  Launcher: kernels/sparse_fma.py.
#include "epilogue.cuh"
#include "packed_layout.cuh"

using Element = Scalar<Kind::ELEMENT>;
using Right = Scalar<Kind::B_ELEMENT>;
using Accumulator = decltype(Element::load({}) * Right::load({}));

constexpr int kRows = 8, kWarps = 8, kThreads = 32 * kWarps;  // kRows: of the result, a warp's
constexpr int kTileM = kRows * kWarps, kTileN = 32 * COLUMNS, kTileK = 32;
constexpr int kGroups = kTileK / 4;
constexpr int kBlocks = sizeof(Accumulator) == 8 ? 1 : 2;    // that must fit a multiprocessor

template <class T, int count> struct alignas(count * sizeof(T) < 16 ? count * sizeof(T) : 16) Pack { T x[count]; };
using Pair = Pack<Accumulator, 2>;           // the stored values of a group
using Columns = Pack<Accumulator, COLUMNS>;  // of a row of b, or of the result, that a lane makes

struct Tiles {
    Pair values[kGroups][kTileM];
    Pack<unsigned char, kRows> codes[kGroups][kWarps];
    Columns b[kTileK][32 + 1];  // padded against bank conflicts
};

// Four threads load a row, two groups each.
__device__ void load_values(Tiles& tiles, const Element::type* values, const unsigned char* packed,
                            long long pitch, int row0, int k0, int m, int k) {
    const int row = threadIdx.x / 4;
    for (int i = 0; i < kGroups / 4; ++i) {
        const int group = threadIdx.x % 4 * (kGroups / 4) + i, column = k0 + 4 * group;
        const bool inside = row0 + row < m && column < k;
        const Element::type* from = values + (row0 + row) * pitch + column / 2;
        Pair pair = {};
        if (inside) pair = {Accumulator(Element::load(from[0])), Accumulator(Element::load(from[1]))};
        tiles.values[group][row] = pair;
        tiles.codes[group][row / kRows].x[row % kRows] =
            inside ? packed_code<sizeof(Element::type)>(packed, row0 + row, column, (m + kAtomM - 1) / kAtomM) : 4;
    }
}

// Consecutive threads walk along the axis of b that is contiguous.
__device__ void load_b(Tiles& tiles, const Right::type* b, long long row_stride, long long column_stride,
                       int k0, int column0, int k, int n) {
    for (int i = threadIdx.x; i < kTileK * kTileN; i += kThreads) {
        const int row = B_ROW_MAJOR ? i / kTileN : i % kTileK;
        const int column = B_ROW_MAJOR ? i % kTileN : i / kTileK;
        const bool inside = k0 + row < k && column0 + column < n;
        tiles.b[row][column / COLUMNS].x[column % COLUMNS] = inside
            ? Accumulator(Right::load(b[(k0 + row) * row_stride + (column0 + column) * column_stride]))
            : Accumulator(0);
    }
}

template <int first, int second> __device__ void add(Columns& sum, Pair value, const Columns (&b)[4]) {
#pragma unroll
    for (int j = 0; j < COLUMNS; ++j) sum.x[j] += value.x[0] * b[first].x[j];
#pragma unroll
    for (int j = 0; j < COLUMNS; ++j) sum.x[j] += value.x[1] * b[second].x[j];
}

// `code` is the same for all lanes of a warp.
__device__ void add_group(Columns& sum, int code, Pair value, const Columns (&b)[4]) {
    switch (code) {
    case 0x4: add<0, 1>(sum, value, b); break;
    case 0x8: add<0, 2>(sum, value, b); break;
    case 0xC: add<0, 3>(sum, value, b); break;
    case 0x9: add<1, 2>(sum, value, b); break;
    case 0xD: add<1, 3>(sum, value, b); break;
    default: add<2, 3>(sum, value, b);
    }
}

__device__ void multiply(const Tiles& tiles, Columns (&total)[kRows]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    Columns sums[kRows] = {};
#pragma unroll 1
    for (int group = 0; group < kGroups; ++group) {
        Columns b[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) b[i] = tiles.b[4 * group + i][lane];
        const auto codes = tiles.codes[group][warp];
#pragma unroll
        for (int r = 0; r < kRows; ++r) add_group(sums[r], codes.x[r], tiles.values[group][warp * kRows + r], b);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) total[r].x[j] += sums[r].x[j];
}

extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) sparse_fma(
    const Element::type* values, long long value_pitch, long long value_batch,
    const unsigned char* packed, long long packed_batch,
    const Right::type* b, long long b_row, long long b_column, long long b_batch,
    Scalar<Kind::OUTPUT>::type* out, long long out_row, long long out_column, long long out_batch,
    int m, int n, int k, int batch, __grid_constant__ const EpilogueParams params) {
    __shared__ Tiles tiles;
    const int row0 = blockIdx.x * kTileM, column0 = blockIdx.y * kTileN;
    // The first row and column of this thread.
    const int row = row0 + threadIdx.x / 32 * kRows, column = column0 + threadIdx.x % 32 * COLUMNS;

    for (int p = blockIdx.z; p < batch; p += gridDim.z) {
        Columns total[kRows] = {};
        for (int k0 = 0; k0 < k; k0 += kTileK) {
            load_values(tiles, values + p * value_batch, packed + p * packed_batch, value_pitch, row0, k0, m, k);
            load_b(tiles, b + p * b_batch, b_row, b_column, k0, column0, k, n);
            __syncthreads();
            multiply(tiles, total);
            __syncthreads();
        }
#pragma unroll
        for (int r = 0; r < kRows; ++r)
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j)
                if (row + r < m && column + j < n)
                    out[p * out_batch + (row + r) * out_row + (column + j) * out_column] =
                        epilogue<Kind::OUTPUT, EPILOGUE, ACTIVATION>(total[r].x[j], params, p, row + r, column + j);
    }
}
