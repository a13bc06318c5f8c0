// hybrid_panel: A @ b for a very sparse float32 A and any number of columns: a panel of b stays on the chip.
//
//   values [steps][32 lanes][4]   elements; 0 is padding
//   places [steps][32 lanes][4]   uint16: column within its panel; padding points at lines of zeros
//   begins [panels][units] + 1    first step of a unit's part in a panel
//   heights [units]               rows of a unit, a power of two up to 32
//   rows   [units][32]            the rows of a unit, then -1; rows of a unit are of like length
//
// A panel is LINES columns of A and as many rows ("lines") of b by 4 PLANES columns, in shared memory: PLANES
// planes of lines of 16 bytes.  A block takes one panel after the other, and with each it walks its share of the
// units, a warp a unit at a time; 32 / height lanes share a row.  Sums of panels meet in the result, in order:
// the same bits every time.  Blocks for all shares come first, then those for the next columns.
// Words of A are asked for before the kernel waits for the one before it in the stream; b is not.
//
// What sets the time is that every multiply-add reads 4 bytes of shared memory.  It serves eight lanes at once if
// their lines lie in eight different banks of 16 bytes; the launcher orders the elements of rows such that
// they mostly do.  6 bytes a non-zero come from L2 for every 4 PLANES columns.
//
// Macros: LINES PLANES WARPS, and B_LOAD, how b is read: 1 by 16 bytes, 0 element by element.
// Reference: a dense product.  Launcher: kernels/hybrid_panel.py.
#include "programmatic.cuh"

using Count = long long;
constexpr int kThreads = 32 * WARPS, kColumns = 4 * PLANES, kBanks = 8;
constexpr int kPlane = LINES + kBanks;      // lines; the last ones are zeros
constexpr int kAhead = PLANES > 1 ? 3 : 4;  // steps

struct Left {
    const float4* values;
    const uint2* places;
    const int* begins;
    const int* heights;
    const int* rows;
    int units, panels;
};

struct Right {
    const float* b;
    Count k, n, row, column;    // sizes and strides in elements
};

struct Product {
    float* to;
    Count row, column;          // strides in elements
};

// Words are read once by a block and again by others: they stay in L2 only.
__device__ float4 read_once(const float4* from) {
    float4 x;
    asm volatile("ld.global.nc.L1::no_allocate.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "l"(from));
    return x;
}
__device__ uint2 read_once(const uint2* from) {
    uint2 x;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(x.x), "=r"(x.y) : "l"(from));
    return x;
}

// The lines of b that a panel needs.  What lies beyond b is left as it is: no word points there, and
// columns beyond n are never written.  Blocks begin at different lines, or they would all ask the
// same slice of L2 at the same time.
__device__ void fetch_panel(float4* panel, const Right& b, int number, Count column0) {
    const Count first = Count(number) * LINES;
    const int lines = int(min(Count(LINES), b.k - first));
    const int real = int(min(Count(kColumns), b.n - column0));
    const float* from = b.b + first * b.row + column0 * b.column;
    const unsigned to = unsigned(__cvta_generic_to_shared(panel));
#if B_LOAD
    for (int i = threadIdx.x; i < LINES * PLANES; i += kThreads) {
        const int line = (i / PLANES + blockIdx.x * 352) % LINES, plane = i % PLANES;
        if (line < lines && 4 * plane < real)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                         ::"r"(to + (plane * kPlane + line) * 16), "l"(from + line * b.row + 4 * plane));
    }
#else
    const bool by_lines = b.column > b.row;     // neighbours in memory are neighbouring threads
    for (int i = threadIdx.x; i < LINES * kColumns; i += kThreads) {
        const int line = by_lines ? i % LINES : i / kColumns, c = by_lines ? i / LINES : i % kColumns;
        if (line < lines && c < real)
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4;"
                         ::"r"(to + (c / 4 * kPlane + line) * 16 + c % 4 * 4),
                           "l"(from + line * b.row + c * b.column));
    }
#endif
    asm volatile("cp.async.wait_all;" ::: "memory");
}

