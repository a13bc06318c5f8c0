// sparse_fma: the product of a 2:4 matrix on ordinary multiply-add units, for every type.
//
//   values [batch, m, 2 ceil(k/4)]  ELEMENT, any row pitch                      (read)
//   packed [batch, k atoms, m atoms, 1024]  codes                               (read)
//   b      [batch, k, n]            B_ELEMENT, any strides                      (read)
//   out    [batch, m, n]            OUTPUT, any strides                         (written)
//
// One block of 256 threads makes a 64x64 tile of the result, 4x4 a thread.  A stored
// value carries its column: the inner loop reads the row of b that the value meets, so
// a product costs half the multiply-adds of the dense one.  It serves float32 and
// float64, which tensor cores do not multiply at 2:4, and any operand that the tensor
// core kernels refuse.
//
// Reference: reference.matmul.  Launcher: kernels/sparse_fma.py.
// Sums run over ascending k in float, double (float64) or int (int8): first inside a tile of
// 32 columns, then over the tiles, which keeps the rounding error near that of a blocked sum.
#include "epilogue.cuh"
#include "packed_layout.cuh"

using Element = Scalar<Kind::ELEMENT>;
using Right = Scalar<Kind::B_ELEMENT>;
using Accumulator = decltype(Element::load(Element::type()));

constexpr int kTileM = 64, kTileN = 64, kTileK = 32, kThreads = 256;
constexpr int kStored = kTileK / 2;    // stored values of a row of the tile
constexpr int kPerThread = 4;          // rows and columns of the result a thread makes

template <class T> struct alignas(4 * sizeof(T) < 16 ? 4 * sizeof(T) : 16) Quad { T x[kPerThread]; };  // one wide load

struct Tiles {
    Quad<Accumulator> value[kStored][kTileM / kPerThread];
    Quad<unsigned char> row_of_b[kStored][kTileM / kPerThread];
    Quad<Accumulator> b[kTileK][kTileN / kPerThread + 1];  // padded against bank conflicts
};

// Four stored values, two groups, of one row: decode their columns inside the tile.
__device__ void load_values(Tiles& tiles, const Element::type* values, const unsigned char* packed,
                            long long pitch, int row0, int k0, int m, int k) {
    const int row = threadIdx.x / 4, first = threadIdx.x % 4 * 4;
    const bool row_inside = row0 + row < m;
    for (int group = 0; group < 2; ++group) {
        const int column = k0 + 2 * first + 4 * group;
        const bool inside = row_inside && column < k;
        const int code = inside ? packed_code<sizeof(Element::type)>(packed, row0 + row, column, (m + kAtomM - 1) / kAtomM) : 4;
        for (int slot = 0; slot < 2; ++slot) {
            const int s = first + 2 * group + slot;
            tiles.value[s][row / kPerThread].x[row % kPerThread] =
                inside ? Accumulator(Element::load(values[(row0 + row) * pitch + k0 / 2 + s])) : Accumulator(0);
            tiles.row_of_b[s][row / kPerThread].x[row % kPerThread] = column - k0 + ((code >> (2 * slot)) & 3);
        }
    }
}

// Consecutive threads walk along the axis of b that is contiguous.
__device__ void load_b(Tiles& tiles, const Right::type* b, long long row_stride, long long column_stride,
                       int k0, int column0, int k, int n) {
    for (int i = threadIdx.x; i < kTileK * kTileN; i += kThreads) {
        const int row = B_ROW_MAJOR ? i / kTileN : i % kTileK;
        const int column = B_ROW_MAJOR ? i % kTileN : i / kTileK;
        const bool inside = k0 + row < k && column0 + column < n;
        tiles.b[row][column / kPerThread].x[column % kPerThread] = inside
            ? Accumulator(Right::load(b[(k0 + row) * row_stride + (column0 + column) * column_stride])) : Accumulator(0);
    }
}

// `row` and `column` count quads of rows and columns of the tile.
__device__ void multiply(const Tiles& tiles, Accumulator (&total)[kPerThread][kPerThread], int row, int column) {
    Accumulator acc[kPerThread][kPerThread] = {};
    #pragma unroll 2
    for (int s = 0; s < kStored; ++s) {
        const Quad<Accumulator> value = tiles.value[s][row];
        const Quad<unsigned char> row_of_b = tiles.row_of_b[s][row];
        #pragma unroll
        for (int i = 0; i < kPerThread; ++i) {
            const Quad<Accumulator> b = tiles.b[row_of_b.x[i]][column];
            #pragma unroll
            for (int j = 0; j < kPerThread; ++j) acc[i][j] += value.x[i] * b.x[j];
        }
    }
    #pragma unroll
    for (int i = 0; i < kPerThread; ++i)
        #pragma unroll
        for (int j = 0; j < kPerThread; ++j) total[i][j] += acc[i][j];
}

extern "C" __global__ void __launch_bounds__(kThreads, 2) sparse_fma(
    const Element::type* values, long long value_pitch, long long value_batch,
    const unsigned char* packed, long long packed_batch,
    const Right::type* b, long long b_row, long long b_column, long long b_batch,
    Scalar<Kind::OUTPUT>::type* out, long long out_row, long long out_column, long long out_batch,
    int m, int n, int k, int batch, __grid_constant__ const EpilogueParams params) {
    __shared__ Tiles tiles;
    const int row0 = blockIdx.x * kTileM, column0 = blockIdx.y * kTileN;
    const int row = threadIdx.x / 16, column = threadIdx.x % 16;  // of this thread's quads

    for (int p = blockIdx.z; p < batch; p += gridDim.z) {
        Accumulator acc[kPerThread][kPerThread] = {};
        for (int k0 = 0; k0 < k; k0 += kTileK) {
            load_values(tiles, values + p * value_batch, packed + p * packed_batch, value_pitch, row0, k0, m, k);
            load_b(tiles, b + p * b_batch, b_row, b_column, k0, column0, k, n);
            __syncthreads();
            multiply(tiles, acc, row, column);
            __syncthreads();
        }
        for (int i = 0; i < kPerThread; ++i)
            for (int j = 0; j < kPerThread; ++j) {
                const int r = row0 + kPerThread * row + i, c = column0 + kPerThread * column + j;
                if (r < m && c < n)
                    out[p * out_batch + r * out_row + c * out_column] =
                        epilogue<Kind::OUTPUT, EPILOGUE, ACTIVATION>(acc[i][j], params, p, r, c);
            }
    }
}
