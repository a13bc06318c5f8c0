// tile_store: from the sums in registers, through shared memory, to the result.
//
// Compiled with the macros of sparse_tile and epilogue, and
//   OUTPUT       type of the result
//   OUT_COLUMN   1: neighbours along M are stored together, 0: along n
//   OUT_ALIGNED  1: the result takes 16-byte stores, 0: any strides and address
//
// The sums of the WARPS_K partial tiles lie in shared memory as [WARPS_K][TILE_M][kPitch].
#pragma once
#include "epilogue.cuh"
#include "sparse_tile.cuh"

using Out = Scalar<Kind::OUTPUT>;
constexpr int kPitch = OUT_COLUMN ? TILE_N + 1 : TILE_N == 8 ? 8 : TILE_N + 8;  // spreads the banks
constexpr int kPartial = TILE_M * kPitch;

inline void store_sums(const Sums& sums, Sum* partials) {
    const Lane w;
    Sum* own = partials + w.warp_k * kPartial;
#pragma unroll
    for (int tile = 0; tile < kTilesM; ++tile)
#pragma unroll
        for (int f = 0; f < kTilesN; ++f)
#pragma unroll
            for (int q = 0; q < 4; ++q) own[w.row(tile, q) * kPitch + w.column(f, q)] = sums[tile][f][q];
}

// The sum over the WARPS_K partial tiles of this block, in fixed order.
inline Sum block_sum(const Sum* partials, int row, int column) {
    Sum x = partials[row * kPitch + column];
#pragma unroll
    for (int i = 1; i < WARPS_K; ++i) x += partials[i * kPartial + row * kPitch + column];
    return x;
}

// Calls body(row, column) for every `vector` elements of a tile of rows x TILE_N elements that are
// neighbours along the contiguous axis of the result; (row, column) is the first of them.
template <int rows, int vector, class Body> void each_vector(Body body) {
    constexpr int groups = (OUT_COLUMN ? rows : TILE_N) / vector;
    deal<rows * TILE_N / vector>([&](int i) {
        const int along = i % groups * vector, across = i / groups;
        if (OUT_COLUMN) body(along, across);
        else body(across, along);
    });
}

// Stores rows [row0, row0 + rows) of the tile: out = epilogue(sum(row, column)).
template <int rows, class Get>
void store_tile(Get sum, const Shape& s, typename Out::type* out, const EpilogueParams& p,
                int m0, int n0, int batch) {
    constexpr int widest = OUT_ALIGNED ? smaller(8, 16 / (int)sizeof(typename Out::type)) : 1;
    constexpr int vector = smaller(widest, OUT_COLUMN ? rows : TILE_N);
    struct alignas(vector * sizeof(typename Out::type)) Pack { typename Out::type x[vector]; };
    out += batch * s.out_batch;
    each_vector<rows, vector>([&](int row, int column) {
        const int i = m0 + row, j = n0 + column;
        const int left = OUT_COLUMN ? (j < s.n ? s.m - i : 0) : (i < s.m ? s.n - j : 0);
        if (left <= 0) return;
        Pack pack;
#pragma unroll
        for (int v = 0; v < vector; ++v) {
            const int di = OUT_COLUMN ? v : 0, dj = OUT_COLUMN ? 0 : v;
            if (v < left)
                pack.x[v] = epilogue<Kind::OUTPUT, EPILOGUE, ACTIVATION>(
                    sum(row + di, column + dj), p, batch, i + di, j + dj);
        }
        typename Out::type* to = out + i * s.out_row + j * s.out_column;
        if (vector > 1 && left >= vector) {
            *reinterpret_cast<Pack*>(to) = pack;
        } else {
#pragma unroll
            for (int v = 0; v < vector; ++v)
                if (v < left) to[v * (OUT_COLUMN ? s.out_row : s.out_column)] = pack.x[v];
        }
    });
}
