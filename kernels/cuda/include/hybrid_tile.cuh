// hybrid_tile: the record of a block-hybrid matrix, as in formats/hybrid_tiles.py.
//
//   here                           there
//   spill_starts, spill, places    overflow_starts, overflow_values, overflow_places
//
//   codes    64 bits of a row   2:4: bits 4 g to 4 g + 3 are the code of group g (sparse24/_spec.py)
//                               bitmap: bit c is set where column c is not zero
//   places   16 bits            64 row + column, of an element that the tile holds with its place
//
// Elements are bits: -DWORD is the unsigned integer of their width.  A block of kThreads threads stages a tile in
// shared memory as Word[kTile][kTile].
#pragma once

constexpr int kTile = 64, kThreads = 256, kGroups = kTile / 4;
enum TileKind { kEmpty, kDense, kTwoFour, kBitmap, kScattered };
using Word = WORD;
using Count = long long;
using Row = unsigned long long;

struct Matrix {
    const unsigned char* kinds;
    const Count* starts;
    Word* values;
    const int* slots;
    Row* codes;
    const Count* spill_starts;
    Word* spill;
    unsigned short* places;
};

// Turns the counts of 64 rows into the offsets at which they begin.
__device__ void exclusive_sum(int* held) {
    __syncthreads();
    if (threadIdx.x == 0) {
        int sum = 0;
        for (int r = 0; r < kTile; ++r) { const int x = held[r]; held[r] = sum; sum += x; }
    }
    __syncthreads();
}
