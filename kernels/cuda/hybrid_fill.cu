// hybrid_fill: survey the 64x64 tiles of a matrix, and fill those of its block-hybrid form.
//
//   survey  nonzeros, overflow [bands, across]  non-zeros of a tile, and those beyond two in a group  (written)
//   fill    a (hybrid_tile.cuh)                 kinds of tiles, and where what they hold begins       (read)
//                                               values, codes, spill and places                       (written)
//
// A block takes one tile (grid = tiles across, bands).
//
// Macros: WORD (hybrid_tile.cuh); ROWS, how the matrix is read: DenseRows or CsrRows, of which a block reads the elements
// of its tile alone; MAGNITUDE, all bits but the sign (int8: all), so that -0.0 counts as a zero.
//
// Reference: kernels/cpu_hybrid.py and kernels/cpu_hybrid_csr.py, whose arrays these equal bit for bit.
// Launcher: kernels/hybrid_fill.py.
#include "hybrid_tile.cuh"

__device__ Word unsigned_zeros(Word x) { return (x & Word(MAGNITUDE)) != 0 ? x : Word(0); }

// Rows of k contiguous elements, `pitch` apart.
struct DenseRows {
    const Word* bits;
    Count m, k, pitch;

    __device__ bool stage(Word (*tile)[kTile], Count row0, Count column0) const {
        for (int i = threadIdx.x; i < kTile * kTile; i += kThreads) {
            const int r = i / kTile, c = i % kTile;
            const bool inside = row0 + r < m && column0 + c < k;
            tile[r][c] = inside ? unsigned_zeros(bits[(row0 + r) * pitch + column0 + c]) : Word(0);
        }
        return true;
    }
};

// The rows of a CSR matrix; columns ascend in each.
struct CsrRows {
    const Count* starts;
    const int* columns;
    const Word* bits;
    Count m;

    // The first element of a row at or after `column`.
    __device__ Count find(Count row, Count column) const {
        Count low = starts[row], high = starts[row + 1];
        while (low < high) {
            const Count middle = (low + high) / 2;
            if (columns[middle] < column) low = middle + 1;
            else high = middle;
        }
        return low;
    }

    __device__ bool stage(Word (*tile)[kTile], Count row0, Count column0) const {
        __shared__ Count ends[2][kTile];  // of each row in this tile
        bool any = false;
        if (threadIdx.x < kTile) {
            const int r = threadIdx.x;
            const bool inside = row0 + r < m;
            ends[0][r] = inside ? find(row0 + r, column0) : 0;
            ends[1][r] = inside ? find(row0 + r, column0 + kTile) : 0;
            any = ends[0][r] < ends[1][r];
        }
        for (int i = threadIdx.x; i < kTile * kTile; i += kThreads) tile[i / kTile][i % kTile] = 0;
        if (!__syncthreads_or(any)) return false;
        constexpr int kLanes = kThreads / kTile;
        const int r = threadIdx.x / kLanes;
        for (Count e = ends[0][r] + threadIdx.x % kLanes; e < ends[1][r]; e += kLanes)
            tile[r][columns[e] - column0] = unsigned_zeros(bits[e]);
        return true;
    }
};

// Stage the tile of this block, with zeros beyond the matrix; returns false where that is known to be nothing but zeros.
__device__ bool stage(Word (*tile)[kTile], const ROWS& rows) {
    const bool any = rows.stage(tile, Count(blockIdx.y) * kTile, Count(blockIdx.x) * kTile);
    __syncthreads();
    return any;
}

// Non-zeros of group g of row r.
__device__ int held_of(Word (*tile)[kTile], int r, int g) {
    int held = 0;
    for (int c = 0; c < 4; ++c) held += tile[r][4 * g + c] != 0;
    return held;
}

// The counts of tiles without elements stay as they are: zeros.
extern "C" __global__ void __launch_bounds__(kThreads)
survey(const ROWS rows, Count* nonzeros, Count* overflow) {
    __shared__ Word tile[kTile][kTile];
    __shared__ int total[2];
    if (threadIdx.x < 2) total[threadIdx.x] = 0;
    if (!stage(tile, rows)) return;
    int count = 0, excess = 0;
    for (int g = threadIdx.x % 4; g < kGroups; g += 4) {
        const int held = held_of(tile, threadIdx.x / 4, g);
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

// The non-zeros of this thread's row as bits; begin[r] becomes how many stand in the rows before.
__device__ Row mask_rows(Word (*tile)[kTile], int* begin) {
    const int r = threadIdx.x;
    Row word = 0;
    if (r < kTile) {
        for (int c = 0; c < kTile; ++c) word |= Row(tile[r][c] != 0) << c;
        begin[r] = __popcll(word);
    }
    exclusive_sum(begin);
    return word;
}

__device__ void fill_bitmap(Word (*tile)[kTile], int* begin, Word* values, Row* codes) {
    const int r = threadIdx.x;
    const Row word = mask_rows(tile, begin);
    if (r >= kTile) return;
    codes[r] = word;
    values += begin[r];
    for (Row left = word; left; left &= left - 1) *values++ = tile[r][__ffsll(left) - 1];
}

__device__ void fill_scattered(Word (*tile)[kTile], int* begin, Word* spill, unsigned short* places) {
    const int r = threadIdx.x;
    const Row word = mask_rows(tile, begin);
    if (r >= kTile) return;
    int next = begin[r];
    for (Row left = word; left; left &= left - 1, ++next) {
        const int c = __ffsll(left) - 1;
        spill[next] = tile[r][c];
        places[next] = (unsigned short)(r * kTile + c);
    }
}

__device__ void fill_two_four(Word (*tile)[kTile], int* begin, Word* values, Row* codes, Word* spill,
                              unsigned short* places) {
    const int r = threadIdx.x;
    if (r < kTile) {
        int excess = 0;
        for (int g = 0; g < kGroups; ++g) excess += max(0, held_of(tile, r, g) - 2);
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

extern "C" __global__ void __launch_bounds__(kThreads) fill(const ROWS rows, const Matrix a) {
    __shared__ Word tile[kTile][kTile];
    __shared__ int begin[kTile];
    const Count at = Count(blockIdx.y) * gridDim.x + blockIdx.x;
    const int kind = a.kinds[at];
    if (kind == kEmpty) return;
    stage(tile, rows);
    Word* const values = a.values + a.starts[at];
    Word* const spill = a.spill + a.spill_starts[at];
    unsigned short* const places = a.places + a.spill_starts[at];
    if (kind == kDense) {
        for (int i = threadIdx.x; i < kTile * kTile; i += kThreads) values[i] = tile[i / kTile][i % kTile];
    } else if (kind == kScattered) {
        fill_scattered(tile, begin, spill, places);
    } else {
        Row* const codes = a.codes + Count(a.slots[at]) * kTile;
        if (kind == kBitmap) fill_bitmap(tile, begin, values, codes);
        else fill_two_four(tile, begin, values, codes, spill, places);
    }
}
