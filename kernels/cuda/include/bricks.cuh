// bricks: quantised 2:4 matrices, 16 rows by 128 columns after one another, each with all that a product reads of it.
//
//   bytes                  of a brick
//   BITS / 2 times 256     chunks of stored elements: 16 bytes of each of the 16 rows
//   256                    codes in the order of mma.sp for 16-bit elements (packed_layout.cuh)
//   64                     the factor of each row's elements, float32
//
// Word t of a row's chunk is what lane t of a quad multiplies.  With a step of 32 columns, or 16 stored elements, `half`
// being 0 for the first eight of them, elements 2 t + 8 half + e of the row are
//
//   BITS 4   nibble 2 (step % 2) + half + 4 e of a word of chunk step / 2
//   BITS 8   byte 2 half + e of a word of chunk step
//
// Compiled with BITS, 4 or 8.  kernels/bricks.py makes them.
#pragma once
#include "widen_nibbles.cuh"

constexpr int kBrickRows = 16, kBrickColumns = 128;
constexpr int kChunkBytes = 256, kChunks = BITS / 2, kCodeBytes = 256;
constexpr int kCodesAt = kChunks * kChunkBytes, kFactorsAt = kCodesAt + kCodeBytes;
constexpr int kBrick = kFactorsAt + 64;
constexpr int kChunkSteps = 4 / kChunks;  // of a chunk

// Elements 2 t + 8 half and the next one of a step of a chunk, from word t of the chunk; `to` is what they become.
template <Kind to, int step, int half> unsigned widen_word(unsigned word) {
    if constexpr (BITS == 8) return widen_pair<Kind::int8, to, half == 1>(word);
    else return widen_nibbles<to, 2 * step + half>(word);
}
