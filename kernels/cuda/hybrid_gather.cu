// hybrid_gather: A @ b for a very sparse 16-bit A and up to 16 columns: every non-zero reads its line of b.
//
//   words   [steps][32 lanes][4]  bits 16-31: element; bits 4-15: column within its panel, so that bits 0-15 are its
//                                 offset in a plane of 16-byte lines; 0 is padding
//   begins  [PANELS][units] + 1   first step of a unit's part in a panel
//   heights [units]               rows of a unit, a power of two up to HEIGHT
//   rows    [units][HEIGHT]       numbers of a unit's rows, then -1; rows of a unit are of similar length
//
// A panel is 4096 columns of A and the matching 4096 rows ("lines") of b, which are kept in shared memory: PLANES
// planes of lines of COLUMNS elements.  A line has the same banks in every plane.  A unit is some rows of A, the fewer
// the longer they are, so that all units take about the same time; 32 / height lanes share a row.  GROUP warps take a
// unit.  A block has UNITS units and HELD panels; the blocks of a cluster have the same units, and together all panels.
// A block computes PLANES * COLUMNS columns of the result.  In the grid the blocks for all rows come first, then those
// for the next columns.
//
// Shared memory: the sums of the block's warps, [warp][column][row of the unit] (with two planes they take the place of
// the first panel, once all warps have read it), then HELD panels, from a multiple of the size of a plane on.  After a
// barrier of the cluster, the blocks share the additions over warps and blocks.  A second barrier keeps the shared
// memory of every block alive until the others have read it.
//
// The first words are loaded before the kernel waits for the preceding one in the stream, as no kernel writes them;
// b is loaded afterwards (programmatic.cuh).
//
// The elements of a row may come in any order.  The launcher sorts them by column modulo 8, beginning at another
// remainder for every lane, so the eight lanes that shared memory serves at once mostly read from eight different
// banks.  Partial sums are added in a fixed order: the same bits every time.
// The bounds are the 4 bytes read for each non-zero, and the one or two instructions of each multiply-add.
//
// Macros: ELEMENT PANELS HEIGHT COLUMNS PLANES UNITS GROUP HELD, and B_LOAD, how b is read: 2 as one stretch of
// memory, 1 by 16 bytes for a row and plane, 0 element by element.
// Reference: a dense product.  Launcher: kernels/hybrid_gather.py.
#include "numeric.cuh"
#include "programmatic.cuh"

using Count = long long;
using In = Scalar<Kind::ELEMENT>;
using Word = unsigned;
constexpr int kWarps = UNITS * GROUP, kThreads = 32 * kWarps, kLines = 4096;
constexpr int kCluster = (PANELS + HELD - 1) / HELD;
constexpr int kLineBytes = 2 * COLUMNS, kPlaneBytes = kLines * 16, kAhead = 4;
constexpr int kColumns = PLANES * COLUMNS, kPanelBytes = PLANES * kPlaneBytes;

__device__ unsigned in_shared(const void* p) { return unsigned(__cvta_generic_to_shared(p)); }

template <Kind kind> __device__ float low_of(Word pair) {
    if constexpr (kind == Kind::bfloat16) return __uint_as_float(pair << 16);
    return __half2float(__ushort_as_half((unsigned short)(pair & 0xffff)));
}
template <Kind kind> __device__ float high_of(Word pair) {
    if constexpr (kind == Kind::bfloat16) return __uint_as_float(pair & 0xffff0000u);
    return __half2float(__ushort_as_half((unsigned short)(pair >> 16)));
}

struct Left {
    const uint4* words;
    const int* begins;
    const int* heights;
    const int* rows;
    int units;
};

struct Right {
    const unsigned short* b;
    Count k, n, row, column;    // sizes and strides in elements
};

struct Product {
    In::type* to;
    Count row, column;          // strides in elements
};

__device__ void copy16(unsigned to, const void* from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
}

