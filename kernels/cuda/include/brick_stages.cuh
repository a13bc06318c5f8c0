// brick_stages: how a stage of bricks and b lies in shared memory, and where its bricks come from.
//
//   TILE_M / 16 blocks of rows, the bricks of each in the order of K;  from kBAt on b, as sparse_tile.cuh lays it out
//
// What a stage has of a block of 16 rows lies together in global memory, too.
#pragma once
#include "bricks.cuh"

constexpr int kRowBlocks = TILE_M / kBrickRows;     // of a tile
constexpr int kBlockBytes = kAtoms * kBrick;        // in a stage
constexpr int kBAt = (kRowBlocks * kBlockBytes + 1023) / 1024 * 1024;
constexpr int kStage = kBAt + kBBytes;
static_assert(TILE_M % kBrickRows == 0 && kBrick % 16 == 0 && kItem == 2);

// Bytes of the bricks of a block of rows in the stage from column k0 on.
inline int bytes_of_block(const Shape& s, int k0) {
    return min(kAtoms, (s.k - k0 + kBrickColumns - 1) / kBrickColumns) * kBrick;
}

// Calls act(i, from, bytes) for each block i of rows of that stage, which is block number_of(i) of the matrix.
template <class Number, class Act>
inline void each_row_block(const char* bricks, const Shape& s, int k0, Number number_of, Act act) {
    const int atoms = (s.k + kBrickColumns - 1) / kBrickColumns, bytes = bytes_of_block(s, k0);
#pragma unroll
    for (int i = 0; i < kRowBlocks; ++i) {
        const long long block = number_of(i);
        act(i, bricks + (block * atoms + k0 / kBrickColumns) * kBrick, bytes);
    }
}
