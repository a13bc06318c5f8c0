// hybrid_tiles: survey, fill, decode and multiply the 64x64 tiles of a block-hybrid matrix.
//
//   kinds, starts, values, slots, codes    as in formats/hybrid_tiles.py
//   spill_starts, spill, places            overflow_starts, overflow_values, overflow_places there
//   nonzeros, overflow [bands, across]     non-zeros of a tile, and those beyond two in a group
//
// A block takes one tile (survey, fill, decode; grid = tiles across, bands), or one 64-row band by kColumns columns of
// the result (product; grid = column blocks, bands).  A tile is staged in shared memory as bits: -DWORD is the unsigned
// integer of the element's width, and -DMAGNITUDE has all bits set but the sign (int8: all), so that -0.0 counts as a
// zero.
//
// The product is plain; sums run over k in order, so the bits are always the same.  It serves float32, float64 and
// int8, and the 16-bit types where no tensor-core kernel can run.
//
// Reference: kernels/cpu_hybrid.py, whose arrays these equal bit for bit.
// Launcher: kernels/hybrid_tiles.py.
#include "numeric.cuh"

constexpr int kTile = 64, kThreads = 256, kGroups = kTile / 4;
enum TileKind { kEmpty, kDense, kTwoFour, kBitmap, kScattered };
using Word = WORD;
using Count = long long;
using Row = unsigned long long;

__device__ bool nonzero(Word x) { return (x & Word(MAGNITUDE)) != 0; }

