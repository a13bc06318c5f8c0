// scatter_pack: the kernels that turn a matrix into the units of hybrid_scatter.cu.
//
// Reference: kernels/reference_scatter.py.
#pragma once

constexpr int kGroupLines = kGroupBytes / kLineBytes, kMostGroups = kTileLines / kGroupElements;

// The matrix, and how many rows of it a unit has.
struct Matrix {
    const Element* w;
    Count m, k, pitch;
    int rows;
};

// The elements of a unit's tile that lie in one bank of shared memory; lane l looks at bank l.
struct Bank {
    const Element* w;                   // the unit's first
    Count pitch;
    int rows, columns, lane;            // of the unit

    __device__ explicit Bank(const Matrix& a) : pitch(a.pitch), lane(threadIdx.x) {
        const Count row = Count(blockIdx.y) * a.rows, column = Count(blockIdx.x) * kUnitColumns;
        w = a.w + row * a.pitch + column;
        rows = int(min(a.m - row, Count(a.rows)));
        columns = int(min(a.k - column, Count(kUnitColumns)));
    }

    // The element at row r, column c of the tile.
    __device__ Element at(int r, int c) const {
        c += r / kUnitRows * kTileColumns, r %= kUnitRows;
        const Element x = r < rows && c < columns ? w[r * pitch + c] : Element(0);
        return x & 0x7fff ? x : Element(0);
    }
    // The even or odd element of the bank in line r of the tile.
    __device__ Element element(int r, int odd) const {
        if (!BASE) return at(r, (lane / 4 ^ r % 8) * 8 + lane % 4 * 2 + odd);
        const int i = 2 * r + lane / 16, j = (lane % 16 / 4 ^ r % 4) * 8 + lane % 4 * 2 + odd, c = 4 * (j % 16) + 2 + j / 16;
        return spills(i, c) ? at(i, c) : Element(0);
    }
    // Whether an element at (r, c) would be the third or fourth non-zero of its group; c is at place 2 or 3.
    __device__ bool spills(int r, int c) const {
        int before = 0;
        for (int i = c / 4 * 4; i < c; ++i) before += at(r, i) != 0;
        return before >= 2;
    }
    __device__ int count(int odd) const {
        int found = 0;
        for (int r = 0; r < kTileLines; ++r) found += element(r, odd) != 0;
        return found;
    }
};

struct Size {
    int groups, lines;
};

// The size with the fewest bytes for a unit whose lists have these lengths, one even and one odd list for each lane.
__device__ Size best_size(int even, int odd) {
    Size best = {0, 0};
    int least = 1 << 30;
    for (int groups = 0; groups <= kMostGroups; ++groups) {
        const int held = groups * kGroupElements;
        const int left = __reduce_add_sync(~0u, max(even - held, 0) + max(odd - held, 0));
        const int lines = (left + 31) / 32, all = groups * kGroupLines + lines;
        if (lines <= kMostLines && all < least) least = all, best = {groups, lines};
        if (left == 0) break;
    }
    return best;
}

// Writes sizes[unit]: how many groups and lines each unit takes.  A warp takes one unit; grid (columns, rows of units).
extern "C" __global__ void __launch_bounds__(32)
measure(const Matrix a, Size* sizes) {
    const Bank bank(a);
    const Size size = best_size(bank.count(0), bank.count(1));
    if (threadIdx.x == 0) sizes[Count(blockIdx.y) * gridDim.x + blockIdx.x] = size;
}

// Store the first `held` elements of a list in the groups; returns the line of the tile behind the last of them.
__device__ int fill_groups(const Bank& bank, int odd, int held, unsigned char* to) {
    Element x = 0;
    int r = 0, row = 0;
    for (int i = 0; i < held; ++i) {
        for (Element next = 0; r < kTileLines && !next; ++r)
            if ((next = bank.element(r, odd))) x = next, row = r;
        unsigned char* group = to + i / kGroupElements * kGroupBytes;
        const int at = bank.lane * 8 + odd * kGroupElements + i % kGroupElements;
        reinterpret_cast<Element*>(group)[at] = x;
        group[512 + at] = (unsigned char)row;
    }
    return r;
}

