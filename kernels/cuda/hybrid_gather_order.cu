// hybrid_gather_order: the words of the gather kernel, in an order in which lanes rarely need the same banks.
//
//   bits    [m, k]                the matrix; columns contiguous, rows `pitch` apart
//   words, begins, heights, rows  as in hybrid_gather.cu; words are written, the others are read
//
// A part of a unit, in one panel, is ordered by one warp.  Its lane i knows the elements of bank i, those of columns i,
// i + 32, ..., as a mask for every row.  Slots (the same word of all lanes) are filled one after the other, and in a slot
// one lane after the other, in an order that changes from slot to slot.  A lane takes an element of its row
//
//   1. of a bank that is free among the eight lanes that read lines of 16 bytes at once; if there is none, it passes
//      where its row has slots to spare, and otherwise any bank will do;
//   2. of these, one whose bank is free among the 16 lanes that read lines of 8 bytes at once, and among all 32 lanes,
//      which read lines of 4 bytes: both rather than one, and one rather than none;
//   3. of these, one of the bank of which its row has the most left.
//
// A lane that passes reads a line that another of the eight reads.
//
// Shared memory, for each warp: masks [32 rows][4][32 banks], counts [32 rows][32 banks], then the columns of a slot.
// The bound is the choice, which a warp makes for one element after the other; parts are ordered side by side.
//
// Macros: WARPS of a block.
// Reference: kernels/cpu_gather_order.py, whose words these equal bit for bit.  Launcher: kernels/hybrid_gather_order.py.

using Count = long long;
constexpr unsigned kAll = ~0u;
constexpr int kLines = 4096, kRows = 32, kBanks = 32, kQuarters = kLines / kBanks / 32, kStep = 4;

struct Matrix {
    const unsigned short* bits;
    Count m, k, pitch;
};

struct Words {
    uint4* words;
    const int* begins;
    const int* heights;
    const int* rows;
    int units, panels, height;      // the last: rows of the tallest unit
};

struct __align__(16) Held {
    unsigned masks[kRows][kQuarters][kBanks];
    unsigned char counts[kRows][kBanks];
    short columns[32];

    // Note the elements of `row` in the panel that begins at `first`, if there is such a row; return how many.
    __device__ int read(int line, const Matrix& a, Count row, Count first) {
        const int lane = threadIdx.x % 32;
        int count = 0;
        for (int q = 0; q < kQuarters; ++q) {
            unsigned mask = 0;
#pragma unroll 16
            for (int j = 0; j < 32; ++j) {
                const Count column = first + (q * 32 + j) * kBanks + lane;
                if (row >= 0 && column < a.k && a.bits[row * a.pitch + column]) mask |= 1u << j;
            }
            masks[line][q][lane] = mask;
            count += __popc(mask);
        }
        counts[line][lane] = (unsigned char)count;
        return __reduce_add_sync(kAll, count);
    }
    // The first column of a row's elements in this lane's bank, which are one less afterwards.
    __device__ int take(int line) {
        const int bank = threadIdx.x % 32;
        int q = 0;
        while (!masks[line][q][bank]) ++q;
        const unsigned mask = masks[line][q][bank];
        masks[line][q][bank] = mask & (mask - 1);
        --counts[line][bank];
        return (q * 32 + __ffs(mask) - 1) * kBanks + bank;
    }
};

// The banks that lanes of a slot need so far.
struct Used {
    bool mine = false;                  // of 4 bytes: that of this lane's number
    unsigned of_halves = 0;             // of 8 bytes, by each half of the warp: 16 bits
    unsigned of_eight = 0;              // of 16 bytes, by the eight lanes whose turn it is

    // The bank of which `lane` takes one of `count` elements in every bank; -1 if it passes.
    __device__ int choose(int lane, int count, bool must) {
        const int bank = threadIdx.x % 32;
        const bool taken = of_eight >> bank % 8 & 1, met = of_halves >> (lane & 16 | bank % 16) & 1;
        const unsigned score = (4 * !taken + !mine + !met) << 8 | count;
        const unsigned best = __reduce_max_sync(kAll, count && (!taken || must) ? score << 5 | (31 - bank) : 0);
        if (!best) return -1;
        const int chosen = 31 - best % 32;
        mine |= bank == chosen;
        of_halves |= 1u << (lane & 16 | chosen % 16);
        of_eight |= 1u << chosen % 8;
        return chosen;
    }
};

// The column of this lane in slot number `slot`, or -1.  Lane i knows how many slots row i of the unit has to spare.
__device__ int fill_slot(Held& held, int slot, int height, int& spare) {
    const int mine = threadIdx.x % 32;
    Used used;
#pragma unroll 1
    for (int i = 0; i < 32; ++i) {
        if (i % 8 == 0) used.of_eight = 0;
        const int lane = (i / 8 + slot) % 4 * 8 + (i + 3 * slot) % 8, line = lane % height;
        const bool must = __shfl_sync(kAll, spare, line) == 0;
        const int bank = used.choose(lane, held.counts[line][mine], must);
        if (bank == mine) held.columns[lane] = (short)held.take(line);
        if (bank < 0 && mine == lane) held.columns[lane] = -1;
        if (bank < 0 && mine == line) --spare;
        __syncwarp();
    }
    const int column = held.columns[mine];
    __syncwarp();  // the next slot overwrites them
    return column;
}

// The word of a lane that takes this column, in the panel that begins at `first`, of its row.
__device__ unsigned word_of(int column, const Matrix& a, Count row, Count first) {
    const int lane = threadIdx.x % 32;
    const unsigned eight = __ballot_sync(kAll, column >= 0) >> lane / 8 * 8 & 0xff;
    const int seen = __shfl_sync(kAll, column, column >= 0 || !eight ? lane : lane / 8 * 8 + __ffs(eight) - 1);
    const unsigned value = column >= 0 ? a.bits[row * a.pitch + first + column] : 0;
    return value << 16 | max(seen, 0) * 16;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) order(const Matrix a, const Words to) {
    extern __shared__ __align__(16) unsigned char shared[];
    Held& held = reinterpret_cast<Held*>(shared)[threadIdx.x / 32];
    const int part = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (part >= to.units * to.panels) return;
    const int unit = part % to.units, height = to.heights[unit];
    const int begin = to.begins[part], steps = to.begins[part + 1] - begin;
    const Count first = Count(part / to.units) * kLines;
    const int* rows = to.rows + Count(unit) * to.height;
    int spare = 0;
    for (int line = 0; line < height; ++line) {
        const int count = held.read(line, a, rows[line], first);
        if (lane == line) spare = steps * kStep * 32 / height - count;
    }
    __syncwarp();
    const Count row = rows[lane % height];
    for (int step = 0; step < steps; ++step) {
        unsigned four[kStep];
#pragma unroll
        for (int i = 0; i < kStep; ++i) four[i] = word_of(fill_slot(held, step * kStep + i, height, spare), a, row, first);
        to.words[Count(begin + step) * 32 + lane] = make_uint4(four[0], four[1], four[2], four[3]);
    }
}
