// mixed_producer: the producer of sparse_mixed.cu, a single thread, which asks the TMA for stage after stage.
//
// A stage is b alone.  A and its codes come slice by slice, with the first stage of each.
#pragma once
#include "tile_source.cuh"

// A block's producer.
class Producer {
  public:
    __device__ Producer(const Sources& from, const Shape& shape, const Ring& ring, u32 shared)
        : from_(from), shape_(shape), ring_(ring), shared_(shared) {}

    // Fetch A for at most `ahead` stages of the block's first tile, and whole slices; returns for how many slices.
    __device__ int begin(TileScheduler tiles, int ahead) const {
        Work work;
        if (!tiles.advance(work)) return 0;
        const TileSource tile = source_of(from_, shape_, work);
        const int slices = min(min(ahead, STAGES) / kParts, work.slices);
        typename Ring::Position at;
#pragma unroll 1
        for (int i = 0; i < slices; i++) {
            fetch_a(tile, work, work.first_slice + i, i, ring_.acquire(at, bytes_with_a(tile, work)));
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
                u32 barrier = full_barrier(shared_, at);
                if (begun <= 0) {
                    ring_.acquire(at, bytes_with_a(tile, work));
                    fetch_a(tile, work, slice, slot, barrier);
                }
                slot = slot + 1 == kSlots ? 0 : slot + 1;
                fetch_b(tile, stage(at), slice * kAtomK, 0, barrier);
                at.advance();
#pragma unroll
                for (int part = 1; part < kParts; part++, at.advance()) {
                    barrier = ring_.acquire(at, tile.columns * kLine);
                    fetch_b(tile, stage(at), slice * kAtomK + part * BLOCK_K, 0, barrier);
                }
            }
        }
    }

  private:
    // Of the codes of a slice: of the rows of the tile that have atoms.
    __device__ u32 code_bytes(const Work& work) const {
        return u32(max(0, min(kAtoms, shape_.atoms_m - work.m * kAtoms)) * kAtomBytes);
    }
    __device__ u32 bytes_with_a(const TileSource& tile, const Work& work) const {
        return tile.rows * kRowOfA + tile.columns * kLine + code_bytes(work);
    }
    __device__ void fetch_a(const TileSource& tile, const Work& work, int slice, int slot, u32 barrier) const {
        const u32 to = shared_ + kSlotsAt + slot * kSlotBytes;
        const long long atom = (long long)slice * shape_.atoms_m + work.m * kAtoms;
        load_box(to, tile.values, slice * kRowOfA, tile.m0, tile.a_batch, barrier);
        load_bytes(to + kABytes, from_.packed + tile.a_batch * shape_.packed_batch + atom * kAtomBytes, code_bytes(work),
                   barrier);
    }
    __device__ u32 stage(const typename Ring::Position& at) const { return shared_ + at.stage * kStageBytes; }

    const Sources from_;
    const Shape& shape_;
    const Ring& ring_;
    u32 shared_;
};
