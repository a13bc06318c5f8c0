// strip_producer: the warpgroup of hybrid_wgmma.cu that fetches the stages of a piece of a strip.
//
// The TMA brings A, and b where its rows are neighbours; rows of b that are not are copied by all four warps.
#pragma once

// Stages whose rows of b are neighbours are requested by one lane of the first warp.  For gathered stages one lane of
// each warp in turn requests A: that takes as long as a warp's share of the gather, so the warps share this too.
//
// All threads step through the stages alike, and no variable depends on what a single lane does.  So the compiler
// knows that the operands of copies are the same in all lanes.
class Producer {
    static constexpr int kWarps = 4;
    static constexpr int kOfWarp = BLOCK_K / kWarps;  // rows of b that a warp gathers for a stage

  public:
    __device__ Producer(const TensorMap& b_map, const Operands& of, const Ring& ring, u32 shared)
        : b_map_(b_map), of_(of), ring_(ring), shared_(shared),
          warp_(__shfl_sync(~0u, threadIdx.x / 32 % kWarps, 0)), lane_(threadIdx.x % 32) {}

    __device__ void fetch(const Piece& piece) {
        if (piece.first < piece.plain) await_b();
        lead(0, [&] { fetch_plain(piece); });
        // A barrier's parity distinguishes a pass through the ring from the one before, but not from earlier ones.  So
        // the other warps wait here until the first one has requested all plain stages.
        group_sync(1 + kConsumers, 128);
        place_.skip(piece.plain - piece.first);
        gather(piece);
    }

  private:
    // Wait for the kernel before this one, which may have written b.
    __device__ void await_b() {
        if (!waited_) wait_for_previous();
        waited_ = true;
    }
    // Tests elected() directly before the work; a stored result of the test would not do (hopper_ptx.cuh).
    template <class Act> __device__ void lead(int warp, Act act) const {
        if (warp_ == warp && elected()) act();
        __syncwarp();
    }

    // Stages whose rows of b are neighbours, by one lane, which loads their first sources an atom ahead.
    __device__ void fetch_plain(const Piece& piece) const {
        // Boxes beyond b are not requested: the TMA would fill them with zeros, for columns that are not
        // stored.
        const int spans = min(BLOCK_N / 64, (of_.n - piece.column + 63) / 64);
        Place place = place_;
        int sources[kParts];
#pragma unroll
        for (int part = 0; part < kParts; part++) sources[part] = first_source(piece, piece.first + part);
        for (int stage = piece.first; stage < piece.plain; stage += kParts) {
            int next[kParts];
#pragma unroll
            for (int part = 0; part < kParts; part++) next[part] = first_source(piece, stage + kParts + part);
#pragma unroll
            for (int part = 0; part < kParts; part++) {
                if (stage + part == piece.plain) break;
                const u32 barrier = ring_.acquire(place.at), to = shared_ + place.at.stage * kStageBytes;
                fetch_a(stage / kParts, part, blocks_of(sources[part]), place, barrier, spans * BLOCK_K * 128);
#pragma unroll
                for (int span = 0; span < BLOCK_N / 64; span++) {
                    if (span == spans) break;
                    load_box(to + span * BLOCK_K * 128, b_map_, piece.column + span * 64, row_of(sources[part]), 0, barrier);
                }
                place.advance(part);
            }
#pragma unroll
            for (int part = 0; part < kParts; part++) sources[part] = next[part];
        }
    }
    __device__ int first_source(const Piece& piece, int stage) const {
        return stage < piece.plain ? of_.sources[(long long)stage * BLOCK_K] : 0;
    }
    // The other stages: a warp gathers 16 rows of b, and copies 128 bytes of four of them with one instruction.
    //
    // Loading the sources takes longer than a stage.  Those of a stage are requested STAGES stages ahead, together with
    // the rows of b of the stage that then has the same place in the ring.  Both copies count on that stage's barrier,
    // so when consumers have given the place back, the sources are there.
    __device__ void gather(const Piece& piece) {
        Ring::Position at = place_.at;
        for (int i = 0; i < STAGES; i++, at.advance()) ask_sources(piece, piece.plain + i, at);
        await_b();
        await_copies();
        for (u32 stage = piece.plain; stage < piece.end; stage++) {
            const u32 barrier = ring_.acquire(place_.at), part = stage % kParts;
            const uint4 sources = load_shared4(sources_at(place_.at));
            lead(stage % kWarps, [&] { fetch_a(stage / kParts, part, blocks_of(sources.x), place_, barrier, 0); });
            gather_rows(sources, piece.column + lane_ % 8 * 8);
            ask_sources(piece, stage + STAGES, place_.at);
            Ring::follow(barrier);
            place_.advance(part);
        }
    }
    // Every eight lanes need four neighbouring sources of the warp's sixteen; the first of the lanes asks for them.
    __device__ void ask_sources(const Piece& piece, int stage, const Ring::Position& at) const {
        const int* from = of_.sources + (long long)stage * BLOCK_K + first_of_lane();
        copy16_if(stage < piece.end && lane_ % 8 == 0, sources_at(at), (u64)from, false);
    }
    __device__ u32 sources_at(const Ring::Position& at) const {
        return shared_ + kSourcesAt + (at.stage * BLOCK_K + first_of_lane()) * 4;
    }
    __device__ static void await_copies() {
        asm volatile("cp.async.wait_all;" ::: "memory");
        __syncwarp();
    }
    __device__ int first_of_lane() const { return warp_ * kOfWarp + lane_ / 8 * 4; }
    __device__ static u32 row_of(u32 source) { return source & ((1u << kLiveShift) - 1); }
    __device__ static u32 blocks_of(u32 source) { return source >> kLiveShift; }

