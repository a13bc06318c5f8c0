// stream_panels: the lines of b that hybrid_stream.cu multiplies, panels of PANEL lines for each part of the columns.
//
// Each part has BUFFERS panels in shared memory, of which BUFFERS - 1 are on their way while one is multiplied.
#pragma once

struct Right {                  // the dense operand
    const Element* b;
    Count k, n, row, column;    // sizes and strides in elements
};

// Lines of b lie one after the other, their 16-byte pieces exchanged as the tensor cores' own
// 32-, 64- and 128-byte swizzles do.
__device__ unsigned swizzled(int line, int piece) {
    constexpr int kLinesOfRow = N_TILES < 8 ? 8 / N_TILES : 1;      // that fill the 32 banks
    return line * kLine + ((piece ^ line / kLinesOfRow % N_TILES) * 16);
}

// PANEL lines of b from line `first` on, by the teams of one part; what lies beyond `end` is zero.  Blocks begin at
// different lines (by `turn`, any number that spreads them); otherwise all would ask the same slice of L2 at the same
// time.
__device__ void fetch_b(unsigned to, const Right& b, Count first, Count end) {
    const int turn = blockIdx.x / SPLITS * 88, index = threadIdx.x % (128 * TEAMS);
    end = min(end, b.k);
#if B_VECTOR
    for (int i = index; i < PANEL * N_TILES; i += 128 * TEAMS) {
        const int line = (i / N_TILES + turn) % PANEL, piece = i % N_TILES;
        const bool real = first + line < end && 8 * piece < b.n;
        copy16(to + swizzled(line, piece), real ? b.b + (first + line) * b.row + 8 * piece : b.b, real);
    }
#else
    for (int i = index; i < PANEL * kColumns; i += 128 * TEAMS) {
        const int line = i % PANEL, c = i / PANEL;
        const bool real = first + line < end && c < b.n;
        const Element x = real ? b.b[(first + line) * b.row + c * b.column] : Element(0);
        asm volatile("st.shared.u16 [%0], %1;" ::"r"(to + swizzled(line, c / 8) + c % 8 * 2), "h"(x));
    }
#endif
}

// The panels of a part.  All parts of a block take as many phases as the longest.
class Panels {
  public:
    int phases = 1;

    // Part number `part` of those that begin at the chunks `cuts`; the panels of the block lie at `shared`.
    __device__ Panels(const Right& b, const int* cuts, int part, unsigned shared)
        : b_(b), from_(cuts[part]), chunks_(cuts[part + 1] - from_), shared_(shared + part * PANEL * kLine) {
#pragma unroll
        for (int p = 0; p < PARTS; ++p) phases = max(phases, (cuts[p + 1] - cuts[p] + kPanelChunks - 1) / kPanelChunks);
    }
    __device__ int chunks() const { return chunks_; }
    __device__ void begin() const {
        for (int phase = 0; phase < kFirstPanels; ++phase) fetch(phase);
    }
    // Wait for a panel, and ask for one that takes the place of the panel before it.
    __device__ void await(int phase) const {
        wait_copies<WGMMA ? kFirstPanels - 1 : 0>();
#if WGMMA
        async_proxy_fence();
#endif
        __syncthreads();
        if (BUFFERS > 1) fetch(phase + kFirstPanels);
    }
    __device__ unsigned at(int phase) const { return shared_ + phase % BUFFERS * kBBytes; }
    // How many times 128 columns of the matrix the panel multiplies.
    __device__ int blocks(int phase) const { return min(kPanelChunks, chunks_ - phase * kPanelChunks) * kBlocks; }

  private:
    __device__ void fetch(int phase) const {
        const Count first = (Count(from_) + phase * kPanelChunks) * SPAN;
        if (phase < phases) fetch_b(at(phase), b_, first, Count(from_ + chunks_) * SPAN);
        commit_copies();
    }

    const Right& b_;
    int from_, chunks_;                    // of the matrix
    unsigned shared_;
};