// Copies the lines of b that panel number `rank` needs.  Lines and columns beyond b are not filled: no
// word points at such a line (padding points at line 0), and such columns are not stored.  Blocks begin
// at different lines (by `turn`, any number that spreads them); otherwise all would ask the same slice of
// L2 at the same time: docs/benchmarks/log_hybrid.rst.
__device__ void fetch_panel(unsigned panel, const Right& b, int rank, Count column0) {
    if (rank >= PANELS) return;
    const Count first = Count(rank) * kLines;
    const int lines = int(min(Count(kLines), b.k - first)), turn = blockIdx.x * 352;
    const unsigned short* from = b.b + first * b.row + column0 * b.column;
#if B_LOAD == 2     // one stretch of memory
    const int bytes = lines * kLineBytes;
    for (int i = threadIdx.x; i < kLines * kLineBytes / 16; i += kThreads) {
        const int at = (i + turn) % (kLines * kLineBytes / 16) * 16;
        if (at < bytes) copy16(panel + at, from + at / 2, min(16, bytes - at));
    }
#elif B_LOAD == 1   // 16 bytes for a row and plane
    for (int i = threadIdx.x; i < kLines * PLANES; i += kThreads) {
        const int line = (i / PLANES + turn) % kLines, plane = i % PLANES;
        if (line < lines && column0 + 8 * plane < b.n)
            copy16(panel + plane * kPlaneBytes + line * 16, from + line * b.row + 8 * plane, 16);
    }
#else
    const int real = int(min(Count(kColumns), b.n - column0));
    for (int i = threadIdx.x; i < lines * real; i += kThreads) {
        const int line = i % lines, c = i / lines;
        const unsigned at = panel + c / COLUMNS * kPlaneBytes + line * kLineBytes + c % COLUMNS * 2;
        asm volatile("st.shared.u16 [%0], %1;" ::"r"(at), "h"(from[line * b.row + c * b.column]));
    }
#endif
    asm volatile("cp.async.commit_group;");
}

// A line as pairs; a line of one element fills the low half.
struct Line {
    Word pairs[COLUMNS > 1 ? COLUMNS / 2 : 1];

    __device__ void load(unsigned at) {
        if constexpr (COLUMNS == 8)
            asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                         : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3]) : "r"(at));
        else if constexpr (COLUMNS == 4)
            asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(pairs[0]), "=r"(pairs[1]) : "r"(at));
        else if constexpr (COLUMNS == 2)
            asm volatile("ld.shared.u32 %0, [%1];" : "=r"(pairs[0]) : "r"(at));
        else
            asm volatile("ld.shared.u16 %0, [%1];" : "=r"(pairs[0]) : "r"(at));
    }
    __device__ void add(float* acc, float value) const {
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c)
            acc[c] += value * (c % 2 ? high_of<Kind::ELEMENT>(pairs[c / 2]) : low_of<Kind::ELEMENT>(pairs[c / 2]));
    }
};

__device__ void add_step(float (&acc)[kColumns], const uint4& four, unsigned panel) {
    const Word words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int plane = 0; plane < PLANES; ++plane) {
        Line lines[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
            lines[i].load((words[i] & 0xffff) / (16 / kLineBytes) | (panel + plane * kPlaneBytes));
#pragma unroll
        for (int i = 0; i < 4; ++i) lines[i].add(acc + plane * COLUMNS, high_of<Kind::ELEMENT>(words[i]));
    }
}

// The steps of a warp; the next kAhead of them are already being loaded (__ldcs: a block reads each word once).
struct Steps {
    const uint4* from;
    int left, height;
    uint4 ahead[kAhead];

