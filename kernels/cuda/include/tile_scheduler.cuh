// tile_scheduler: which work a persistent thread block does, and in which order.
//
// Work is a tile of the result and a range of k, counted in atoms of metadata.  A cluster of CLUSTER
// blocks takes CLUSTER neighbouring tiles along m at once.  Blocks that run at the same time should share
// rows of A and columns of B in L2, so the tiles are walked in bands of `band` clusters along m: down
// the band first, then along n, then the next band.
//
// Tiles rarely fill whole waves of blocks.  The first `split_tiles` are therefore cut into as many
// equal ranges of (tile, k) as there are blocks (stream-K).  A block walks its range backwards: the
// beginning of a tile that the next block will finish comes first, so that its partial sums are
// there in good time; whole tiles follow, and the end of a tile whose beginning earlier blocks have
// summed comes last.  All other tiles are dealt out whole.  Compiled with -DSPLIT=1, and CLUSTER 1.
//
// With K_PARTS > 1 the blocks of a cluster take one tile, each its part of k, and a block does no
// more than that.
// Source: Osama et al., Stream-K: work-centric parallel decomposition for dense matrix-matrix
// multiplication on the GPU, PPoPP 2023.
#pragma once
#include "hopper_ptx.cuh"

struct Tiling {
    int clusters_m, tiles_n, batch;  // the grid of tiles; clusters_m counts clusters
    int band;
    int split_tiles;                 // tiles to cut; 0 unless SPLIT
    int range, longer;               // atoms of a block's range; how many blocks have one more
};

struct Work {
    int m, n, batch;        // the tile, in tiles
    int first_atom, atoms;  // the range of k
    int helpers;            // earlier blocks that summed the beginning of this tile
    bool partial;           // the sums go to the block that finishes this tile
};

class TileScheduler {
  public:
    // `rank` of the block among those of a cluster that take neighbouring tiles, `part` among those
    // that share one.
    __device__ TileScheduler(const Tiling& tiling, int atoms_k, u32 rank, u32 part)
        : tiling_(tiling), atoms_k_(atoms_k), rank_(rank), part_(part),
          next_(tiling.split_tiles + blockIdx.x / (CLUSTER * K_PARTS)),
          begin_(SPLIT ? range_begin(blockIdx.x) : 0), end_(SPLIT ? range_begin(blockIdx.x + 1) : 0) {}

    // False when no work is left.
    __device__ bool advance(Work& work) {
        if (SPLIT && end_ > begin_) {
            split(work);
            return true;
        }
        if (next_ >= tiling_.clusters_m * tiling_.tiles_n * tiling_.batch) return false;
        place(work, next_);
        work.first_atom = 0, work.atoms = atoms_k_, work.helpers = 0, work.partial = false;
        if (K_PARTS > 1) {
            work.first_atom = atoms_k_ * part_ / K_PARTS;
            work.atoms = atoms_k_ * (part_ + 1) / K_PARTS - work.first_atom;
        }
        next_ += gridDim.x / (CLUSTER * K_PARTS);
        return true;
    }

  private:
    // First unit (tile * atoms_k + atom) of a block's range.
    __device__ int range_begin(int block) const {
        return block * tiling_.range + min(block, tiling_.longer);
    }
    __device__ void split(Work& work) {
        const int tile = (end_ - 1) / atoms_k_, start = tile * atoms_k_, from = max(begin_, start);
        place(work, tile);
        work.first_atom = from - start;
        work.atoms = end_ - from;
        work.partial = end_ < start + atoms_k_;
        work.helpers = 0;
        if (!work.partial && from > start)
            for (int block = blockIdx.x; range_begin(block) > start; block--) work.helpers++;
        end_ = from;
    }
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
    int atoms_k_, rank_, part_, next_, begin_, end_;
};
