// group_tile: what a tile of the product of one group reads.
//
// Compiled with the macros of sparse_tile and of group_results.
#pragma once
#include "copy_ring.cuh"
#include "group_results.cuh"
static_assert(B_COLUMN);

// `s` has the m rows of the result; the columns of the group end at s.n.
struct GroupTile {
    const char *values, *meta, *b;  // of the group; A from the tile's first row on, b from its first column on
    int first_row, first_column;    // of the result

    GroupTile(const char* values, const char* meta, const char* b, const Shape& s, const Work& work)
        : first_row(work.m * kTileRows), first_column(work.first) {
        this->values = values + work.group * s.a_batch + first_row * s.a_pitch;
        this->meta = meta + work.group * s.meta_batch;
        this->b = b + first_column * s.b_column * kItem;
    }

    void load(unsigned stage, const Shape& s, int k0) const {
        const int of_a = k0 / 2 * kItem, of_b = k0 * kItem;  // bytes
#pragma unroll
        for (int half = 0; half < kHalves; ++half)
            copy_lines<kTileRows, TILE_M, kAChunks>(stage, half * kTileRows, values + half * s.m * s.a_pitch, s.a_pitch,
                                                    of_a, s.values_per_row * kItem, s.m - first_row);
        load_meta(stage + kABytes, s, k0);
        copy_lines<TILE_N, TILE_N, kBChunks>(stage + kABytes + kMetaBytes, 0, b, s.b_column * kItem, of_b,
                                             s.k * kItem, s.n - first_column);
    }

  private:
    // Every 16 rows of an atom have 256 consecutive bytes; with a gate m is a multiple of 16, so that this holds for
    // the second half of the rows as well.
    void load_meta(unsigned to, const Shape& s, int k0) const {
        const int atoms_k = (s.k + 127) / 128;
        deal<kAtoms * TILE_M>([&](int i) {
            const int row = first_row + i % kTileRows + i % TILE_M / kTileRows * s.m, atom = k0 / 128 + i / TILE_M;
            const bool inside = row / 64 < s.meta_atoms_m && atom < atoms_k;
            const long long at = ((long long)atom * s.meta_atoms_m + row / 64) * 1024 + row % 64 * 16;
            copy_async(to + 16 * i, meta + (inside ? at : 0), 16);
        });
    }
};
