// hybrid_panel: A @ b for a very sparse A and any number of columns: a panel of b stays on the chip.
//
//   values  [steps][32 lanes][4]  elements; 0 is padding
//   places  [steps][32 lanes][4]  uint16: column within its panel; padding points at lines of zeros
//   begins  [panels][units] + 1   bits 2-31: the first step of a unit's part in a panel; bits 0-1: the number of turns
//                                 (include/panel_mma.cuh) in that part's last step, modulo 4
//   heights [units]               rows of a unit, a power of two
//   rows    [units][kHeight]      numbers of a unit's rows, then -1; rows of a unit are of similar length
//   b       [k, n]                any strides; with B_LOAD 1 rows are contiguous and begin on 16-byte boundaries
//   out     [m, n]                any strides
//   shares                        how many blocks share the rows for the same columns
//   wide                          whether columns of out lie in aligned runs of 16 bytes (of 16-bit elements: of 4)
//
// Values and places of 16-bit elements are in the order of an instruction's fragments (include/panel_mma.cuh).
//
// A panel is LINES columns of A and the matching rows ("lines") of b, of which PLANES * kLineColumns columns are kept
// in shared memory: PLANES planes of lines of 16 bytes, each followed by kBanks lines of zeros for padding.  A block
// takes one panel after the other, with a __syncthreads before and after it is copied.  With each, its warps walk
// through the block's share of the units, a unit at a time.  Every panel adds its sums to the result, in order: the
// same bits every time.  16-bit results would lose bits that way, so for those one panel holds all rows of b.  In the
// grid the blocks for all shares come first, then those for the next columns.
//
// The first elements of A are loaded before the kernel waits for the preceding one in the stream, as no kernel writes
// them; b is loaded afterwards (programmatic.cuh).
//
// The bound is shared memory, from which every multiply-add reads an element of b.  It serves eight lanes at once if
// their lines lie in eight different banks of 16 bytes, and the launcher orders the elements of rows such that they
// mostly do.  Elements and places are read from L2 once for all columns of a block.
//
// Macros: ELEMENT LINES PLANES, WARPS (the largest number of a block), and B_LOAD, how b is read: 1 by 16 bytes,
// 0 element by element (not for 16-bit elements).
// Reference: a dense product; reference_panel for the order.  Launcher: kernels/hybrid_panel.py.
#include "numeric.cuh"
#include "pair.cuh"
#include "mma_sp.cuh"
#include "programmatic.cuh"

using Count = long long;
using In = Scalar<Kind::ELEMENT>;
using Element = In::type;
constexpr int kSize = sizeof(Element), kBanks = 8, kLineColumns = 16 / kSize;
constexpr int kColumns = kLineColumns * PLANES;
constexpr int kPlane = LINES + kBanks;      // lines; the last ones are zeros

struct __align__(16) Line {
    Element x[kLineColumns];
};

struct Left {
    const void* values;
    const uint2* places;
    const int* begins;
    const int* heights;
    const int* rows;
    int units, panels;
};

struct Right {
    const Element* b;
    Count k, n, row, column;    // sizes and strides in elements
};

struct Product {
    Element* to;
    Count row, column;          // strides in elements
};

#define SIZE_float16 2
#define SIZE_bfloat16 2
#define SIZE_float32 4
#define SIZE_float64 8
#define JOIN(a, b) a##b
#define SIZE_OF(element) JOIN(SIZE_, element)
#if SIZE_OF(ELEMENT) == 2
#include "panel_mma.cuh"
#else
#include "panel_fma.cuh"
#endif

// A block reads each word once, but other blocks read it again: so it is cached in L2, not in L1.
template <class Words> __device__ Words read_once(const Words* from) {
    constexpr int kParts = (sizeof(Words) + 15) / 16;
    union {
        unsigned part[4 * kParts];
        Words whole;
    } x = {};
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
        unsigned* to = x.part + 4 * i;
        const char* part = reinterpret_cast<const char*>(from) + 16 * i;
        if constexpr (sizeof(Words) % 16 == 0)
            asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                         : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "l"(part));
        else
            asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "l"(part));
    }
    return x.whole;
}