// Stage the tile (band, across) of a strided matrix of bits; outside it is zero, and so is -0.0.
__device__ void stage(Word (*tile)[kTile], const Word* bits, Count m, Count k, Count row_pitch) {
    const Count row0 = Count(blockIdx.y) * kTile, column0 = Count(blockIdx.x) * kTile;
    for (int i = threadIdx.x; i < kTile * kTile; i += kThreads) {
        const int r = i / kTile, c = i % kTile;
        const bool inside = row0 + r < m && column0 + c < k;
        const Word x = inside ? bits[(row0 + r) * row_pitch + column0 + c] : Word(0);
        tile[r][c] = nonzero(x) ? x : Word(0);
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(kThreads)
survey(const Word* bits, Count m, Count k, Count row_pitch, Count* nonzeros, Count* overflow) {
    __shared__ Word tile[kTile][kTile];
    __shared__ int total[2];
    if (threadIdx.x < 2) total[threadIdx.x] = 0;
    stage(tile, bits, m, k, row_pitch);
    int count = 0, excess = 0;
    const int r = threadIdx.x / 4;
    for (int g = threadIdx.x % 4; g < kGroups; g += 4) {
        int held = 0;
        for (int c = 0; c < 4; ++c) held += tile[r][4 * g + c] != 0;
        count += held;
        excess += max(0, held - 2);
    }
    atomicAdd(&total[0], count);
    atomicAdd(&total[1], excess);
    __syncthreads();
    const Count at = Count(blockIdx.y) * gridDim.x + blockIdx.x;
    if (threadIdx.x == 0) nonzeros[at] = total[0];
    if (threadIdx.x == 1) overflow[at] = total[1];
}

// Turns the counts of 64 rows into the offsets at which they begin.
__device__ void exclusive_sum(int* held) {
    __syncthreads();
    if (threadIdx.x == 0) {
        int sum = 0;
        for (int r = 0; r < kTile; ++r) { const int x = held[r]; held[r] = sum; sum += x; }
    }
    __syncthreads();
}

__device__ void fill_bitmap(Word (*tile)[kTile], int* begin, Word* values, Row* codes) {
    const int r = threadIdx.x;
    Row word = 0;
    if (r < kTile) {
        for (int c = 0; c < kTile; ++c) word |= Row(tile[r][c] != 0) << c;
        codes[r] = word;
        begin[r] = __popcll(word);
    }
    exclusive_sum(begin);
    if (r < kTile) {
        Word* to = values + begin[r];
        for (int c = 0; c < kTile; ++c) if (tile[r][c] != 0) *to++ = tile[r][c];
    }
}

__device__ void fill_scattered(Word (*tile)[kTile], int* begin, Word* spill, unsigned short* places) {
    const int r = threadIdx.x;
    if (r < kTile) {
        int held = 0;
        for (int c = 0; c < kTile; ++c) held += tile[r][c] != 0;
        begin[r] = held;
    }
    exclusive_sum(begin);
    if (r >= kTile) return;
    int next = begin[r];
    for (int c = 0; c < kTile; ++c) {
        if (tile[r][c] == 0) continue;
        spill[next] = tile[r][c];
        places[next] = (unsigned short)(r * kTile + c);
        ++next;
    }
}

__device__ void fill_two_four(Word (*tile)[kTile], int* begin, Word* values, Row* codes, Word* spill,
                              unsigned short* places) {
    const int r = threadIdx.x;
    if (r < kTile) {
        int excess = 0;
        for (int g = 0; g < kGroups; ++g) {
            int held = 0;
            for (int c = 0; c < 4; ++c) held += tile[r][4 * g + c] != 0;
            excess += max(0, held - 2);
        }
        begin[r] = excess;
    }
    exclusive_sum(begin);
    if (r >= kTile) return;
    Row word = 0;
    int next = begin[r];
    for (int g = 0; g < kGroups; ++g) {
        int held = 0, first = 0, second = 0;
        Word pair[2] = {0, 0};
        for (int c = 0; c < 4; ++c) {
            const Word x = tile[r][4 * g + c];
            if (x == 0) continue;
            if (held == 0) { first = c; pair[0] = x; }
            else if (held == 1) { second = c; pair[1] = x; }
            else { spill[next] = x; places[next] = (unsigned short)(r * kTile + 4 * g + c); ++next; }
            ++held;
        }
        int code = first | second << 2;
        if (held == 0) code = 0x4;
        if (held == 1) {
            code = first == 3 ? 0xC : first | 0xC;
            if (first == 3) { pair[1] = pair[0]; pair[0] = 0; }
        }
        values[r * (kTile / 2) + 2 * g] = pair[0];
        values[r * (kTile / 2) + 2 * g + 1] = pair[1];
        word |= Row(code) << (4 * g);
    }
    codes[r] = word;
}

extern "C" __global__ void __launch_bounds__(kThreads)
fill(const Word* bits, Count m, Count k, Count row_pitch, const unsigned char* kinds, const Count* starts,
     Word* values, const int* slots, Row* codes, const Count* spill_starts, Word* spill,
     unsigned short* places) {
    __shared__ Word tile[kTile][kTile];
    __shared__ int begin[kTile];
    const Count at = Count(blockIdx.y) * gridDim.x + blockIdx.x;
    const int kind = kinds[at];
    if (kind == kEmpty) return;
    stage(tile, bits, m, k, row_pitch);
    Word* to = values + starts[at];
    if (kind == kDense) {
        for (int i = threadIdx.x; i < kTile * kTile; i += kThreads) to[i] = tile[i / kTile][i % kTile];
    } else if (kind == kBitmap) {
        fill_bitmap(tile, begin, to, codes + Count(slots[at]) * kTile);
    } else if (kind == kScattered) {
        fill_scattered(tile, begin, spill + spill_starts[at], places + spill_starts[at]);
    } else {
        fill_two_four(tile, begin, to, codes + Count(slots[at]) * kTile, spill + spill_starts[at],
                      places + spill_starts[at]);
    }
}

struct Matrix {
    const unsigned char* kinds;
    const Count* starts;
    const Word* values;
    const int* slots;
    const Row* codes;
    const Count* spill_starts;
    const Word* spill;
    const unsigned short* places;
};

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

extern "C" __global__ void __launch_bounds__(kThreads)
decode(Word* out, Count m, Count k, Count row_pitch, const Matrix a) {
    __shared__ Word tile[kTile][kTile];
    __shared__ int begin[kTile];
    const Count row0 = Count(blockIdx.y) * kTile, column0 = Count(blockIdx.x) * kTile;
    const bool any = load_tile(tile, begin, a, Count(blockIdx.y) * gridDim.x + blockIdx.x);
    __syncthreads();
    for (int i = threadIdx.x; i < kTile * kTile; i += kThreads) {
        const int r = i / kTile, c = i % kTile;
        if (row0 + r < m && column0 + c < k) out[(row0 + r) * row_pitch + column0 + c] = any ? tile[r][c] : Word(0);
    }
}

#ifdef ELEMENT
using In = Scalar<Kind::ELEMENT>;
using Out = Scalar<Kind::OUTPUT>;
using Acc = decltype(In::load(typename In::type{}));
constexpr int kColumns = sizeof(Acc) == 8 ? 16 : 32, kOwn = kColumns / 16;

__device__ Acc number(Word bits) { return In::load(*reinterpret_cast<const typename In::type*>(&bits)); }

extern "C" __global__ void __launch_bounds__(kThreads)
product(typename Out::type* out, const typename In::type* b, Count m, Count n, Count k, Count b_row,
        Count b_column, Count out_row, Count out_column, int across, const Matrix a) {
    __shared__ Word tile[kTile][kTile];
    __shared__ Acc right[kTile][kColumns];
    __shared__ int begin[kTile];
    const int row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * kOwn;
    const Count row0 = Count(blockIdx.y) * kTile, column0 = Count(blockIdx.x) * kColumns;
    Acc acc[4][kOwn] = {};
    for (int t = 0; t < across; ++t) {
        __syncthreads();
        if (!load_tile(tile, begin, a, Count(blockIdx.y) * across + t)) continue;
        for (int i = threadIdx.x; i < kTile * kColumns; i += kThreads) {
            const Count r = Count(t) * kTile + i / kColumns, c = column0 + i % kColumns;
            right[i / kColumns][i % kColumns] = r < k && c < n ? In::load(b[r * b_row + c * b_column]) : Acc(0);
        }
        __syncthreads();
#pragma unroll 8
        for (int i = 0; i < kTile; ++i)
            for (int x = 0; x < 4; ++x)
                for (int y = 0; y < kOwn; ++y) acc[x][y] += number(tile[row + x][i]) * right[i][column + y];
    }
    for (int x = 0; x < 4; ++x)
        for (int y = 0; y < kOwn; ++y)
            if (row0 + row + x < m && column0 + column + y < n)
                out[(row0 + row + x) * out_row + (column0 + column + y) * out_column] = Out::store(acc[x][y]);
}
#endif
