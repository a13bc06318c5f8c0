// tile_producer: one thread of sparse_wgmma.cu, which asks the copy engine for stage after stage.
#pragma once

// Lines of whole boxes that cover so many.
__device__ inline int boxed(int lines, int box) { return max(0, lines + box - 1) / box * box; }

__device__ inline void fetch_a(const TensorMap& map, u32 to, int m0, int k0, int batch, int rows, int box, u32 barrier) {
    for (int row = 0; row < rows; row += box) load_box(to + row * 64 * kSpans, map, k0 / 2, m0 + row, batch, barrier);
}

// Fetch this block's share of so many columns of B: all, or its part of what the cluster multicasts.
__device__ inline void fetch_b(const TensorMap& map, u32 to, int n0, int k0, int batch, int columns, int box, u32 rank,
                               u32 barrier) {
    const auto fetch = [&](u32 at, int x, int y) {
        if constexpr (CLUSTER == 1)
            load_box(at, map, x, y, batch, barrier);
        else
            load_box_multicast(at, map, x, y, batch, barrier, (1 << CLUSTER) - 1);
    };
    if constexpr (B_ROW_MAJOR) {  // boxes of 64 columns by this block's share of the k rows
        const u32 share = rank * (BLOCK_K / CLUSTER);
        for (int column = 0; column < columns; column += 64)
            fetch(to + column * BLOCK_K * 2 + share * 128, n0 + column, k0 + share);
    } else {  // boxes of 128 bytes along k by this block's share of the columns
        const int share = rank * (BLOCK_N / CLUSTER), end = min(columns, share + BLOCK_N / CLUSTER);
        for (int column = share; column < end; column += box)
#pragma unroll
            for (int span = 0; span < kSpans; span++)
                fetch(to + (span * BLOCK_N + column) * 128, k0 + span * (128 / kElementBytes), n0 + column);
    }
}

__device__ inline void produce(const TensorMap& values, const TensorMap& b, const unsigned char* packed,
                               const Shape& shape, TileScheduler tiles, const Ring& ring, u32 shared, u32 rank) {
    typename Ring::Position at;
    int slot = 0;
    Work work;
    while (tiles.advance(work)) {
        const int m0 = work.m * BLOCK_M, n0 = work.n * BLOCK_N, atom_m = work.m * kAtoms;
        const int a_batch = shape.a_batched * work.batch, b_batch = shape.b_batched * work.batch;
        const int rows = min(BLOCK_M, shape.m - m0), columns = min(BLOCK_N, shape.n - n0);
        const u32 bytes = (boxed(rows, shape.a_box) * 64 + boxed(columns, shape.b_box) * 128) * kSpans;
        const u32 metadata_bytes = max(0, min(kAtoms, shape.atoms_m - atom_m)) * kAtomBytes;
        const unsigned char* metadata = packed + a_batch * shape.packed_batch;
        metadata += ((long long)work.first_atom * shape.atoms_m + atom_m) * kAtomBytes;
        for (int atom = work.first_atom; atom < work.first_atom + work.atoms; atom++) {
            for (int part = 0; part < kParts; part++) {
                const int k0 = atom * kAtomK + part * BLOCK_K;
                const u32 stage = shared + at.stage * kStageBytes;
                const u32 barrier = ring.acquire(at, bytes + (part == 0 ? metadata_bytes : 0));
                if (part == 0) {
                    const u32 to = shared + kMetadataAt + slot * kAtoms * kAtomBytes;
                    if (metadata_bytes) load_bytes(to, metadata, metadata_bytes, barrier);
                    slot = slot + 1 == kSlots ? 0 : slot + 1;
                    metadata += (long long)shape.atoms_m * kAtomBytes;
                }
                fetch_a(values, stage + kBBytes, m0, k0, a_batch, rows, shape.a_box, barrier);
                fetch_b(b, stage, n0, k0, b_batch, columns, shape.b_box, rank, barrier);
                at.advance();
            }
        }
    }
}
