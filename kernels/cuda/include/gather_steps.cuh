// gather_steps: the words of a unit of hybrid_gather.cu as they are read and added: in a step four for each lane.
#pragma once
#include "gather_lines.cuh"

constexpr int kStepBytes = 32 * 16, kRingBytes = AHEAD * kStepBytes;  // of a warp
constexpr int kAtOnce = COLUMNS <= 2 ? 2 : 1;                         // steps
static_assert(AHEAD % kAtOnce == 0 && AHEAD - EARLY <= EARLY);

struct Left {
    const uint4* words;
    const int* begins;
    const int* heights;
    const int* rows;
    int units;
};

// The steps of a warp.  Every lane copies its own words into a ring in shared memory, AHEAD steps ahead, and waits for
// its own copies alone.  (Loads into registers would all be counted by one scoreboard: the compiler waits for the load
// that was issued last whenever it needs the first.)  Loops are not unrolled: most products have few steps for a warp,
// and a longer kernel is slower to start.
//
// Only EARLY steps are asked for before b, each further one when one of them has come.  If all were, b would wait behind
// them in the L2 cache, and every block for b (docs/benchmarks/log_hybrid.rst).
class Steps {
  public:
    __device__ explicit Steps(u32 ring) : slots_(ring + threadIdx.x % 32 * 16) {}

    // Begin part `part` of the `parts` into which a unit is cut.
    __device__ void begin(const Left& a, int rank, int unit, int part, int parts) {
        if (unit < a.units && rank < PANELS) {
            height_ = a.heights[unit];
            const int* begins = a.begins + rank * a.units + unit;
            const int first = begins[0], steps = begins[1] - first, at = steps * part / parts;
            from_ = a.words + Count(first + at) * 32 + threadIdx.x % 32;
            steps_ = steps * (part + 1) / parts - at;
        }
#pragma unroll
        for (int i = 0; i < EARLY; ++i) copy(i, i);
    }
    // Fill the rest of the ring, once b has been asked for.
    __device__ void follow() const {
#pragma unroll
        for (int i = EARLY; i < AHEAD; ++i) {
            copy_wait<EARLY - 1 + (kCopied ? HELD : 0)>();
            copy(i, i);
        }
    }
    __device__ void add(float (&acc)[COLUMNS], u32 panel) const {
#pragma unroll 1
        for (int step = 0, slot = 0; step < steps_; step += kAtOnce) {
            copy_wait<AHEAD - kAtOnce>();
            u32 words[4 * kAtOnce];
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) load(words + 4 * i, slot + i, i == 0 || step + i < steps_);
            add_words(acc, words, panel, [&] {
#pragma unroll
                for (int i = 0; i < kAtOnce; ++i) copy(step + AHEAD + i, slot + i);
            });
            slot = slot + kAtOnce < AHEAD ? slot + kAtOnce : 0;
        }
#pragma unroll 1
        for (int step = height_; step < 32; step *= 2)
#pragma unroll
            for (int c = 0; c < COLUMNS; ++c) acc[c] += __shfl_xor_sync(~0u, acc[c], step);
    }

  private:
    __device__ void copy(int step, int slot) const {  // or an empty group, so that groups can be counted
        if (step < steps_) copy16(slots_ + slot * kStepBytes, from_ + 32 * step, once_);
        copy_commit();
    }
    __device__ void load(u32* words, int slot, bool real) const {
        const uint4 four = load_shared4(slots_ + slot * kStepBytes);
        words[0] = real ? four.x : 0, words[1] = real ? four.y : 0;
        words[2] = real ? four.z : 0, words[3] = real ? four.w : 0;
    }
    // `refill` is called when words and lines have been asked for, before the sums wait for them.
    template <int count, class Refill>
    __device__ static void add_words(float (&acc)[COLUMNS], const u32 (&words)[count], u32 panel, Refill refill) {
        u32 at[count];
#pragma unroll
        for (int i = 0; i < count; ++i) at[i] = panel + place((words[i] & 0xffff) * kLineBytes / 16);
#pragma unroll
        for (int c = 0; c < COLUMNS; c += Line::kElements) {
            Line lines[count];
#pragma unroll
            for (int i = 0; i < count; ++i) lines[i].load(at[i] ^ c * 2);
            if (c == 0) refill();
#pragma unroll
            for (int i = 0; i < count; ++i) lines[i].add(acc + c, high_of<Kind::ELEMENT>(words[i]));
        }
    }
    const uint4* from_ = nullptr;
    const u64 once_ = read_once();
    u32 slots_;                 // of this lane
    int steps_ = 0, height_ = HEIGHT;
};
