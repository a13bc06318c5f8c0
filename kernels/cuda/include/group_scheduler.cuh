// group_scheduler: the tiles of products whose columns belong to groups, with sizes that only the GPU knows.
//
// Columns offsets[g] to offsets[g + 1] of b belong to group g.  They are cut into tiles of BLOCK_N columns from
// offsets[g] on, so every tile belongs to one matrix; the last tile of a group may have fewer columns.  Every block
// computes a table in its shared memory of where groups begin, and how many tiles of columns come before each:
//
//   first   [groups + 1]  offsets, between 0 and the number of columns
//   before  [groups + 1]
//
// Blocks take tiles in turn.  Those of a group are in the order of tile_scheduler.cuh: bands of `band` tiles along m.
#pragma once

struct Grouping {
    const void* offsets;  // of type OFFSET
    int groups, columns;
    int tiles_m, band;
};

struct Work {
    int group, m;       // m in tiles
    int first, end;     // the tile's first column, and the end of its group
};

class GroupScheduler {
  public:
    // `table`: shared memory for 2 (groups + 1) numbers.
    __device__ GroupScheduler(const Grouping& of, int* table)
        : of_(of), first_(table), before_(table + of.groups + 1), next_(blockIdx.x) {}

    // By all threads of the block, which wait for one another.
    __device__ void lay_out() const {
        for (int g = threadIdx.x; g <= of_.groups; g += blockDim.x) {
            const long long offset = static_cast<const OFFSET*>(of_.offsets)[g];
            first_[g] = (int)max(0LL, min((long long)of_.columns, offset));
        }
        __syncthreads();
        if (threadIdx.x < 32) count();
        __syncthreads();
    }

    // False when no work is left.
    __device__ bool advance(Work& work) {
        if (next_ >= before_[of_.groups] * of_.tiles_m) return false;
        find_group();
        place(work, next_ - before_[group_] * of_.tiles_m);
        next_ += gridDim.x;
        return true;
    }

  private:
    // The tiles before every group, by one warp.
    __device__ void count() const {
        const int lane = threadIdx.x;
        for (int start = 0, sum = 0; start <= of_.groups; start += 32) {
            const int g = start + lane, length = g < of_.groups ? first_[g + 1] - first_[g] : 0;
            const int tiles = max(0, length + BLOCK_N - 1) / BLOCK_N;
            int up_to = tiles;
#pragma unroll
            for (int step = 1; step < 32; step *= 2) {
                const int other = __shfl_up_sync(~0u, up_to, step);
                if (lane >= step) up_to += other;
            }
            if (g <= of_.groups) before_[g] = sum + up_to - tiles;
            sum += __shfl_sync(~0u, up_to, 31);
        }
    }
    // By bisection, the last group that does not begin behind tile next_.  A group without columns begins where the
    // next one does, so it is never the last.  The search starts at the group of the block's tile before.
    __device__ void find_group() {
        for (int end = of_.groups; end - group_ > 1;) {
            const int middle = (group_ + end) / 2;
            (before_[middle] * of_.tiles_m <= next_ ? group_ : end) = middle;
        }
    }
    __device__ void place(Work& work, int index) const {
        const int tiles_n = before_[group_ + 1] - before_[group_], per_band = of_.band * tiles_n;
        const int top = index / per_band * of_.band, height = min(of_.band, of_.tiles_m - top);
        const int within = index % per_band, n = within / height;
        work = {group_, top + within - n * height, first_[group_] + n * BLOCK_N, first_[group_ + 1]};
    }

    const Grouping& of_;
    int *first_, *before_;
    int next_, group_ = 0;
};
