// transpose: out (batch, n, k) = in (batch, k, n), elements of BYTES bytes.
//
//   in   [batch, k, n]  n contiguous, any pitch and start              (read)
//   out  [batch, n, k]  k contiguous, rows on 16-byte boundaries       (written)
//
// The tensor cores take 8-bit and TF32 operands with k contiguous only; others pass through here.  A block of 256
// threads turns one tile of 8 kPer by 8 kPer elements through shared memory, and reads and writes 16 bytes (kPer
// elements) of a line at a time.  To write, two neighbouring lanes gather kPer elements of one column each, the second
// lane from the lines behind those of the first, and together fill a 32-byte sector; the 16 pairs of lanes of a warp
// take neighbouring columns.  Lines in shared memory are 33 words apart.  So the words of the two lines that a warp
// reads at once lie in different banks (4-byte elements: there are twice as many words, of which some share a bank).
//
// Macros: BYTES, of an element: 1, 2 or 4.
//
// Reference: reference.transpose.  Launcher: kernels/transpose.py.  Memory-bound.
#include "programmatic.cuh"

#if BYTES == 1
using Word = unsigned char;
#elif BYTES == 2
using Word = unsigned short;
#else
using Word = unsigned int;
#endif

constexpr int kPer = 16 / BYTES;      // elements of a vector
constexpr int kVectors = 8;           // of a line of the tile
constexpr int kTile = kVectors * kPer;
constexpr int kThreads = 256;
constexpr int kPitch = kTile + 4 / BYTES;

struct alignas(16) Vector { Word x[kPer]; };

// A vector of a line to its place in the tile, by words of 4 bytes, as lines of the tile begin at any of these.  Of `inside`
// elements that exist from there on, as many as fit; the others are zero.
__device__ inline void fetch(Word* to, const Word* from, int inside, int aligned) {
    Vector x;
    if (aligned && inside >= kPer) {
        x = *reinterpret_cast<const Vector*>(from);
    } else {
#pragma unroll
        for (int j = 0; j < kPer; j++) x.x[j] = j < inside ? from[j] : Word(0);
    }
    const unsigned* words = reinterpret_cast<const unsigned*>(&x);
#pragma unroll
    for (int j = 0; j < 4; j++) reinterpret_cast<unsigned*>(to)[j] = words[j];
}
__device__ inline void store(Word* to, const Vector& x, int inside) {
    if (inside >= kPer) {
        *reinterpret_cast<Vector*>(to) = x;
    } else {
#pragma unroll
        for (int j = 0; j < kPer; j++)
            if (j < inside) to[j] = x.x[j];
    }
}

extern "C" __global__ void __launch_bounds__(kThreads)
transpose(const Word* in, long long in_pitch, long long in_batch, Word* out, long long out_pitch, long long out_batch,
          int k, int n, int aligned) {
    __shared__ alignas(16) Word tile[kTile][kPitch];
    const int tiles_n = (n + kTile - 1) / kTile, tiles_k = (k + kTile - 1) / kTile;
    const int n0 = blockIdx.x % tiles_n * kTile, k0 = blockIdx.x / tiles_n % tiles_k * kTile;
    const int batch = blockIdx.x / tiles_n / tiles_k;
    in += batch * in_batch;
    out += batch * out_batch;
    let_next_start();
    wait_for_previous();

    for (int i = threadIdx.x; i < kTile * kVectors; i += kThreads) {
        const int row = i / kVectors, column = i % kVectors * kPer, inside = n - n0 - column;
        if (k0 + row >= k) continue;
        fetch(&tile[row][column], in + (k0 + row) * in_pitch + n0 + column, inside, aligned);
    }
    __syncthreads();

    for (int i = threadIdx.x; i < kTile * kVectors; i += kThreads) {
        const int column = i / 2 % kTile, row = (i % 2 + i / (2 * kTile) * 2) * kPer, inside = k - k0 - row;
        if (n0 + column >= n || inside <= 0) continue;
        Vector x;
#pragma unroll
        for (int j = 0; j < kPer; j++) x.x[j] = tile[row + j][column];
        store(out + (n0 + column) * out_pitch + k0 + row, x, inside);
    }
}
