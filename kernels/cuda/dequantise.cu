// dequantise: a quantised 2:4 matrix as one of 16 bits: integers times factors, rounded to float32 and then to 16 bits.
//
//   bricks [batch, row blocks, K atoms, bytes]     elements, codes and factors (bricks.cuh)         (read once)
//   values [batch, m, pitch]                       OUTPUT, values_per_row of a row and up to seven  (written)
//                                                  zeros behind them; rows on 16-byte boundaries
//   packed [batch, K atoms, M atoms, 1024]         the codes, in the order for 16-bit elements      (written)
//
// A warp takes a brick.  What it stores at a time are four whole rows of the brick, 128 bytes each: eight elements of a
// lane.  For that the eight lanes of a row read 16 bytes each, of which four lanes (BITS 4) or two (BITS 8) share the
// same.  Behind the last row block an atom gets legal codes.
//
// Macros: OUTPUT, a type of 16 bits, and BITS.
//
// Reference: reference_quantised.dequantise.  Launcher: kernels/dequantise.py.
#include "bricks.cuh"
#include "packed_layout.cuh"

using Output = Scalar<Kind::OUTPUT>;
constexpr int kThreads = 256, kWarpsOfBlock = kThreads / 32;
constexpr int kPiece = 8;                                  // elements that a lane stores at a time, in 16 bytes
constexpr int kPieces = kBrickColumns / 2 / kPiece;        // of a row
constexpr int kLines = 32 / kPieces, kTurns = kBrickRows / kLines;  // rows of a warp at a time
constexpr int kBlocksOfAtom = kAtomM / kBrickRows;
constexpr unsigned kEmpty = 0x44444444;                    // codes of groups without elements

struct Sizes {
    int m, k, values_per_row, batch;
    long long pitch;  // elements
};

// A pair of integers, as float16, times the factor of their row.
__device__ unsigned scaled(unsigned pair, float factor) {
    const float2 x = __half22float2(reinterpret_cast<const __half2&>(pair));
    const typename Output::type y[2] = {Output::store(x.x * factor), Output::store(x.y * factor)};
    return reinterpret_cast<const unsigned&>(y);
}

// A piece of a row, one half of a step, of the words of the four lanes that multiply it.
__device__ uint4 dequantised(const uint4& words, int piece, float factor) {
    const int shift = piece % (2 * kChunkSteps) * (BITS == 4 ? 4 : 16);
    const auto of = [&](unsigned word) { return scaled(widen_word<Kind::float16, 0, 0>(word >> shift), factor); };
    return {of(words.x), of(words.y), of(words.z), of(words.w)};
}

// Where a brick lies in its matrix, and that among others.
struct Place {
    long long matrix;
    int block, atom, blocks, atoms, m_atoms;

    __device__ Place(long long number, const Sizes& s)
        : blocks((s.m + kBrickRows - 1) / kBrickRows), atoms((s.k + kAtomK - 1) / kAtomK),
          m_atoms((s.m + kAtomM - 1) / kAtomM) {
        const long long line = number / atoms;
        atom = int(number - line * atoms), matrix = line / blocks, block = int(line - matrix * blocks);
    }
    __device__ char* codes(char* packed, int of_block) const {
        const long long at = (matrix * atoms + atom) * m_atoms + of_block / kBlocksOfAtom;
        return packed + at * kAtomBytes + of_block % kBlocksOfAtom * kCodeBytes;
    }
};

__device__ void copy_codes(const char* brick, char* packed, const Place& at, int lane) {
    if (lane >= kCodeBytes / 16) return;
    reinterpret_cast<uint4*>(at.codes(packed, at.block))[lane] = reinterpret_cast<const uint4*>(brick + kCodesAt)[lane];
    if (at.block + 1 < at.blocks) return;
    for (int behind = at.blocks; behind % kBlocksOfAtom; ++behind)
        reinterpret_cast<uint4*>(at.codes(packed, behind))[lane] = {kEmpty, kEmpty, kEmpty, kEmpty};
}

__device__ void store_elements(const char* brick, Output::type* values, const Place& at, int lane, const Sizes& s) {
    const int piece = lane % kPieces, column = at.atom * (kBrickColumns / 2) + piece * kPiece;
    const char* chunk = brick + piece / (2 * kChunkSteps) * kChunkBytes;
    uint4 words[kTurns];
    float factors[kTurns];
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
        const int line = turn * kLines + lane / kPieces;
        words[turn] = reinterpret_cast<const uint4*>(chunk)[line];
        factors[turn] = reinterpret_cast<const float*>(brick + kFactorsAt)[line];
    }
    if (column >= s.values_per_row) return;
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
        const int row = at.block * kBrickRows + turn * kLines + lane / kPieces;
        if (row >= s.m) return;
        Output::type* to = values + (at.matrix * s.m + row) * s.pitch + column;
        *reinterpret_cast<uint4*>(to) = dequantised(words[turn], piece, factors[turn]);
    }
}

extern "C" __global__ void __launch_bounds__(kThreads)
dequantise(const char* bricks, Output::type* values, char* packed, const __grid_constant__ Sizes s) {
    const int lane = threadIdx.x % 32;
    const Place of_first(0, s);
    const long long total = (long long)s.batch * of_first.blocks * of_first.atoms;
    for (long long number = (long long)blockIdx.x * kWarpsOfBlock + threadIdx.x / 32; number < total;
         number += (long long)gridDim.x * kWarpsOfBlock) {
        const Place at(number, s);
        const char* brick = bricks + number * kBrick;
        copy_codes(brick, packed, at, lane);
        store_elements(brick, values, at, lane, s);
    }
}
