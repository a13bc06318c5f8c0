// panel_fma: what a step of the panel kernel adds to its sums, by plain multiply-adds (float32, float64).
//
// In a step a lane takes four elements of its row and reads a line of b for each; 32 / height lanes share a row.
#pragma once

constexpr int kHeight = 32;     // rows of the tallest unit
constexpr int kAhead = (PLANES > 1 ? 3 : 4) - (sizeof(Element) == 8);    // steps, limited by registers

struct __align__(16) Values {
    Element x[4];
};

// The row of a lane.
struct Rows {
    int row;
    __device__ void find(const int* of_unit) { row = of_unit[threadIdx.x % 32]; }
};

struct Sums {
    Element sums[kColumns] = {};

    __device__ void add(const Values& values, const uint2& places, const Line* panel, int) {
        const unsigned lines[4] = {places.x & 0xffff, places.x >> 16, places.y & 0xffff, places.y >> 16};
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int plane = 0; plane < PLANES; ++plane) {
                const Line line = panel[plane * kPlane + lines[i]];
#pragma unroll
                for (int c = 0; c < kLineColumns; ++c) sums[kLineColumns * plane + c] += values.x[i] * line.x[c];
            }
    }
    // Adds up the lanes of a row, and stores its sums, or adds them to those of earlier panels.
    __device__ void store(const Rows& rows, int height, const Product& out, Count column0, Count n, bool wide,
                          bool first) {
        for (int step = height; step < 32; step *= 2)
#pragma unroll
            for (int c = 0; c < kColumns; ++c) sums[c] += __shfl_xor_sync(~0u, sums[c], step);
        if (rows.row < 0) return;
        Element* to = out.to + rows.row * out.row + column0 * out.column;
#pragma unroll
        for (int plane = 0; plane < PLANES; ++plane) {
            const int column = kLineColumns * plane;
            const bool whole = column0 + column + kLineColumns <= n;
            if (wide && whole) store_line(reinterpret_cast<Line*>(to + column), sums + column, first);
            else
#pragma unroll
                for (int c = column; c < column + kLineColumns; ++c) {
                    if (column0 + c >= n) break;
                    Element* there = to + c * out.column;
                    *there = first ? sums[c] : *there + sums[c];
                }
        }
    }
    static __device__ void store_line(Line* there, const Element* sums, bool first) {
        Line line = first ? Line{} : *there;
#pragma unroll
        for (int c = 0; c < kLineColumns; ++c) line.x[c] = first ? sums[c] : line.x[c] + sums[c];
        *there = line;
    }
};
