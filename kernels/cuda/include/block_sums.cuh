// block_sums: blocks that share rows of a result meet in global memory, and each adds one share of their sums.
//
// A block's sums are those of `members` threads, 4 * tiles each, in the fragments of the tensor cores.  Blocks
// of the same rows are neighbours in the grid, so that they run at the same time.  All add in the same
// order: the same bits every time.
#pragma once

struct Room {
    float4* sums;            // [blocks][tiles][members]
    unsigned* flags;         // [rows' blocks][2]: blocks that have written, and that have seen all others; 0 at the end
};

template <int tiles, int members, int splits> class BlockSums {
    static constexpr int kAll = tiles * members, kShare = (kAll + splits - 1) / splits;

  public:
    __device__ explicit BlockSums(const Room& room) : room_(room) {}

    __device__ void give(const float (&sums)[4 * tiles], int member) const {
        float4* mine = room_.sums + (long long)blockIdx.x * kAll;
#pragma unroll
        for (int j = 0; j < tiles; ++j)
            mine[j * members + member] = {sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]};
    }
    // Once all have given: call store(four sums, tile, member) for this block's share; all threads.
    template <class Store> __device__ void collect(Store store) const {
        const int group = blockIdx.x / splits, rank = blockIdx.x % splits;
        meet(room_.flags + 2 * group);
        for (int i = rank * kShare + threadIdx.x; i < min((rank + 1) * kShare, kAll); i += blockDim.x) {
            float4 sum = {0, 0, 0, 0};
#pragma unroll
            for (int other = 0; other < splits; ++other) {
                const float4 x = __ldcg(room_.sums + ((long long)group * splits + other) * kAll + i);
                sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
            }
            store(sum, i / members, i % members);
        }
        leave(room_.flags + 2 * group);
    }

  private:
    // Until all blocks of the same rows are here, and what they wrote can be seen.
    __device__ static void meet(unsigned* flags) {
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();
            atomicAdd(flags, 1u);
            while (read_flag(flags) < splits) {}
        }
        __syncthreads();
    }
    // The last that has seen all others clears the flags for the next launch; nobody waits for it.
    __device__ static void leave(unsigned* flags) {
        if (threadIdx.x == 0 && atomicAdd(flags + 1, 1u) == splits - 1) flags[0] = flags[1] = 0;
    }
    __device__ static unsigned read_flag(const unsigned* flag) {
        unsigned x;
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(flag) : "memory");
        return x;
    }
    const Room& room_;
};