// The 2:4 part of a unit: [128 rows][32 values], whose 16-byte chunks are exchanged as in shared memory (chunk c of row
// r lies at c ^ r / 2 % 4, the swizzle of 64 bytes); then [2 blocks of 64 rows][128 threads] words of metadata.  Lanes
// 0 and 1 of a quad hold those of the first 32 columns (selector 0), lanes 2 and 3 those of the others (selector 1).
__device__ void pack_base(const Bank& bank, unsigned char* to) {
    auto* words = reinterpret_cast<unsigned*>(to + kValueBytes);
    for (int i = bank.lane; i < 256; i += 32) words[i] = 0;
    __syncwarp();
    for (int i = bank.lane; i < kTileRows * 16; i += 32) {
        const int r = i / 16, group = i % 16;
        Element x[4];
        unsigned held = 0;                 // places of the non-zeros
#pragma unroll
        for (int c = 0; c < 4; ++c) x[c] = bank.at(r, 4 * group + c), held |= unsigned(x[c] != 0) << c;
        const unsigned first = held & -held, second = (held ^ first) & -(held ^ first);
        const int low = second || first < 8 ? max(__ffs(first) - 1, 0) : 0;           // none, or one at place 3: 0
        const int high = second ? __ffs(second) - 1 : first ? 3 : 1;
        Element kept[2] = {0, 0};
#pragma unroll
        for (int c = 0; c < 4; ++c) kept[0] = c == low ? x[c] : kept[0], kept[1] = c == high ? x[c] : kept[1];
        const int at = r * 64 + (group / 4 ^ r / 2 % 4) * 16 + group % 4 * 4;
        *reinterpret_cast<unsigned*>(to + at) = kept[0] | (unsigned)kept[1] << 16;
        // A word holds 16 columns of rows g and g + 8: four bits for each group, 16 for each row (sparse24/_spec.py).
        const int thread = r % 64 / 16 * 32 + r % 8 * 4 + group / 8 * 2 + group / 4 % 2;
        atomicOr(words + r / 64 * 128 + thread, (unsigned)(low | high << 2) << (group % 4 * 4 + r / 8 % 2 * 16));
    }
}

// The elements of a unit as groups and lines.
__device__ void pack_lists(const Bank& bank, const Size& size, unsigned char* to) {
    auto* words = reinterpret_cast<unsigned*>(to + size.groups * kGroupBytes);
    const int held = size.groups * kGroupElements;
    int row = fill_groups(bank, 0, held, to), odd = 0;
    const int odd_from = fill_groups(bank, 1, held, to);
    unsigned word = 0, last = 0;
    const auto next = [&] {  // of this bank, even ones first; false if there is none
        while (row < kTileLines || !odd) {
            if (row == kTileLines) {
                odd = 1, row = odd_from;
                continue;
            }
            const int r = row++;
            if (const Element x = bank.element(r, odd)) {
                word = unsigned(r * 128 + bank.lane * 4 + odd * 2) << 16 | x;
                return true;
            }
        }
        return false;
    };
    int placed = 0;
    bool more = next();
    while (const unsigned votes = __ballot_sync(~0u, more)) {
        if (more) words[placed + __popc(votes & ((1u << threadIdx.x) - 1))] = word;
        last = __shfl_sync(~0u, word, 31 - __clz(votes));
        placed += __popc(votes);
        more = more && next();
    }
    for (int i = placed + threadIdx.x; i < size.lines * 32; i += 32) words[i] = last;
}

// Write every unit from line starts[unit] on; same grid.
extern "C" __global__ void __launch_bounds__(32)
pack(const Matrix a, const Size* sizes, const long long* starts, unsigned char* units) {
    const Bank bank(a);
    const Count unit = Count(blockIdx.y) * gridDim.x + blockIdx.x;
    unsigned char* to = units + starts[unit] * kLineBytes;
    if (BASE) pack_base(bank, to);
    pack_lists(bank, sizes[unit], to + kBaseBytes);
}
