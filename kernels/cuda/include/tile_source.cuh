// tile_source: what a tile of sparse_wgmma.cu or sparse_mixed.cu reads, and how b comes to shared memory.
//
// Included behind their TensorMaps, Shape and constants, and tile_scheduler.cuh.
#pragma once

// Where A and b come from.
struct Sources {
    const TensorMaps &values, &b;
    const unsigned char* packed;
};

// What a tile reads: through which maps, from where, and how many bytes of A and b arrive in a stage.  (The last is not
// for sparse_mixed.cu, in which A comes slice by slice.)
struct TileSource {
    const TensorMap &values, &b;
    int m0, n0, a_batch, b_batch;
    int rows, columns;  // that are fetched of A and b: whole boxes, for the last tiles, too
    u32 bytes;
};

__device__ inline TileSource source_of(const Sources& from, const Shape& shape, const Work& work) {
    const int m0 = work.m * BLOCK_M, n0 = work.n * BLOCK_N, beyond = shape.m - m0, right = shape.n - n0;
    const bool last_m = beyond < BLOCK_M, last_n = right < BLOCK_N;
    const int rows = beyond <= 0 ? 0 : last_m ? shape.a_tail : BLOCK_M;  // none where a tile only completes a cluster
    const int columns = last_n ? shape.b_tail : BLOCK_N;
    return {from.values.of[last_m], from.b.of[last_n], m0, n0, shape.a_batched * work.batch, shape.b_batched * work.batch,
            rows, columns, u32(rows * 64 + columns * 128) * kSpans * PIECES};
}

// Fetch this block's share of a piece of the stage's b: all of it, or the part that this block multicasts to the cluster.
__device__ inline void fetch_b(const TileSource& tile, u32 to, int k0, u32 rank, u32 barrier) {
    const auto fetch = [&](u32 at, int x, int y) {
        if constexpr (CLUSTER == 1)
            load_box(at, tile.b, x, y, tile.b_batch, barrier);
        else
            load_box_multicast(at, tile.b, x, y, tile.b_batch, barrier, (1 << CLUSTER) - 1);
    };
    if constexpr (B_ROW_MAJOR) {  // boxes of 64 columns by this block's share of the k rows
        const u32 share = rank * (BLOCK_K / CLUSTER);
#pragma unroll 1
        for (int column = 0; column < tile.columns; column += 64)
            fetch(to + column * BLOCK_K * 2 + share * 128, tile.n0 + column, k0 + share);
    } else {  // boxes of 128 bytes along k by this block's share of the columns
        const int share = rank * (tile.columns / CLUSTER);
#pragma unroll
        for (int span = 0; span < kSpans; span++)
            fetch(to + (span * BLOCK_N + share) * 128, k0 + span * (128 / kElementBytes), tile.n0 + share);
    }
}