// Copies the lines of b that a panel needs, and waits for this thread's copies.  Lines and columns beyond b are not
// filled: no element points at such a line, and such columns are not stored.  Blocks begin at different lines (by a
// number that spreads them); otherwise all would ask the same slice of L2 at the same time.
__device__ void fetch_panel(Line* panel, const Right& b, int number, Count column0) {
    const Count first = Count(number) * LINES;
    const int lines = int(min(Count(LINES), b.k - first));
    const int real = int(min(Count(kColumns), b.n - column0));
    const Element* from = b.b + first * b.row + column0 * b.column;
    const unsigned to = shared_address(panel);
#if B_LOAD
    for (int i = threadIdx.x; i < LINES * PLANES; i += blockDim.x) {
        const int line = (i / PLANES + blockIdx.x * 352) % LINES, plane = i % PLANES;
        const int held = min(kLineColumns, real - kLineColumns * plane);
        if (line < lines && held > 0)
            copy_async(to + (plane * kPlane + line) * 16, from + line * b.row + kLineColumns * plane,
                       held * kSize);
    }
#else
    const bool by_lines = b.column > b.row;     // then neighbouring threads take neighbouring lines
    for (int i = threadIdx.x; i < LINES * kColumns; i += blockDim.x) {
        const int line = by_lines ? i % LINES : i / kColumns, c = by_lines ? i / LINES : i % kColumns;
        if (line < lines && c < real)
            asm volatile("cp.async.ca.shared.global [%0], [%1], %2;"
                         ::"r"(to + (c / kLineColumns * kPlane + line) * 16 + c % kLineColumns * kSize),
                           "l"(from + line * b.row + c * b.column), "n"(kSize));
    }
#endif
    asm volatile("cp.async.wait_all;" ::: "memory");
}

// Walks through a warp's units, panel by panel.
struct Order {
    int first, stride, panel, unit;
    int begin, end;     // entries of `begins` for the next part, loaded one part ahead

    __device__ Order(const Left& a, int first, int stride) : first(first), stride(stride), panel(0), unit(first) {
        ask(a);
    }
    __device__ bool done(const Left& a) const { return panel >= a.panels || unit >= a.units; }
    __device__ void ask(const Left& a) {
        if (done(a)) return;
        const int* begins = a.begins + Count(panel) * a.units + unit;
        begin = begins[0], end = begins[1];
    }
    __device__ void step(const Left& a) {
        unit += stride;
        if (unit >= a.units) unit = first, ++panel;
        ask(a);
    }
};

// A unit's part in a panel; the next kAhead of its steps are already being loaded.
struct Part {
    const Values* values;
    const uint2* places;
    int left, last_turns, height;   // steps, and turns of the last one
    Rows rows;
    Values values_ahead[kAhead];
    uint2 places_ahead[kAhead];

    __device__ void ask(int i) {
        values_ahead[i] = read_once(values + 32 * i);
        places_ahead[i] = read_once(places + 32 * i);
    }
    __device__ void begin(const Left& a, Order& order) {
        left = 0;
        if (order.done(a)) return;
        const Count first = order.begin / 4 * 32 + threadIdx.x % 32;
        left = order.end / 4 - order.begin / 4;
        last_turns = order.begin % 4 ? order.begin % 4 : 4;
        values = static_cast<const Values*>(a.values) + first;
        places = a.places + first;
#pragma unroll
        for (int i = 0; i < kAhead; ++i)
            if (i < left) ask(i);
        height = a.heights[order.unit];
        rows.find(a.rows + order.unit * kHeight);
        order.step(a);
    }
    __device__ void add(Sums& sums, const Line* panel) {
        for (; left > 0; left -= kAhead) {
            values += 32 * kAhead;
            places += 32 * kAhead;
#pragma unroll
            for (int i = 0; i < kAhead; ++i) {
                if (i >= left) break;
                sums.add(values_ahead[i], places_ahead[i], panel, i + 1 == left ? last_turns : 4);
                if (i + kAhead < left) ask(i);
            }
        }
    }
};

// out = A @ b.
extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
product(const Left a, const Right b, const Product out, const int shares, const int wide) {
    extern __shared__ __align__(16) unsigned char shared[];
    Line* const panel = reinterpret_cast<Line*>(shared);
    const int stride = shares * blockDim.x / 32, unit0 = blockIdx.x % shares + threadIdx.x / 32 * shares;
    const Count column0 = Count(blockIdx.x / shares) * kColumns;
    let_next_start();
    Order order(a, unit0, stride);
    Part part;
    part.begin(a, order);
    for (int i = threadIdx.x; i < kBanks * PLANES; i += blockDim.x)
        reinterpret_cast<uint4*>(panel)[i / kBanks * kPlane + LINES + i % kBanks] = make_uint4(0, 0, 0, 0);
    wait_for_previous();
    for (int number = 0; number < a.panels; ++number) {
        if (number) __syncthreads();    // until all warps have read the last panel
        fetch_panel(panel, b, number, column0);
        __syncthreads();
        for (int unit = unit0; unit < a.units; unit += stride) {
            Sums sums;
            part.add(sums, panel);
            const int height = part.height;
            const Rows rows = part.rows;
            part.begin(a, order);
            sums.store(rows, height, out, column0, b.n, wide, number == 0);
        }
    }
}
