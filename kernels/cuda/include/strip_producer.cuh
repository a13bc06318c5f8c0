// strip_producer: the warpgroup of hybrid_wgmma.cu that fetches the stages of a piece of a strip.
//
// The copy engine brings A, and b where its rows are neighbours; others are copied by all four warps.
#pragma once

// The producer warpgroup's place in the ring; a lane of its first warp is the leader.
//
// All threads step through the stages alike, and what the leader does alone changes nothing that
// outlives it, so that the compiler knows its operands to be the same in all lanes.
class Producer {
    static constexpr int kOfWarp = BLOCK_K / 4;  // rows of b that a warp gathers for a stage
    static constexpr int kAhead = 3;             // stages for which a lane holds row numbers
    static constexpr int kBlocks = BLOCK_M / 64; // of rows
    static constexpr u32 kAllBlocks = (1 << kBlocks) - 1;

  public:
    __device__ Producer(const TensorMap& values, const TensorMap& b_map, const Operands& of, const Ring& ring,
                        u32 shared)
        : values_(values), b_map_(b_map), of_(of), ring_(ring), shared_(shared),
          warp_(__shfl_sync(~0u, threadIdx.x / 32 % 4, 0)), lane_(threadIdx.x % 32) {}

    __device__ void fetch(const Piece& piece) {
        Gathered ahead[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; i++) ahead[i] = load(piece, piece.plain + i);
        if (!waited_) wait_for_previous();
        waited_ = true;
        lead([&] { fetch_plain(piece); });
        // A barrier's parity tells two walks through the ring apart, not three: nobody may be further ahead.
        group_sync(1 + kConsumers, 128);
        place_.skip(piece.plain - piece.first);
        gather(piece, ahead);
    }

  private:
    // The test stands before the work, and is not passed on as a value: see elected().
    template <class Act> __device__ void lead(Act act) const {
        if (warp_ == 0 && elected()) act();
        __syncwarp();
    }

    // What a lane must know of a stage whose rows of b it helps to gather: its rows, and which instructions there are.
    struct Gathered {
        int4 rows;
        u32 live;
    };
    struct Plain {
        int row;
        u32 live;
    };

    // Stages whose rows of b are neighbours; work of the leader, which looks an atom ahead.
    __device__ void fetch_plain(const Piece& piece) const {
        Place place = place_;
        Plain now[kParts];
#pragma unroll
        for (int part = 0; part < kParts; part++) now[part] = load_plain(piece, piece.first + part);
        for (int stage = piece.first; stage < piece.plain; stage += kParts) {
            Plain next[kParts];
#pragma unroll
            for (int part = 0; part < kParts; part++) next[part] = load_plain(piece, stage + kParts + part);
#pragma unroll
            for (int part = 0; part < kParts; part++) {
                if (stage + part == piece.plain) break;
                const u32 barrier = ring_.acquire(place.at), to = shared_ + place.at.stage * kStageBytes;
                const u32 blocks = tell(now[part].live, place);
                Ring::announce(barrier, a_bytes(blocks) + kBBytes + (part ? 0 : kMetadataBytes), true);
                fetch_a(stage / kParts, part, blocks, place, barrier);
#pragma unroll
                for (int span = 0; span < BLOCK_N / 64; span++)
                    load_box(to + span * BLOCK_K * 128, b_map_, piece.column + span * 64, now[part].row, 0, barrier);
                place.advance(part);
            }
#pragma unroll
            for (int part = 0; part < kParts; part++) now[part] = next[part];
        }
    }
    __device__ Plain load_plain(const Piece& piece, int stage) const {
        if (stage >= piece.plain) return {};
        return {of_.sources[(long long)stage * BLOCK_K], live_of(stage)};
    }
    // The others: 16 rows of b a warp, of which it copies 128 bytes of four at once.  A row number takes longer from
    // memory than a stage, and to move one on to another register would be to wait for it.
    __device__ void gather(const Piece& piece, Gathered (&ahead)[kAhead]) {
        for (int stage = piece.plain; stage < piece.end; stage += kAhead) {
#pragma unroll
            for (int i = 0; i < kAhead; i++) {
                if (stage + i >= piece.end) return;
                gather_stage(stage + i, piece.column, ahead[i]);
                ahead[i] = load(piece, stage + i + kAhead);
            }
        }
    }
    __device__ void gather_stage(int stage, int first_column, const Gathered& of) {
        const int part = stage % kParts;
        const u32 barrier = ring_.acquire(place_.at);
        lead([&] {
            const u32 blocks = tell(of.live, place_);
            Ring::announce(barrier, a_bytes(blocks) + (part ? 0 : kMetadataBytes), false);
            fetch_a(stage / kParts, part, blocks, place_, barrier);
        });
        gather_rows(of.rows, first_column + lane_ % 8 * 8);
        Ring::follow(barrier);
        place_.advance(part);
    }
    // Four neighbours of this warp's sixteen rows, for each eight lanes.
    __device__ Gathered load(const Piece& piece, int stage) const {
        if (stage >= piece.end) return {};
        const int* from = of_.sources + (long long)stage * BLOCK_K + first_of_lane();
        return {*reinterpret_cast<const int4*>(from), live_of(stage)};
    }
    __device__ u32 live_of(int stage) const { return SKIPS ? of_.live[stage] : 0; }
    __device__ int first_of_lane() const { return warp_ * kOfWarp + lane_ / 8 * 4; }

