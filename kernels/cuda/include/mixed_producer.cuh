// mixed_producer: the producer of sparse_mixed.cu, a single thread, which asks the TMA for stage after stage.
//
// A stage is b alone.  A and its codes come slice by slice, with the first stage of each.
#pragma once
#include "mixed_tile.cuh"
#include "tile_source.cuh"

// A block's producer.
class Producer {
  public:
    __device__ Producer(const Sources& from, const Shape& shape, const Ring& ring, u32 shared)
        : from_(from), shape_(shape), weight_(from.values, from.packed, shape), ring_(ring), shared_(shared) {}

    // Fetch A for at most `ahead` stages of the block's first tile, and whole slices; returns for how many slices.
    __device__ int begin(TileScheduler tiles, int ahead) const {
        Work work;
        if (!tiles.advance(work)) return 0;
        const TileSource tile = source_of(from_, shape_, work);
        const int slices = min(min(ahead, STAGES) / kParts, work.slices);
        typename Ring::Position at;
#pragma unroll 1
        for (int i = 0; i < slices; i++) {
            fetch_a(tile, work.first_slice + i, i, at);
            for (int part = 0; part < kParts; part++) at.advance();
        }
        return slices;
    }
    // Fetch everything, but for A of the first `begun` slices.
    __device__ void run(TileScheduler tiles, int begun) const {
        typename Ring::Position at;
        int slot = 0;
        Work work;
        while (tiles.advance(work)) {
            const TileSource tile = source_of(from_, shape_, work);
            const int end = work.first_slice + work.slices;
#pragma unroll 1
            for (int slice = work.first_slice; slice < end; slice++, begun--) {
                if (begun <= 0) fetch_a(tile, slice, slot, at);
                slot = slot + 1 == kSlots ? 0 : slot + 1;
#pragma unroll
                for (int part = 0; part < kParts; part++, at.advance()) {
                    if (part > 0) ring_.acquire(at, tile.columns * kLine);
                    fetch_b(tile, shared_ + at.stage * kStageBytes, slice * kAtomK + part * BLOCK_K, 0,
                            full_barrier(shared_, at));
                }
            }
        }
    }

  private:
    // Wait for the first stage of a slice, announce its bytes, those of b included, and fetch A for the slice.
    __device__ void fetch_a(const TileSource& tile, int slice, int slot, const typename Ring::Position& at) const {
        const RowsOfA rows = {tile.m0, min(BLOCK_M, shape_.m - tile.m0), tile.a_batch, 0};
        const u32 barrier = ring_.acquire(at, weight_.bytes(rows) + tile.columns * kLine);
        weight_.fetch(rows, slice, shared_ + kSlotsAt + slot * kSlotBytes, barrier);
    }

    const Sources from_;
    const Shape& shape_;
    const Weight weight_;
    const Ring& ring_;
    u32 shared_;
};
