// grouped_mma: out (m, n) = epilogue(A[g] (m, k; 2:4) @ b (k, n)), with g the group of each column, by mma.sp on any
// chip since sm_80.
//
//   values   [groups, m, 2 ceil(k/4)]      stored elements, rows on 16-byte boundaries                (read)
//   packed   [groups, K atoms, M atoms]    1024-byte atoms of metadata, tensor-core order             (read)
//   offsets  [groups + 1]                  columns offsets[g] to offsets[g + 1] belong to g           (read)
//   b        [k, n]                        k contiguous, columns on 16-byte boundaries                (read)
//   out      [m, n]                        m contiguous, columns on 16-byte boundaries; the last 16   (written)
//                                          bytes of a column are written whole, with zeros behind m
//
// It computes what grouped_wgmma.cu does, with the same epilogues, gates and rules for offsets.  Blocks find their
// tiles themselves (include/group_scheduler.cuh), because only the GPU knows how many columns a group has.  All warps
// copy and multiply: a tile goes through a ring of STAGES cp.async stages (include/copy_ring.cuh), as in split_mma.cu.
// Its sums then take the place of the ring in shared memory, from where they go through the epilogue to the result
// (include/group_tile.cuh).  Behind them lies the table of groups.
//
// Macros: those of sparse_tile, tile_store and group_tile, and OFFSET BLOCKS; kernels/grouped_mma.py chooses.
//
// Reference: reference_grouped.grouped_matmul.  Launcher: kernels/grouped_mma.py.
// Bound by the bytes of A where groups have few columns, by the tensor cores where they have many.
#define BLOCK_N TILE_N
#include "group_tile.cuh"

constexpr int kSumsBytes = WARPS_K * kPartial * sizeof(Sum);
constexpr int kRingBytes = STAGES * kStageBytes;
constexpr int kTableAt = ((kRingBytes > kSumsBytes ? kRingBytes : kSumsBytes) + 15) / 16 * 16;

extern "C" __global__ void __launch_bounds__(kThreads, BLOCKS)
grouped_mma(const char* values, const char* packed, const char* b, Out::type* out, const __grid_constant__ Shape whole,
            const __grid_constant__ Grouping grouping, const __grid_constant__ EpilogueParams p) {
    extern __shared__ __align__(1024) char shared[];
    GroupScheduler tiles(grouping, reinterpret_cast<int*>(shared + kTableAt));
    tiles.lay_out();
    Sum* partials = reinterpret_cast<Sum*>(shared);
    const Lane lane;
    Shape s = whole;
    for (Work work; tiles.advance(work);) {
        s.n = work.end;
        const GroupTile tile(values, packed, b, s, work);
        Sums sums = {};
        through_ring(
            shared_address(shared), (s.k + TILE_K - 1) / TILE_K,
            [&](unsigned stage, int i) { tile.load(stage, s, i * TILE_K); },
            [&](unsigned stage) { multiply_stage(sums, stage, lane); });
        store_sums(sums, partials);
        __syncthreads();
        GroupResults(out, whole, p).store(partials, work);
        __syncthreads();  // the next tile's stages take the place of the sums
    }
}