    // `column`: the lane's first.  Columns beyond b are not copied: what they multiply is not stored.
    __device__ void gather_rows(const uint4& sources, int column) const {
        const u32 row[4] = {row_of(sources.x), sources.y, sources.z, sources.w};
        const u32 stage = shared_ + place_.at.stage * kStageBytes;
        const u64 first = (u64)(of_.b + column);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int line = first_of_lane() + i;
            const u32 to = stage + line * 128 + ((lane_ ^ line) % 8 << 4);
            const bool none = row[i] >= (u32)of_.k;
            const u64 from = multiply_add(none ? 0 : row[i], of_.b_pitch, first);
#pragma unroll
            for (int span = 0; span < BLOCK_N / 64; span++)
                copy16_if(column + span * 64 < of_.n, to + span * BLOCK_K * 128, from + span * 128, none);
        }
    }
    // x * y + z
    __device__ static u64 multiply_add(u32 x, u32 y, u64 z) {
        u64 sum;
        asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(sum) : "r"(x), "r"(y), "l"(z));
        return sum;
    }

    // Request the stored elements of a stage (with SKIPS only the 64 rows of each bit in `blocks`) and, with the first
    // stage of an atom, its metadata.  `b_bytes` of b come by the TMA too; 0: they are gathered.
    __device__ void fetch_a(int atom, int part, u32 blocks, const Place& place, u32 barrier, u32 b_bytes) const {
        const u32 a_bytes = SKIPS ? __popc(blocks) * kRowBlockBytes : kABytes;
        if (SKIPS) set_shared(shared_ + kLiveAt + 4 * place.at.stage, blocks);
        Ring::announce(barrier, a_bytes + b_bytes + (part ? 0 : kMetadataBytes), b_bytes > 0);
        if (part == 0) {
            const u32 metadata = shared_ + kMetadataAt + place.slot * kMetadataBytes;
            load_bytes(metadata, of_.packed + (long long)atom * kMetadataBytes, kMetadataBytes, barrier);
        }
        const u32 to = shared_ + place.at.stage * kStageBytes + kBBytes;
        const unsigned char* from = of_.values + (long long)(atom * kParts + part) * kABytes;
        if constexpr (SKIPS) {
#pragma unroll
            for (u32 r = 0; r < BLOCK_M / 64; r++)
                if (blocks >> r & 1) load_bytes(to + r * kRowBlockBytes, from + r * kRowBlockBytes, kRowBlockBytes, barrier);
        } else {
            load_bytes(to, from, kABytes, barrier);
        }
    }

    const TensorMap& b_map_;
    const Operands& of_;
    const Ring& ring_;
    u32 shared_;
    int warp_, lane_;
    Place place_;
    bool waited_ = false;  // for b
};
