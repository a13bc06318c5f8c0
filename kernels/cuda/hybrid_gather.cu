// hybrid_gather: A @ b for a very sparse 16-bit A and up to 16 columns: every non-zero reads its line of b.
//
//   words   [steps][32 lanes][4]  an element and its column (below); padding is a zero element
//   begins  [PANELS][units] + 1   first step of a unit's part in a panel
//   heights [units]               rows of a unit, a power of two up to HEIGHT
//   rows    [units][HEIGHT]       numbers of a unit's rows, then -1; rows of a unit are of similar length
//   b       [k, n]                any strides; what B_LOAD says (include/gather_lines.cuh)
//   out     [m, n]                any strides
//
//   bits of a word   31 .. 16   15 .. 4                   3 .. 0
//                    element    column within its panel   0
//
// So bits 0 to 15 are the offset of a column's line, if lines have 16 bytes.
//
// A panel is 4096 columns of A and the matching 4096 rows ("lines") of b, COLUMNS elements each, which are kept in
// shared memory.  A unit is some rows of A, the fewer the longer they are, so that all units take about the same time;
// 32 / height lanes share a row.  GROUP warps take a unit.  A block has UNITS units and HELD panels; the blocks of a
// cluster have the same units, and together all panels.  A block computes COLUMNS columns of the result.  In the grid
// the blocks for all rows come first, then those for the next columns.
//
// Shared memory: HELD panels, then a ring of AHEAD steps for every warp.  The sums of a warp take the place of its
// ring: [column][row of the unit].  After a barrier of the cluster, the blocks share the additions over warps and
// blocks.  A second barrier keeps the shared memory of every block alive until the others have read it.
//
// EARLY steps are copied before the kernel waits for the preceding one in the stream, as no kernel writes words; b is
// copied afterwards (programmatic.cuh).
//
// The elements of a row may come in any order.  They are sorted (hybrid_gather_order.cu) such that lanes that shared
// memory serves at once mostly read from different banks: eight of them lines of 16 bytes, 16 lines of eight, 32 lines
// of four.  Partial sums are added in a fixed order: the same bits every time.
// The bounds are the 4 bytes read for each non-zero, and the one or two instructions of each multiply-add.
//
// Macros: ELEMENT PANELS HEIGHT COLUMNS UNITS GROUP HELD EARLY AHEAD, and B_LOAD, how b is read
// (include/gather_lines.cuh).
// Reference: a dense product.  Launcher: kernels/hybrid_gather.py.
#include "numeric.cuh"
#include "programmatic.cuh"

using Count = long long;
using In = Scalar<Kind::ELEMENT>;
constexpr int kThreads = 32 * UNITS * GROUP, kCluster = (PANELS + HELD - 1) / HELD;

#include "gather_lines.cuh"
#include "gather_steps.cuh"

// Sums of a warp: neighbouring threads add up neighbouring columns, so these lie in different banks.
constexpr int kApart = 32 / COLUMNS, kPitch = HEIGHT + (HEIGHT % (2 * kApart) ? 0 : kApart);
static_assert(4 * COLUMNS * kPitch <= kRingBytes);

struct Product {
    In::type* to;
    Count row, column;          // strides in elements
};

// A float from the shared memory of block `rank` of the cluster, which holds other panels of the same rows.
__device__ float shared_float(u32 at, int rank) {
    float x;
#if PANELS > HELD
    u32 there;
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

// Leave the sums of a warp where its words were.
__device__ void leave(const float (&sums)[COLUMNS], u32 ring) {
    const int lane = threadIdx.x % 32;
    __syncwarp();                         // no lane reads words any more
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c)
        if (lane < HEIGHT)
            asm volatile("st.shared.f32 [%0], %1;" ::"r"(ring + (c * kPitch + lane) * 4), "f"(sums[c]) : "memory");
}

// The elements of the result that a thread adds up, of those of the cluster.
class Totals {
  public:
    __device__ Totals(const Left& a, int unit0, int first) : first_(first) {
#pragma unroll
        for (int j = 0; j < kEach; ++j) {
            const int i = first + j * kStep, line = unit0 * HEIGHT + i / COLUMNS;
            rows_[j] = i < kSums && line < a.units * HEIGHT ? a.rows[line] : -1;
        }
    }
    // Add up what the warps of all blocks have left, in a fixed order.  The columns of b from `column0` on.
    __device__ void store(u32 rings, Count n, Count column0, const Product& out) const {
#pragma unroll
        for (int j = 0; j < kEach; ++j) {
            const int i = first_ + j * kStep;
            const int c = i % COLUMNS, line = i / COLUMNS % HEIGHT, u = i / (COLUMNS * HEIGHT);
            if (rows_[j] < 0 || column0 + c >= n) continue;
            float sum = 0;
#pragma unroll
            for (int p = 0; p < kCluster; ++p)
#pragma unroll
                for (int g = 0; g < GROUP; ++g)
                    sum += shared_float(rings + (u * GROUP + g) * kRingBytes + (c * kPitch + line) * 4, p);
            out.to[rows_[j] * out.row + (column0 + c) * out.column] = In::store(sum);
        }
    }

  private:
    static constexpr int kSums = UNITS * HEIGHT * COLUMNS, kStep = kThreads * kCluster;    // of a cluster
    static constexpr int kEach = (kSums + kStep - 1) / kStep;

    int first_;                           // number of the first; the others follow kStep apart
    int rows_[kEach];
};

// out = A @ b for few columns.
#if PANELS > HELD
extern "C" __global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kThreads, 1)
#else
extern "C" __global__ void __launch_bounds__(kThreads, 1)
#endif
product(const Left a, const Right b, const Product out) {
    extern __shared__ __align__(16) unsigned char shared[];
    const int warp = threadIdx.x / 32, rank = blockIdx.x % kCluster;
    const int sets = (a.units + UNITS - 1) / UNITS, set = blockIdx.x / kCluster;
    const int part = warp % GROUP, held = part % HELD, unit0 = set % sets * UNITS;
    const u32 panels = shared_address(shared), rings = panels + HELD * kPanelBytes, ring = rings + warp * kRingBytes;
    const Count column0 = Count(set / sets) * COLUMNS;
    let_next_start();
    Steps steps(ring);
    steps.begin(a, rank * HELD + held, unit0 + warp / GROUP, part / HELD, GROUP / HELD);
    const Totals totals(a, unit0, threadIdx.x + rank * kThreads);
    wait_for_previous();
    fetch_panels(panels, b, rank * HELD, column0);
    steps.follow();
    if (kCopied) copy_wait<AHEAD - EARLY>();
    __syncthreads();
    float acc[COLUMNS] = {};
    steps.add(acc, panels + held * kPanelBytes);
    leave(acc, ring);
    cluster_barrier();
    totals.store(rings, b.n, column0, out);
    if (PANELS > HELD) cluster_barrier();
}
