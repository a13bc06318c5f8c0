// tile_producer: the producer of sparse_wgmma.cu, a single thread, which asks the TMA for stage after stage.
#pragma once
#include "tile_source.cuh"

// A block's producer.
class Producer {
  public:
    __device__ Producer(const Sources& from, const Shape& shape, const Ring& ring, u32 shared, u32 rank)
        : from_(from), shape_(shape), ring_(ring), shared_(shared), rank_(rank),
          next_atom_((long long)shape.atoms_m * kAtomBytes) {}

    // Fetch A for at most `ahead` stages of the block's first tile, and whole slices; returns for how many slices.
    __device__ int begin(TileScheduler tiles, int ahead) const {
        Work work;
        if (!tiles.advance(work)) return 0;
        const TileSource tile = source_of(from_, shape_, work);
        Metadata metadata = metadata_of(tile, work);
        const int slices = min(min(ahead, STAGES) / kParts, work.slices);
        typename Ring::Position at;
#pragma unroll 1
        for (int i = 0; i < slices; i++, metadata.from += kAtomsOfStage * next_atom_)
            for (int part = 0; part < kParts; part++, at.advance())
                fetch_a(tile, metadata, work.first_slice + i, part, i, at);
        return slices;
    }
    // Fetch everything, but for A of the first `begun` slices.
    __device__ void run(TileScheduler tiles, int begun) const {
        typename Ring::Position at;
        int slot = 0;
        Work work;
        while (tiles.advance(work)) {
            const TileSource tile = source_of(from_, shape_, work);
            Metadata metadata = metadata_of(tile, work);
            int slice = work.first_slice;
            const auto next = [&] {
                slice++;
                metadata.from += kAtomsOfStage * next_atom_;
                slot = slot + 1 == kSlots ? 0 : slot + 1;
            };
#pragma unroll 1
            for (; begun > 0; begun--, next())
                for (int part = 0; part < kParts; part++, at.advance())
                    fetch_pieces_of_b(tile, slice, part, at, full_barrier(shared_, at));
#pragma unroll 1  // fetching unrolled code takes longer than the loop's branch
            for (; slice < work.first_slice + work.slices; next())
                for (int part = 0; part < kParts; part++, at.advance()) {
                    const u32 barrier = fetch_a(tile, metadata, slice, part, slot, at);
                    fetch_pieces_of_b(tile, slice, part, at, barrier);
                }
        }
    }

  private:
    // Of a slice in the rows of a tile.
    struct Metadata {
        const unsigned char* from;
        u32 bytes;  // of an atom of k
    };
    __device__ Metadata metadata_of(const TileSource& tile, const Work& work) const {
        const int atom_m = work.m * kAtoms;
        const unsigned char* from = from_.packed + tile.a_batch * shape_.packed_batch;
        return {from + work.first_slice * kAtomsOfStage * next_atom_ + atom_m * kAtomBytes,
                u32(max(0, min(kAtoms, shape_.atoms_m - atom_m)) * kAtomBytes)};
    }
    // Wait for a stage, and fetch A for it; metadata arrive with the first part of a slice.
    __device__ u32 fetch_a(const TileSource& tile, const Metadata& metadata, int slice, int part, int slot,
                           const typename Ring::Position& at) const {
        const int atoms = min(kAtomsOfStage, shape_.atoms_k - slice * kAtomsOfStage);
        const u32 barrier = ring_.acquire(at, tile.bytes + (part == 0 ? atoms * metadata.bytes : 0));
        if (part == 0) {
            const u32 to = shared_ + kMetadataAt + slot * kSlotBytes;
#pragma unroll
            for (int i = 0; i < kAtomsOfStage; i++)
                if (metadata.bytes && i < atoms)
                    load_bytes(to + i * kAtoms * kAtomBytes, metadata.from + i * next_atom_, metadata.bytes, barrier);
        }
        if (tile.rows)
#pragma unroll
            for (int piece = 0; piece < PIECES; piece++)
                load_box(stage(at) + kAAt + piece * kABytes, tile.values, column(slice, part, piece) / 2, tile.m0,
                         tile.a_batch, barrier);
        return barrier;
    }
    __device__ void fetch_pieces_of_b(const TileSource& tile, int slice, int part, const typename Ring::Position& at,
                                      u32 barrier) const {
#pragma unroll
        for (int piece = 0; piece < PIECES; piece++)
            fetch_b(tile, stage(at) + piece * kBBytes, column(slice, part, piece), rank_, barrier);
    }
    // Of A, or row of b, where a stage begins in the section of a piece.
    __device__ int column(int slice, int part, int piece) const {
        return piece * shape_.atoms_k * kAtomK + slice * kSliceK + part * BLOCK_K;
    }
    __device__ u32 stage(const typename Ring::Position& at) const { return shared_ + at.stage * kStageBytes; }

    const Sources from_;
    const Shape& shape_;
    const Ring& ring_;
    u32 shared_, rank_;
    long long next_atom_;
};