    // `column`: the lane's first.  Beyond b, stages keep what they held: it makes columns that are never
    // stored.
    __device__ void gather_rows(const int4& rows, int column) const {
        const int row[4] = {rows.x, rows.y, rows.z, rows.w};
        const u32 stage = shared_ + place_.at.stage * kStageBytes;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int line = first_of_lane() + i;
            const u32 to = stage + line * 128 + ((lane_ ^ line) % 8 << 4);
            const bool none = row[i] >= of_.k;
            const auto* from = reinterpret_cast<const unsigned char*>(of_.b + column);
            from += (u64)(none ? 0u : (u32)row[i]) * (u32)of_.b_pitch;
#pragma unroll
            for (int span = 0; span < BLOCK_N / 64; span++)
                if (column + span * 64 < of_.n) copy16(to + span * BLOCK_K * 128, from + span * 128, none);
        }
    }
    // Tell the consumers which instructions a stage has; the 64 rows that need any, a bit each.
    __device__ u32 tell(u32 live, const Place& place) const {
        if constexpr (!SKIPS) return kAllBlocks;
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(shared_ + kLiveAt + 4 * place.at.stage), "r"(live) : "memory");
        return (live | live >> 8) & kAllBlocks;
    }
    __device__ static u32 a_bytes(u32 blocks) { return SKIPS ? __popc(blocks) * kRowBlockBytes : kABytes; }
    __device__ void fetch_a(int atom, int part, u32 blocks, const Place& place, u32 barrier) const {
        if (part == 0) {
            const u32 metadata = shared_ + kMetadataAt + place.slot * kMetadataBytes;
            load_bytes(metadata, of_.packed + (long long)atom * kMetadataBytes, kMetadataBytes, barrier);
        }
        const u32 to = shared_ + place.at.stage * kStageBytes + kBBytes;
        if constexpr (SKIPS) {
#pragma unroll
            for (int r = 0; r < kBlocks; r++)
                if (blocks >> r & 1) load_box(to + r * kRowBlockBytes, values_, part * (BLOCK_K / 2), r * 64, atom, barrier);
        } else {
            load_box(to, values_, part * (BLOCK_K / 2), 0, atom, barrier);
        }
    }

    const TensorMap &values_, &b_map_;
    const Operands& of_;
    const Ring& ring_;
    u32 shared_;
    int warp_, lane_;
    Place place_;
    bool waited_ = false;  // for the kernel before this one
};
