// scatter_lines: up to eight columns of b, of any strides, which the writers of hybrid_scatter.cu load themselves.
//
// The TMA takes neither rows of fewer than 16 bytes nor rows that do not begin on 16-byte boundaries.  In a
// stage every line (row) of b is 16 bytes, with zeros where b has no column.
#pragma once

// b as it lies in memory; strides in elements.
struct Right {
    const Element* b;
    Count k, n, row, column;
};

// By a predicate instead of a branch.
__device__ inline u32 load_if(bool when, const Element* from) {
    u32 x = 0;
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p ld.global.u16 %0, [%1]; }" : "+r"(x) : "l"(from), "r"((u32)when));
    return x;
}
__device__ inline void store_line(u32 at, const uint4& x) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}

// A lane's lines of a unit: every 32nd.
class Lines {
    static constexpr int kMine = kUnitColumns / 32, kWidth = 8;

  public:
    // Those of the unit that begins with this column of the matrix.
    __device__ void load(const Right& right, int column) {
#pragma unroll
        for (int i = 0; i < kMine; i++) {
            const Count row = column + 32 * i + threadIdx.x % 32;
            const Element* from = right.b + row * right.row;
#pragma unroll
            for (int j = 0; j < kWidth; j++) x_[i][j] = load_if(row < right.k && j < right.n, from + j * right.column);
        }
    }
    // With BASE the lines of columns 2 and 3 of every group of four are stored a second time, at `spill`: for each
    // 16 groups first those of the columns 2, then those of the columns 3.
    __device__ void store(u32 lines, u32 spill) const {
#pragma unroll
        for (int i = 0; i < kMine; i++) {
            const int row = 32 * i + threadIdx.x % 32, group = row % 64 / 4;
            const uint4 line = {pair(i, 0), pair(i, 2), pair(i, 4), pair(i, 6)};
            store_line(lines + row * 16, line);
            if (BASE && row % 4 >= 2) store_line(spill + (row / 64 * 32 + (row % 4 - 2) * 16 + group) * 16, line);
        }
    }

  private:
    __device__ u32 pair(int i, int j) const { return x_[i][j] | x_[i][j + 1] << 16; }

    u32 x_[kMine][kWidth];
};
