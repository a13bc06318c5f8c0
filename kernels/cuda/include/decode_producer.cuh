// decode_producer: what a block does in the product of a decoding step: one thread asks for stages, the others multiply.
//
// The kernel before this one may have written A, so it has to end before A is read.  But what it writes goes to the L2
// cache, so blocks that start earlier bring the first stages of A there meanwhile.  Where the caller knows that all
// that wrote to A has ended, `ahead` stages of it go to shared memory at once.
//
// A kernel's class Weight says where the stages of its A are.  That of `tile` from column k0 of K on
//
//   bytes(k0)                           has so many bytes
//   prefetch(tile, k0)                  comes to the L2 cache
//   load(stage, tile, k0, barrier)      comes to shared memory, where the barrier counts its bytes
//
// Source: PTX ISA, cp.async.bulk, cp.async.bulk.prefetch, griddepcontrol.
#pragma once
#include "programmatic.cuh"
#include "decode_blocks.cuh"

constexpr int kAhead = 2;  // stages that are brought to the L2 cache

// What one thread asks of the TMA.
template <class Weight> struct Producer {
    const Weight& a;
    DenseStages b;
    const Shape& s;

    // The first stages of A of the block's first tile, but for those that are on their way.
    void bring_near(int begun) const {
        for (int k0 = begun * TILE_K; k0 < min(s.k, kAhead * TILE_K); k0 += TILE_K)
            a.prefetch(place_of(blockIdx.x, s), k0);
    }
    // Up to `ahead` stages of A of the block's first tile; returns how many.
    int begin(const Ring& ring, unsigned shared, int ahead) const {
        Ring::Position at;
        const int stages = min(min(ahead, STAGES), tiles_of(s.k, TILE_K));
        for (int i = 0; i < stages; ++i, at.advance())
            load_a(ring, shared, at, place_of(blockIdx.x, s), i * TILE_K);
        return stages;
    }
    // All stages; of the first `begun` only b is missing.
    void run(const Ring& ring, unsigned shared, int begun) const {
        Ring::Position at;
        each_tile(s, [&](const Place& tile) {
            for (int k0 = 0; k0 < s.k; k0 += TILE_K, at.advance(), --begun) {
                if (begun <= 0) load_a(ring, shared, at, tile, k0);
                b.load(shared + at.stage * kStage, tile, k0, full_barrier(shared, at));
            }
        });
    }

  private:
    void load_a(const Ring& ring, unsigned shared, const Ring::Position& at, const Place& tile, int k0) const {
        const unsigned barrier = ring.acquire(at, a.bytes(k0) + b.bytes(k0));
        a.load(shared + at.stage * kStage, tile, k0, barrier);
    }
};

// All of a block.
template <class Weight>
inline void multiply_tiles(char* shared, const Weight& a, HeldDense b, Out::type* out, int ahead, const Shape& s,
                           const EpilogueParams& p) {
    const Ring ring(shared_address(shared) + kBarriersAt);
    const Producer<Weight> producer{a, {b, s}, s};
    const bool fetches = threadIdx.x / 32 == kThreads / 32;
    int begun = 0;  // stages of A that are on their way
    let_next_start();
    if (fetches && hopper::elected()) {
        ring.init();
#if B_COLUMN
        hopper::prefetch_map(b);
#endif
        begun = producer.begin(ring, shared_address(shared), ahead);
        producer.bring_near(begun);
    }
    if (s.n < TILE_N) clear_b(shared);
    __syncthreads();
    wait_for_previous();
    if (threadIdx.x < kThreads) {
        if constexpr (kDealRegisters) hopper::take_registers<kConsumerRegisters>();
        consume(ring, s, shared, out, p);
    } else {
        if constexpr (kDealRegisters) hopper::give_registers<kFetcherRegisters>();
        if (fetches && hopper::elected()) producer.run(ring, shared_address(shared), begun);
    }
}