__device__ void add_step(float (&acc)[kColumns], const float4& four, const uint2& places, const float4* panel) {
    const float values[4] = {four.x, four.y, four.z, four.w};
    const unsigned lines[4] = {places.x & 0xffff, places.x >> 16, places.y & 0xffff, places.y >> 16};
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int plane = 0; plane < PLANES; ++plane) {
            const float4 line = panel[plane * kPlane + lines[i]];
            acc[4 * plane] += values[i] * line.x;
            acc[4 * plane + 1] += values[i] * line.y;
            acc[4 * plane + 2] += values[i] * line.z;
            acc[4 * plane + 3] += values[i] * line.w;
        }
}

// A unit's part in a panel, kAhead of its steps on their way from memory.
struct Part {
    const float4* values;
    const uint2* places;
    int left, height, row;
    float4 values_ahead[kAhead];
    uint2 places_ahead[kAhead];

    __device__ void ask(int i) {
        values_ahead[i] = read_once(values + 32 * i);
        places_ahead[i] = read_once(places + 32 * i);
    }
    __device__ void begin(const Left& a, int panel, int unit) {
        left = 0;
        if (unit >= a.units || panel >= a.panels) return;
        const int lane = threadIdx.x % 32;
        const int* begins = a.begins + Count(panel) * a.units + unit;
        const Count first = begins[0];
        left = int(begins[1] - first);
        values = a.values + first * 32 + lane;
        places = a.places + first * 32 + lane;
#pragma unroll
        for (int i = 0; i < kAhead; ++i)
            if (i < left) ask(i);
        height = a.heights[unit];
        row = a.rows[unit * 32 + lane];
    }
    __device__ void add(float (&acc)[kColumns], const float4* panel) {
        for (; left > 0; left -= kAhead) {
            values += 32 * kAhead;
            places += 32 * kAhead;
#pragma unroll
            for (int i = 0; i < kAhead; ++i) {
                if (i >= left) break;
                add_step(acc, values_ahead[i], places_ahead[i], panel);
                if (i + kAhead < left) ask(i);
            }
        }
    }
};

// Adds the lanes of a row, and stores its sums, or adds them to those of earlier panels.
__device__ void store(float (&acc)[kColumns], int height, int row, const Product& out, Count column0, Count n,
                      bool by_four, bool first) {
    for (int step = height; step < 32; step *= 2)
#pragma unroll
        for (int c = 0; c < kColumns; ++c) acc[c] += __shfl_xor_sync(~0u, acc[c], step);
    if (row < 0) return;
    float* to = out.to + row * out.row + column0 * out.column;
#pragma unroll
    for (int plane = 0; plane < PLANES; ++plane) {
        const float* sums = acc + 4 * plane;
        if (by_four && column0 + 4 * plane + 4 <= n) {
            float4 sum = make_float4(sums[0], sums[1], sums[2], sums[3]);
            float4* there = reinterpret_cast<float4*>(to + 4 * plane);
            if (!first) {
                const float4 old = *there;
                sum = make_float4(old.x + sum.x, old.y + sum.y, old.z + sum.z, old.w + sum.w);
            }
            *there = sum;
            continue;
        }
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            if (column0 + 4 * plane + c >= n) break;
            float* there = to + (4 * plane + c) * out.column;
            *there = first ? sums[c] : *there + sums[c];
        }
    }
}

// out = A @ b.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
product(const Left a, const Right b, const Product out, const int shares, const int by_four) {
    extern __shared__ __align__(16) float4 panel[];
    const int stride = shares * WARPS, unit0 = blockIdx.x % shares + threadIdx.x / 32 * shares;
    const Count column0 = Count(blockIdx.x / shares) * kColumns;
    let_next_start();
    Part part;
    part.begin(a, 0, unit0);
    for (int i = threadIdx.x; i < kBanks * PLANES; i += kThreads)
        panel[i / kBanks * kPlane + LINES + i % kBanks] = make_float4(0, 0, 0, 0);
    wait_for_previous();
    for (int number = 0; number < a.panels; ++number) {
        if (number) __syncthreads();    // all warps have read the one before
        fetch_panel(panel, b, number, column0);
        __syncthreads();
        for (int unit = unit0; unit < a.units; unit += stride) {
            float acc[kColumns] = {};
            part.add(acc, panel);
            const int height = part.height, row = part.row;
            const bool last = unit + stride >= a.units;
            part.begin(a, number + last, last ? unit0 : unit + stride);
            store(acc, height, row, out, column0, b.n, by_four, number == 0);
        }
    }
}
