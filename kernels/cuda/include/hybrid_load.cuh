// hybrid_load: a tile of a block-hybrid matrix becomes dense in shared memory.
#pragma once
#include "hybrid_tile.cuh"

// Add what tile `at` holds with places, once all else has been written.
__device__ void place_spill(Word (*tile)[kTile], const Matrix& a, Count at) {
    __syncthreads();
    for (Count e = a.spill_starts[at] + threadIdx.x; e < a.spill_starts[at + 1]; e += kThreads)
        tile[a.places[e] / kTile][a.places[e] % kTile] = a.spill[e];
}

// Write tile `at` into shared memory as bits; returns false, with nothing written, if it is empty.
__device__ bool load_tile(Word (*tile)[kTile], int* begin, const Matrix& a, Count at) {
    const int kind = a.kinds[at];
    if (kind == kEmpty) return false;
    const Word* from = a.values + a.starts[at];
    const int r = threadIdx.x;
    if (kind == kDense) {
        for (int i = threadIdx.x; i < kTile * kTile; i += kThreads) tile[i / kTile][i % kTile] = from[i];
        return true;
    }
    for (int i = threadIdx.x; i < kTile * kTile; i += kThreads) tile[i / kTile][i % kTile] = 0;
    if (kind == kScattered) {
        place_spill(tile, a, at);
        return true;
    }
    const Row word = r < kTile ? a.codes[Count(a.slots[at]) * kTile + r] : 0;
    if (kind == kBitmap) {
        if (r < kTile) begin[r] = __popcll(word);
        exclusive_sum(begin);
        if (r < kTile) {
            from += begin[r];
            for (Row left = word; left; left &= left - 1) tile[r][__ffsll(left) - 1] = *from++;
        }
        return true;
    }
    __syncthreads();
    if (r < kTile) {
        for (int g = 0; g < kGroups; ++g) {
            const int code = int(word >> (4 * g)) & 15;
            const Word first = from[r * (kTile / 2) + 2 * g], second = from[r * (kTile / 2) + 2 * g + 1];
            tile[r][4 * g + (code & 3)] = first;
            tile[r][4 * g + (code >> 2)] = second;
        }
    }
    place_spill(tile, a, at);
    return true;
}
