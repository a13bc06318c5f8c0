// tile_scheduler: which work a persistent thread block does, and in which order.
//
// Work is a tile of the result and a range of k, counted in slices (see sparse_wgmma.cu).  A cluster of CLUSTER
// blocks takes CLUSTER neighbouring tiles along m at once.  Blocks that run at the same time should share
// rows of A and columns of b in L2.  So the tiles are walked in bands of `band` clusters along m: down
// a column of the band first, then along n, then in the next band.
//
// With K_PARTS > 1 the blocks of a cluster share one tile, each with a part of k, and then end.
#pragma once
#include "hopper_ptx.cuh"

struct Tiling {
    int clusters_m, tiles_n, batch;  // the grid of tiles; clusters_m counts clusters
    int band;
};

struct Work {
    int m, n, batch;        // place of the tile, counted in tiles
    int first_slice, slices;  // the range of k
};

class TileScheduler {
  public:
    // `rank` of the block among those of a cluster that take neighbouring tiles, `part` among those
    // that share one.
    __device__ TileScheduler(const Tiling& tiling, int slices, u32 rank, u32 part)
        : tiling_(tiling), slices_(slices), rank_(rank), part_(part),
          next_(blockIdx.x / (CLUSTER * K_PARTS)) {}

    // False when no work is left.
    __device__ bool advance(Work& work) {
        if (next_ >= tiling_.clusters_m * tiling_.tiles_n * tiling_.batch) return false;
        place(work, next_);
        work.first_slice = slices_ * part_ / K_PARTS;
        work.slices = slices_ * (part_ + 1) / K_PARTS - work.first_slice;
        next_ += gridDim.x / (CLUSTER * K_PARTS);
        return true;
    }

  private:
    __device__ void place(Work& work, int index) const {
        const int per_product = tiling_.clusters_m * tiling_.tiles_n;
        work.batch = index / per_product;
        index -= work.batch * per_product;
        const int per_band = tiling_.band * tiling_.tiles_n;
        const int first = index / per_band * tiling_.band;
        const int height = min(tiling_.band, tiling_.clusters_m - first);
        const int within = index % per_band;
        work.n = within / height;
        work.m = (first + within - work.n * height) * CLUSTER + rank_;
    }

    const Tiling& tiling_;
    int slices_, rank_, part_, next_;
};
