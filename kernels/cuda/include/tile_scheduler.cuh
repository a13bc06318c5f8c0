// tile_scheduler: which tiles of the result a persistent thread block computes, and in which order.
//
// A cluster of CLUSTER blocks takes CLUSTER neighbouring tiles along m at once.  Blocks that run
// at the same time should share rows of A and columns of B in L2, so the tiles are walked in bands
// of `band` clusters along m: down the band first, then along n, then the next band.
#pragma once
#include "hopper_ptx.cuh"

struct Tiling {
    int clusters_m, tiles_n, batch;  // the grid of tiles; clusters_m counts clusters
    int band;
};

struct Tile { int m, n, batch; };  // in tiles

class TileScheduler {
  public:
    __device__ TileScheduler(const Tiling& tiling, u32 rank)
        : tiling_(tiling), rank_(rank), next_(blockIdx.x / CLUSTER), step_(gridDim.x / CLUSTER) {}

    // False when no tile is left.
    __device__ bool advance(Tile& tile) {
        const int per_product = tiling_.clusters_m * tiling_.tiles_n;
        if (next_ >= per_product * tiling_.batch) return false;
        tile.batch = next_ / per_product;
        const int index = next_ - tile.batch * per_product;
        const int per_band = tiling_.band * tiling_.tiles_n;
        const int first = index / per_band * tiling_.band;
        const int height = min(tiling_.band, tiling_.clusters_m - first);
        const int within = index % per_band;
        tile.n = within / height;
        tile.m = (first + within - tile.n * height) * CLUSTER + rank_;
        next_ += step_;
        return true;
    }

  private:
    const Tiling& tiling_;
    int rank_, next_, step_;
};
