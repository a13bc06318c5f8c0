// tile_producer: the producer of sparse_wgmma.cu, a single thread, which asks the TMA for stage after stage.
#pragma once

// Where A and b come from.
struct Sources {
    const TensorMaps &values, &b;
    const unsigned char* packed;
};

// What a tile reads: through which maps, from where, and how many bytes arrive in a stage.
struct TileSource {
    const TensorMap &values, &b;
    int m0, n0, a_batch, b_batch;
    int rows, columns;  // of A and b; of b a multiple of what one box brings
    u32 bytes;
};

__device__ inline TileSource source_of(const Sources& from, const Shape& shape, const Work& work) {
    const int m0 = work.m * BLOCK_M, n0 = work.n * BLOCK_N, beyond = shape.m - m0, right = shape.n - n0;
    const bool last_m = beyond < BLOCK_M, last_n = right < BLOCK_N;
    const int rows = beyond <= 0 ? 0 : last_m ? shape.a_tail : BLOCK_M;  // none where a tile only completes a cluster
    const int columns = last_n ? shape.b_tail : BLOCK_N;
    return {from.values.of[last_m], from.b.of[last_n], m0, n0, shape.a_batched * work.batch, shape.b_batched * work.batch,
            rows, columns, u32(rows * 64 + columns * 128) * kSpans};
}

// Fetch this block's share of the stage's b: all of it, or the part that this block multicasts to the cluster.
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

__device__ inline void produce(const Sources& from, const Shape& shape, TileScheduler tiles, const Ring& ring, u32 shared,
                               u32 rank) {
    typename Ring::Position at;
    int slot = 0;
    Work work;
    while (tiles.advance(work)) {
        const TileSource tile = source_of(from, shape, work);
        const int atom_m = work.m * kAtoms;
        const u32 metadata_bytes = max(0, min(kAtoms, shape.atoms_m - atom_m)) * kAtomBytes;
        const long long next_atom = (long long)shape.atoms_m * kAtomBytes;
        const unsigned char* metadata = from.packed + tile.a_batch * shape.packed_batch;
        metadata += work.first_slice * kAtomsOfStage * next_atom + atom_m * kAtomBytes;
#pragma unroll 1  // fetching unrolled code takes longer than the loop's branch
        for (int slice = work.first_slice; slice < work.first_slice + work.slices; slice++) {
            const int atoms = min(kAtomsOfStage, shape.atoms_k - slice * kAtomsOfStage);
            for (int part = 0; part < kParts; part++) {
                const int k0 = slice * kSliceK + part * BLOCK_K;
                const u32 stage = shared + at.stage * kStageBytes;
                const u32 barrier = ring.acquire(at, tile.bytes + (part == 0 ? atoms * metadata_bytes : 0));
                if (part == 0) {
                    const u32 to = shared + kMetadataAt + slot * kSlotBytes;
#pragma unroll
                    for (int i = 0; i < kAtomsOfStage; i++, metadata += next_atom)
                        if (metadata_bytes && i < atoms)
                            load_bytes(to + i * kAtoms * kAtomBytes, metadata, metadata_bytes, barrier);
                    slot = slot + 1 == kSlots ? 0 : slot + 1;
                }
                if (tile.rows) load_box(stage + kBBytes, tile.values, k0 / 2, tile.m0, tile.a_batch, barrier);
                fetch_b(tile, stage, k0, rank, barrier);
                at.advance();
            }
        }
    }
}
