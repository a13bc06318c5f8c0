// block_sums: blocks that share rows of a result exchange their sums through global memory, and each adds up one
// share of the elements.
//
// A block's sums are those of `members` threads, 4 * tiles each, in the fragment layout of the tensor cores.  Blocks
// that share rows are neighbours in the grid, which has at most one block for each multiprocessor, and so few
// (most_waiting in kernels/block_sums.py) that they run at the same time in the end, whatever other streams launch.
// Where more share rows, they give their sums in one launch and collect them in the next (Sharing::apart).
//
// All add in an order that depends only on how many blocks share the rows, which gives the same bits every time.  A block
// may share its first rows with the blocks before it and its last rows with those after it, so it has two slots.
//
// There are no flags.  Between launches all words are kMissing, a NaN that `give` never writes.  A reader polls a word
// until it is something else, and then writes kMissing back for the next launch.  So a sum travels to the L2 cache and
// back just once, and nobody waits for fences: every word is a message of its own, so relaxed accesses are enough,
// whatever the order in which words become visible.
#pragma once

struct Room {
    float4* slots;           // [blocks][2][tiles][members]
};

// How blocks that share rows add up, by how many they are; kernels/block_sums.py chooses.
enum class Sharing {
    few,    // a thread adds up whole elements
    many,   // threads share the blocks of an element, and add up what they have in shared memory
    apart,  // the same in the launch after that in which the sums are given
};

