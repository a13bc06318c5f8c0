// decode_rows: a b of contiguous rows for sparse_decode.cu, copied by kLoaders threads of a block.
//
// A stage holds TILE_K rows, in the places of sparse_tile.cuh, whose pattern repeats itself after eight rows.  A thread
// copies the same chunk of every kRowsAtOnce-th row, so that its addresses differ by constants: there are few warps to
// hide what an address takes.  Rows of fewer columns than the tile are copied as far as they go; the rest of their
// places are zeros from the start.  A chunk that only begins inside the matrix is filled up with zeros.
//
//   barrier    completes when           arrivals
//   rows[s]    b is there in stage s    one by each thread that copies, once its copies have arrived
#pragma once

constexpr int kLoaders = TILE_N * kItem / 16 * 32;  // threads: a warp for each 16 bytes of a row
constexpr int kChunks = TILE_N * kItem / CHUNK;     // of a row
constexpr int kRowsAtOnce = kLoaders / kChunks;
constexpr int kRowBarriersAt = kBarriersAt + Ring::bytes;
static_assert(kRowsAtOnce % 8 == 0 && kBChunks <= 8);

// A number of bytes that is not a constant takes nine instructions, so whole chunks have a copy of their own.
inline void copy_part(unsigned to, const char* from, int bytes) {
    if constexpr (CHUNK == 16) copy_async(to, from, bytes);
    else asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" :: "r"(to), "l"(from), "r"(bytes) : "memory");
}
inline void copy_whole(unsigned to, const char* from) {
    if constexpr (CHUNK == 16)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" :: "r"(to), "l"(from) : "memory");
    else asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(to), "l"(from) : "memory");
}

class RowsOfB {
  public:
    RowsOfB(const char* b, const Shape& s) : b_(b), s_(s), pitch_(s.b_row * kItem) {
        const int thread = threadIdx.x - kThreads - 32, at = thread % kChunks * CHUNK;
        row_ = thread / kChunks;
        first_ = row_ * pitch_ + at;
        bytes_ = max(0, min(CHUNK, s.n * kItem - at));
        place_ = place<TILE_K, kBChunks>(row_, at / 16) + at % 16;
    }
    static void init(unsigned shared) {
        for (int stage = 0; stage < STAGES; ++stage) hopper::barrier_init(shared + kRowBarriersAt + 8 * stage, kLoaders);
        hopper::barrier_init_fence();
    }
    static void wait(unsigned shared, const Ring::Position& at) { hopper::barrier_wait(barrier(shared, at), at.phase); }

    void run(unsigned shared) const {
        Ring::Position at;
        each_tile(s_, [&](const Place& tile) {
            const char* from = b_ + tile.batch * s_.b_batch * kItem + first_;
            for (int k0 = 0; k0 < s_.k; k0 += TILE_K, at.advance(), from += TILE_K * pitch_) {
                hopper::barrier_wait(empty_barrier(shared, at), at.phase ^ 1);
                if (bytes_) copy(shared + at.stage * kStageBytes + kBAt + place_, from, s_.k - k0 - row_);
                asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" :: "r"(barrier(shared, at)) : "memory");
            }
        });
    }

  private:
    static unsigned barrier(unsigned shared, const Ring::Position& at) { return shared + kRowBarriersAt + 8 * at.stage; }

    // This thread's chunks of a stage, of which those of `rows` rows are inside the matrix.
    void copy(unsigned to, const char* from, int rows) const {
        constexpr int step = kRowsAtOnce * kBChunks * 16, count = TILE_K / kRowsAtOnce;
        const long long apart = kRowsAtOnce * pitch_;
        if (bytes_ == CHUNK && rows > (count - 1) * kRowsAtOnce) {
#pragma unroll 16
            for (int i = 0; i < count; ++i, from += apart) copy_whole(to + i * step, from);
        } else {
#pragma unroll 1
            for (int i = 0; i < count; ++i) {
                const bool inside = i * kRowsAtOnce < rows;
                copy_part(to + i * step, inside ? from + i * apart : from, inside ? bytes_ : 0);
            }
        }
    }

    const char* b_;
    const Shape& s_;
    long long pitch_, first_;
    int row_, bytes_;
    unsigned place_;
};