    // Begin part `part` of the `parts` into which a unit is cut.
    __device__ void begin(const Left& a, int rank, int unit, int part, int parts) {
        left = 0, height = HEIGHT;
        if (unit >= a.units || rank >= PANELS) return;
        height = a.heights[unit];
        const int* begins = a.begins + rank * a.units + unit;
        const int first = begins[0], steps = begins[1] - first, at = steps * part / parts;
        from = a.words + Count(first + at) * 32 + threadIdx.x % 32;
        left = steps * (part + 1) / parts - at;
#pragma unroll
        for (int i = 0; i < kAhead; ++i)
            if (i < left) ahead[i] = __ldcs(from + 32 * i);
    }
    __device__ void add(float (&acc)[kColumns], unsigned panel) {
        for (; left > 0; left -= kAhead) {
            from += 32 * kAhead;
#pragma unroll
            for (int i = 0; i < kAhead; ++i) {
                if (i >= left) break;
                const uint4 now = ahead[i];
                if (i + kAhead < left) ahead[i] = __ldcs(from + 32 * i);
                add_step(acc, now, panel);
            }
        }
        for (int step = height; step < 32; step *= 2)
#pragma unroll
            for (int c = 0; c < kColumns; ++c) acc[c] += __shfl_xor_sync(~0u, acc[c], step);
    }
};

// Address of the first panel: behind the sums of a kernel with one plane (at most half a plane), and a multiple of the
// size of a plane, so that `|` can add an offset to it.
__device__ unsigned panel_address(const void* shared) {
    return (in_shared(shared) + kPlaneBytes / 2 + 16 + kPlaneBytes - 1) / kPlaneBytes * kPlaneBytes;
}
// A float from the shared memory of block `rank` of the cluster, which holds other panels of the same rows.
__device__ float shared_float(unsigned at, int rank) {
    float x;
#if PANELS > HELD
    unsigned there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(there));
#else
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(at));
#endif
    return x;
}
__device__ void cluster_barrier() {
#if PANELS > HELD
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
    __syncthreads();
#endif
}

// out = A @ b for few columns.
#if PANELS > HELD
extern "C" __global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kThreads, 1)
#else
extern "C" __global__ void __launch_bounds__(kThreads, 1)
#endif
product(const Left a, const Right b, const Product out) {
    extern __shared__ __align__(16) unsigned char shared[];
    constexpr int kSums = UNITS * HEIGHT * kColumns;    // of a cluster
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, rank = blockIdx.x % kCluster;
    const int sets = (a.units + UNITS - 1) / UNITS, set = blockIdx.x / kCluster;
    const int part = warp % GROUP, held = part % HELD, unit0 = set % sets * UNITS;
    const unsigned panel = panel_address(shared), sums = PLANES > 1 ? panel : in_shared(shared);
    const Count column0 = Count(set / sets) * kColumns;
    let_next_start();
    Steps steps;
    steps.begin(a, rank * HELD + held, unit0 + warp / GROUP, part / HELD, GROUP / HELD);
    const auto row_of = [&](int i) {
        const int line = unit0 * HEIGHT + i / kColumns;
        return i < kSums && line < a.units * HEIGHT ? a.rows[line] : -1;
    };
    int i = threadIdx.x + rank * kThreads, row = row_of(i);
    wait_for_previous();
#pragma unroll
    for (int h = 0; h < HELD; ++h) fetch_panel(panel + h * kPanelBytes, b, rank * HELD + h, column0);
    float acc[kColumns] = {};
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    steps.add(acc, panel + held * kPanelBytes);
    if (PLANES > 1) __syncthreads();      // the sums lie where the lines were
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
        if (lane < HEIGHT)
            asm volatile("st.shared.f32 [%0], %1;"
                         ::"r"(sums + ((warp * kColumns + c) * HEIGHT + lane) * 4), "f"(acc[c]));
    cluster_barrier();
    for (; i < kSums; i += kThreads * kCluster, row = row_of(i)) {
        const int c = i % kColumns, line = i / kColumns % HEIGHT, u = i / (kColumns * HEIGHT);
        if (row < 0 || column0 + c >= b.n) continue;
        float sum = 0;
#pragma unroll
        for (int p = 0; p < kCluster; ++p)
#pragma unroll
            for (int g = 0; g < GROUP; ++g)
                sum += shared_float(sums + (((u * GROUP + g) * kColumns + c) * HEIGHT + line) * 4, p);
        out.to[row * out.row + (column0 + c) * out.column] = In::store(sum);
    }
    if (PANELS > HELD) cluster_barrier();
}
