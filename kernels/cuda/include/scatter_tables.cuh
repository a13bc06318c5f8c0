// scatter_tables: what a block of hybrid_scatter.cu has to multiply, as kernels/hybrid_scatter_schedule.py says it.
//
// A block needs its tables before it can ask for elements, and elements before it can multiply: two latencies of memory,
// one after the other, where a whole product takes as long as ten.  `Opening` asks for all tables at once, and `Leads`
// for the first elements meanwhile.
#pragma once

struct alignas(16) Unit {
    int column;                        // of its first element
    int first;                         // where it begins in `units`, in lines of 128 bytes
    int groups, lines;
};
// A block's steps in one band.
struct alignas(16) Part {
    int band, steps;
    int slot;                          // where the first block of the band gives its sums (include/block_sums.cuh)
    int blocks;                        // that share the band

    __device__ Others::Group group() const { return {slot, blocks}; }
};
struct Rows {
    int first, end;
};
struct Left {
    const unsigned char* units;
    const Unit* steps;
    const Part* parts;
    const int2* counts;
    int pitch, parts_pitch;
    int m, rows;                       // of A; of a band

    __device__ Rows band(int i) const { return {i * rows, min(m, (i + 1) * rows)}; }
};
// What the tables say of a warp's first two units and of its block, a word for each lane.  (Loaded as scalars, the same
// in all lanes, the compiler moves one after the other to uniform registers, and waits for memory each time.)
class Opening {
  public:
    __device__ Opening(const Left& a, int stage) {
        const int lane = threadIdx.x % 32;
        const Unit* units = a.steps + (Count)blockIdx.x * a.pitch + stage;
        const int* from = reinterpret_cast<const int*>(units + lane / kWords * STAGES);
        if (lane >= kPartAt) from = reinterpret_cast<const int*>(a.parts + (Count)blockIdx.x * a.parts_pitch);
        if (lane >= kCountsAt) from = reinterpret_cast<const int*>(a.counts + blockIdx.x);
        word_ = lane < kCountsAt + 2 ? from[lane % kWords] : 0;
    }
    __device__ Unit unit(int turn) const {
        const int at = turn * kWords;
        return {word(at), word(at + 1), word(at + 2), word(at + 3)};
    }
    __device__ Part part() const {
        return {word(kPartAt), word(kPartAt + 1), word(kPartAt + 2), word(kPartAt + 3)};
    }
    __device__ int2 counts() const { return {word(kCountsAt), word(kCountsAt + 1)}; }

  private:
    static constexpr int kWords = 4, kPartAt = 2 * kWords, kCountsAt = 3 * kWords;
    static_assert(sizeof(Unit) == 4 * kWords && sizeof(Part) == 4 * kWords);

    __device__ int word(int lane) const { return __shfl_sync(~0u, word_, lane); }

    int word_;
};
// Where the first units of every block lie, in lines: passed by value, so it is known at once.
struct Leads {
    static constexpr int kMostBlocks = 144;  // all multiprocessors of Hopper's largest chip
    int first[kMostBlocks], lines[kMostBlocks];

    // To the L2 cache; by one thread.
    __device__ void prefetch(const unsigned char* units) const {
        const Count at = (Count)first[blockIdx.x] * kLineBytes;
        const u32 bytes = lines[blockIdx.x] * kLineBytes;
        if (bytes > 0) asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(units + at), "r"(bytes) : "memory");
    }
};
