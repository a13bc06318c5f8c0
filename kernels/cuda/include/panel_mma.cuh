// panel_mma: what a step of the panel kernel adds to its sums, by sparse tensor cores (float16, bfloat16).
//
// Plain multiply-adds would take one instruction to widen an element of b and one to multiply it, more than a
// multiprocessor issues in the time in which shared memory delivers the lines.  mma.sp m16n8k32 takes lines as
// ldmatrix reads them: in one turn 32 lines of 8 columns, two lines for each of its 16 rows.
//
// So only 32 of the 16 x 32 elements of A that it multiplies are not zero, and their positions are fixed.  Rows 0 to 7
// use lines 0 to 15, rows 8 to 15 use lines 16 to 31 in the same way.  In turn t (0 to 3) row r uses one line of each
// of two groups of four lines, f and f ^ 2, where f = (r % 8 / 2) ^ t.  In group f this is the line at place 0, in
// group f ^ 2 that at place 1; for an odd r the places are 2 and 3.  Then every eight neighbouring lines, which shared
// memory delivers at once, belong to eight different rows.
//
// A lane of the fragment holds one group of row lane / 4, and one of row lane / 4 + 8.  A step is four turns: in one
// of them the lane multiplies an element at the first place of its group, in one an element at the second place, in
// the others zeros.  So it takes four elements in a step, two for each row, and the metadata codes are constants.  If
// a unit has fewer than 16 rows, each of them takes several rows of the instruction.
//
// In the instruction, zeros of A meet lines that belong to other rows, so an infinity in b may reach these rows as NaN.
// Source: PTX ISA, mma.sp::ordered_metadata m16n8k32, ldmatrix.
#pragma once

constexpr int kHeight = 16;     // rows of the tallest unit
constexpr int kAhead = 3;       // steps
constexpr Kind kKind = Kind::ELEMENT;

// A lane's elements of a step: the first and the second of the low row, then of the high row.
using Values = uint2;

// The two rows to which a lane's sums belong.
struct Rows {
    int low, high;
    __device__ void find(const int* of_unit) {
        low = of_unit[threadIdx.x % 32 / 4];
        high = of_unit[threadIdx.x % 32 / 4 + 8];
    }
};

struct Sums {
    float sums[PLANES][4] = {};     // two columns of the low row, two of the high one

    __device__ void add(const Values& values, const uint2& places, const Line* panel, int turns) {
        if (turns == 4) {
#pragma unroll
            for (int turn = 0; turn < 4; ++turn) add_turn(values, places, panel, turn);
        } else {
#pragma unroll 1
            for (int turn = 0; turn < turns; ++turn) add_turn(values, places, panel, turn);
        }
    }
    __device__ void add_turn(const Values& values, const uint2& places, const Line* panel, int turn) {
        const int lane = threadIdx.x % 32, turn_of_first = lane / 8 ^ lane % 4;
        const unsigned kept = turn == turn_of_first ? 0xffff : turn == (turn_of_first ^ 2) ? 0xffff0000 : 0;
        const unsigned a[4] = {values.x & kept, 0, 0, values.y & kept};
        const unsigned codes = lane / 4 % 2 ? 0xeeeeeeee : 0x44444444;
        const unsigned two = turn < 2 ? places.x : places.y, place = turn % 2 ? two >> 16 : two & 0xffff;
#pragma unroll
        for (int plane = 0; plane < PLANES; ++plane) {
            unsigned b[4];
            load_matrices_transposed(b, shared_address(panel + plane * kPlane + place));
            mma_sp<kKind, kKind, 0>(sums[plane], a, b, codes);
        }
    }
    // Adds up the lanes of a row, and stores its sums.
    __device__ void store(const Rows& rows, int height, const Product& out, Count column0, Count n, bool wide, bool) {
        const Count column = column0 + threadIdx.x % 4 * 2;
#pragma unroll
        for (int plane = 0; plane < PLANES; ++plane) {
            float (&sum)[4] = sums[plane];
            if (height <= 8) sum[0] += sum[2], sum[1] += sum[3];
            for (int step = 4 * height; step < 32; step *= 2)
#pragma unroll
                for (int c = 0; c < 2; ++c) sum[c] += __shfl_xor_sync(~0u, sum[c], step);
            store_pair(rows.low, column + 8 * plane, sum[0], sum[1], out, n, wide);
            store_pair(rows.high, column + 8 * plane, sum[2], sum[3], out, n, wide);
        }
    }
    static __device__ void store_pair(int row, Count column, float one, float other, const Product& out, Count n,
                                      bool wide) {
        if (row < 0 || column >= n) return;
        Element* to = out.to + row * out.row + column * out.column;
        if (wide && column + 1 < n) {
            *reinterpret_cast<unsigned*>(to) = pair_of<kKind>(one, other);
            return;
        }
        *to = In::store(one);
        if (column + 1 < n) to[out.column] = In::store(other);
    }
};