template <int tiles, int members, Sharing sharing = Sharing::few> class BlockSums {
    static constexpr int kAll = tiles * members;

  public:
    // Whether a block keeps its own share in shared memory.  That saves traffic but takes a barrier, so it is done
    // where there are many sums.
    static constexpr bool kKeeps = sharing != Sharing::apart && kAll > 1024;
    static constexpr int kKeptBytes = kKeeps ? kAll / 2 * sizeof(float4) : 0;

    // The blocks that share rows.  The first of them, block slot / 2, gives its sums in `slot`, its first or second
    // one; the others give theirs in their first slot.
    struct Group {
        int slot, blocks;

        __device__ int rank() const { return blockIdx.x - slot / 2; }
        __device__ int share() const { return (kAll + blocks - 1) / blocks; }
    };
    // `kept` is shared memory of kKeptBytes; nothing else may use it from the last give() on.  `scratch`, which few
    // blocks do not need, has room for a float4 of each thread; nothing else may use it in collect().
    __device__ BlockSums(const Room& room, void* kept, void* scratch = nullptr)
        : room_(room), kept_(static_cast<float4*>(kept)), scratch_(static_cast<float4*>(scratch)) {}

    // Give the sums to the blocks that share the rows, in `slot`.  If these are the block's last sums (`last`), its own
    // share of them stays in shared memory.
    __device__ void give(const float (&sums)[4 * tiles], int member, const Group& group, int slot, bool last) const {
        const int begin = group.rank() * group.share();
        float4* to = at(slot);
#pragma unroll
        for (int j = 0; j < tiles; ++j) {
            const int i = j * members + member;
            const float4 x = {real(sums[4 * j]), real(sums[4 * j + 1]), real(sums[4 * j + 2]), real(sums[4 * j + 3])};
            if (kKeeps && last && i >= begin && i < begin + group.share()) kept_[i - begin] = x;
            else write(to + i, x);
        }
    }
    // Call store(four sums, tile, member) for the block's share.  By all threads.
    template <class Store> __device__ void collect(const Group& group, bool last, Store store) const {
        if constexpr (sharing != Sharing::few) return collect_spread(group, last, store);
        if (kKeeps) __syncthreads();
        const int begin = group.rank() * group.share(), end = min(begin + group.share(), kAll);
        for (int i = begin + threadIdx.x; i < end; i += kItems * blockDim.x) {
            float4 sums[kItems] = {};
            for (int first = 0; first < group.blocks; first += kBlocks)
                add(sums, group, first, 1, kKeeps && last ? group.rank() : -1, i, begin, end);
#pragma unroll
            for (int item = 0; item < kItems; ++item) {
                const int of = i + item * blockDim.x;
                if (of < end) store(sums[item], of / members, of % members);
            }
        }
    }

  private:
    static constexpr unsigned kMissing = 0xffffffff, kNan = 0x7fffffff;
    // A thread asks for the sums of kItems members and kBlocks blocks at once.  With more, fetching the longer code
    // would take more time than is saved.
    static constexpr int kItems = kKeeps && sharing == Sharing::few ? 2 : 1, kBlocks = 4;

    // Neighbouring threads take neighbouring elements.  As there are more threads than elements, several take the same
    // one, each from some of the blocks.
    template <class Store> __device__ void collect_spread(const Group& group, bool last, Store store) const {
        const int begin = group.rank() * group.share(), end = min(begin + group.share(), kAll);
        const int keeper = kKeeps && last ? group.rank() : -1;
        const int width = min(group.share(), int(blockDim.x)), threads = blockDim.x / width;
        const int column = threadIdx.x % width, number = threadIdx.x / width;
        __syncthreads();  // the own share has been kept
        for (int i = begin + column; i - column < end; i += width) {
            const int blocks = number < threads && i < end ? group.blocks : 0;
            float4 sum[1] = {};
            for (int first = number; first < blocks; first += kBlocks * threads)
                add(sum, group, first, threads, keeper, i, begin, end);
            scratch_[threadIdx.x] = sum[0];
            __syncthreads();
            if (number == 0 && i < end) {
                for (int other = 1; other < threads; ++other) add(sum[0], scratch_[other * width + column]);
                store(sum[0], i / members, i % members);
            }
            __syncthreads();
        }
    }

    __device__ float4* at(int slot) const { return room_.slots + (long long)slot * kAll; }
    // Where a block of the group, the first of which is number 0, gives its sums.
    __device__ float4* of_block(const Group& group, int block) const {
        return at(block ? (group.slot / 2 + block) * 2 : group.slot);
    }

    // Add the sums of kBlocks blocks of the group, numbers `first`, `first` + `step`, ...: of vectors i, i + blockDim.x,
    // ... below `end`, kItems in all.  Block `keeper` is this one, if its share was kept, from `begin` on.
    __device__ void add(float4 (&sums)[kItems], const Group& group, int first, int step, int keeper, int i, int begin,
                        int end) const {
        float4* from[kItems * kBlocks];                        // null: nothing to wait for
        float4 x[kItems * kBlocks];
#pragma unroll
        for (int j = 0; j < kItems * kBlocks; ++j) {
            const int block = first + j % kBlocks * step, of = i + j / kBlocks * blockDim.x;
            const bool there = block < group.blocks && of < end && block != keeper;
            from[j] = there ? of_block(group, block) + of : nullptr;
            x[j] = read(from[j]);
        }
#pragma unroll
        for (int j = 0; j < kItems * kBlocks; ++j) {
            const int of = i + j / kBlocks * blockDim.x;
            if (from[j]) take(x[j], from[j]);
            else if (kKeeps && first + j % kBlocks * step == keeper && of < end) x[j] = kept_[of - begin];
            add(sums[j / kBlocks], x[j]);
        }
    }
    __device__ static void add(float4& sum, const float4& x) { sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w; }
    // Read the sums again until all of them are there, and mark them as missing for the next launch.
    __device__ static void take(float4& x, float4* from) {
        const float none = __uint_as_float(kMissing);
        while (missing(x)) x = read(from);
        write(from, {none, none, none, none});
    }
    __device__ static float real(float x) { return __float_as_uint(x) == kMissing ? __uint_as_float(kNan) : x; }
    __device__ static bool missing(const float4& x) {
        return __float_as_uint(x.x) == kMissing || __float_as_uint(x.y) == kMissing ||
               __float_as_uint(x.z) == kMissing || __float_as_uint(x.w) == kMissing;
    }
    // Relaxed accesses at gpu scope: past the L1 cache, unlike ordinary loads.  Null gives zeros.
    __device__ static float4 read(const float4* from) {
        float4 x = {0, 0, 0, 0};
        asm volatile("{ .reg .pred p; setp.ne.u64 p, %4, 0; @p ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4]; }"
                     : "+f"(x.x), "+f"(x.y), "+f"(x.z), "+f"(x.w) : "l"(from) : "memory");
        return x;
    }
    __device__ static void write(float4* to, const float4& x) {
        asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};"
                     ::"l"(to), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w) : "memory");
    }
    const Room& room_;
    float4 *kept_, *scratch_;
};
