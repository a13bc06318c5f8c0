// scatter_units: how the non-zeros of a 128x64 unit of a matrix are stored for hybrid_scatter.cu.
//
// A word is an element and, above it, its byte in a dense tile: rows of 128 bytes whose 16-byte chunks are
// exchanged as the tensor cores do (chunk c of row r lies at c ^ r % 8).
//
//   bits  31 .. 16                  15 .. 0
//         byte of the tile, even    element
//
// Words are stored by 32 lanes at a time, so neighbours should lie in different banks of shared
// memory: the first non-zero of every bank comes first, then the second of every bank, and so on.  A unit
// is padded to whole rows of 128 words by repeating its last word; row words 4 l .. 4 l + 3 are those of lane l.
#pragma once

constexpr int kUnitRows = 128, kUnitColumns = 64, kRowWords = 128;
constexpr int kTileBytes = kUnitRows * kUnitColumns * 2;

// The places of one bank of a tile, row by row: each row has two elements in every bank.
struct Bank {
    const Element* w;
    Count m, k, pitch, row, column;     // of the unit's first element
    int lane, place;                    // the next to look at

    __device__ Bank(const Element* w, Count m, Count k, Count pitch)
        : w(w), m(m), k(k), pitch(pitch), row(Count(blockIdx.y) * kUnitRows), column(Count(blockIdx.x) * kUnitColumns),
          lane(threadIdx.x), place(0) {}

    // The next non-zero as a word; false if there is none.
    __device__ bool next(unsigned& word) {
        while (place < 2 * kUnitRows) {
            const int r = place / 2, half = place % 2, chunk = lane / 4 ^ r % 8;
            const Count i = row + r, j = column + chunk * 8 + lane % 4 * 2 + half;
            ++place;
            const Element x = i < m && j < k ? w[i * pitch + j] : Element(0);
            if (x & 0x7fff) {
                word = unsigned(r * 128 + lane * 4 + half * 2) << 16 | x;
                return true;
            }
        }
        return false;
    }
};

// Where the word with this number lies in its unit.
__device__ int stored_at(int number) {
    return number / kRowWords * kRowWords + number % 32 * 4 + number / 32 % 4;
}

// rows[unit], how many rows of words every unit takes; one warp a unit, grid (columns, rows of units).
extern "C" __global__ void __launch_bounds__(32)
measure(const Element* w, Count m, Count k, Count pitch, int* rows) {
    Bank bank(w, m, k, pitch);
    unsigned word;
    int count = 0;
    while (bank.next(word)) ++count;
    count = __reduce_add_sync(~0u, count);
    if (threadIdx.x == 0) rows[Count(blockIdx.y) * gridDim.x + blockIdx.x] = (count + kRowWords - 1) / kRowWords;
}

// Write the words of every unit from row starts[unit] on; same grid.
extern "C" __global__ void __launch_bounds__(32)
pack(const Element* w, Count m, Count k, Count pitch, const long long* starts, unsigned* words) {
    Bank bank(w, m, k, pitch);
    words += starts[Count(blockIdx.y) * gridDim.x + blockIdx.x] * kRowWords;
    unsigned word = 0, last = 0;
    bool held = bank.next(word);
    int placed = 0;
    while (const unsigned votes = __ballot_sync(~0u, held)) {
        if (held) words[stored_at(placed + __popc(votes & ((1u << threadIdx.x) - 1)))] = word;
        last = __shfl_sync(~0u, word, 31 - __clz(votes));
        placed += __popc(votes);
        held = held && bank.next(word);
    }
    const int end = (placed + kRowWords - 1) / kRowWords * kRowWords;
    for (int i = placed + threadIdx.x; i < end; i += 32) words[stored_at(i)] = last;
}
