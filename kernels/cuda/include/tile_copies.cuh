// tile_copies: how a block fills the stages of its tile, one after the other, each in several parts.
//
// Compiled with the macros of sparse_tile.  A thread copies the same 16-byte chunk of several lines, and moves a
// pointer from line to line.  So the copies, which stand between instructions that multiply, take few instructions and
// registers.
#pragma once
#include "sparse_tile.cuh"

// As copy_async, but only where `wanted`; by a predicate instead of a branch.
inline void copy_async_if(bool wanted, unsigned to, const void* from, int bytes) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %3, 0;\n"
                 "@p cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2; }"
                 :: "r"(to), "l"(from), "r"(bytes), "r"(int(wanted)) : "memory");
}

// The lines of a staged operand, `chunks` x 16 bytes each: a thread copies its chunk of lines that are `step` apart.
template <int lines, int chunks> class Lines {
  public:
    static constexpr int step = kThreads / chunks, count = lines / step;
    static_assert(kThreads % chunks == 0 && lines % step == 0);

    static int line(int i = 0) { return threadIdx.x / chunks + i * step; }
    static int chunk() { return threadIdx.x % chunks; }

    // The operand begins at `first` in global memory, and `to` bytes from the beginning of a stage.
    Lines(const char* first, long long pitch, unsigned to)
        : from_(first + line() * pitch + 16 * chunk()), pitch_(pitch), to_(to + place<lines, chunks>(line(), chunk())) {}

    // The next line, number i of this thread.
    void copy(unsigned stage, int i, int bytes, bool wanted) {
        constexpr int swizzled = 8;  // lines after which the swizzle repeats itself
        const unsigned offset = step % swizzled == 0
            ? i * step * smaller(chunks, 8) * 16
            : place<lines, chunks>(line(i), chunk()) - place<lines, chunks>(line(), chunk());
        copy_async_if(wanted, stage + to_ + offset, from_, bytes);
        skip(step);
    }
    void skip(int lines_) { from_ += lines_ * pitch_; }
    void move(long long bytes) { from_ += bytes; }

  private:
    const char* from_;
    long long pitch_;
    unsigned to_;
};

// Copies of the stages [first, last) of k; later stages are filled with zeros.  Lines behind the last row of A or
// column of b are not copied, because their sums are not stored.
class TileCopies {
    using LinesA = Lines<TILE_M, kAChunks>;
    using LinesB = Lines<kBRows, kBChunks>;
    static constexpr int kALine = TILE_K / 2 * kItem;  // bytes of a line in a stage
    static constexpr int kMetaRounds = (kAtoms * TILE_M + kThreads - 1) / kThreads;
    static constexpr int kOfA = LinesA::count, kOfB = B_ASYNC ? LinesB::count : 0, kAll = kOfA + kOfB + kMetaRounds;

  public:
    TileCopies(const Tile& tile, const Shape& s, int first, int last)
        : tile_(tile), s_(s), stage_(first), end_(last), a_(tile.values + tile.m0 * s.a_pitch, s.a_pitch, 0),
          b_(tile.b + tile.n0 * (B_COLUMN ? s.b_column : 1) * kItem, (B_COLUMN ? s.b_column : s.b_row) * kItem,
             kABytes + kMetaBytes) {
        a_.move((long long)first * kALine);
        b_.move(first * along_b());
    }

    // Part i of the `parts` into which the copies of the next stage are cut; called for i = 0, 1, ... in turn.
    template <int parts> void part(unsigned stage, int i) {
#pragma unroll
        for (int copy = 0; copy < kAll; ++copy) {
            if (copy < kAll * i / parts || copy >= kAll * (i + 1) / parts) continue;
            if (copy < kOfA) copy_a(stage, copy);
            else if (copy < kOfA + kOfB) copy_b(stage, copy - kOfA);
            else copy_metadata(stage, copy - kOfA - kOfB);
        }
    }

    // After all parts of the next stage: store what cannot be copied asynchronously, and go on to the stage after it.
    void finish(char* stage) {
        if (!B_ASYNC && stage_ < end_) tile_.load_b_elements(stage, s_, stage_ * TILE_K);
        ++stage_;
        a_.skip(-TILE_M);
        a_.move(kALine);
        if (B_ASYNC) b_.skip(-kBRows);
        b_.move(along_b());
    }

  private:
    long long along_b() const { return B_COLUMN ? TILE_K * kItem : TILE_K * s_.b_row * kItem; }

    int bytes_of(int left) const { return stage_ < end_ ? max(0, min(16, left)) : 0; }

    void copy_a(unsigned stage, int i) {
        const int left = s_.values_per_row * kItem - stage_ * kALine - 16 * LinesA::chunk();
        a_.copy(stage, i, bytes_of(left), LinesA::line(i) < s_.m - tile_.m0);
    }
    void copy_b(unsigned stage, int i) {
        const int left = (B_COLUMN ? s_.k - stage_ * TILE_K : s_.n - tile_.n0) * kItem - 16 * LinesB::chunk();
        if (B_COLUMN) b_.copy(stage, i, bytes_of(left), LinesB::line(i) < s_.n - tile_.n0);
        else b_.copy(stage, i, LinesB::line(i) < s_.k - stage_ * TILE_K ? bytes_of(left) : 0, true);
    }
    // Every 16 rows of an atom have 256 consecutive bytes, and atoms along M follow one another, so row r of the matrix
    // counts as bytes 16 r to 16 r + 15.  Past the last atom the last one is read: its codes are legal.
    void copy_metadata(unsigned stage, int round) const {
        const int i = round * kThreads + threadIdx.x, atoms_k = (s_.k + 127) / 128;
        const int row = min(tile_.m0 + i % TILE_M, s_.meta_atoms_m * 64 - 1);
        const int atom = min(stage_ * kAtoms + i / TILE_M, atoms_k - 1);
        const char* from = tile_.meta + ((long long)atom * s_.meta_atoms_m * 64 + row) * 16;
        const bool wanted = stage_ < end_ && (kAtoms * TILE_M % kThreads == 0 || i < kAtoms * TILE_M);
        copy_async_if(wanted, stage + kABytes + 16 * i, from, 16);
    }

    const Tile& tile_;
    const Shape& s_;
    int stage_, end_;  // the next stage, and the one behind the last
    LinesA a_;
    LinesB b_;
};
