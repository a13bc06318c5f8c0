// square: a thread's 8 x 8 elements of 16 bits, four tiles, and the best masks of these, for transposable.cu.
//
// The tiles are chosen by integers (fixed_tile.cuh).  A warp that holds some for which these do not suffice searches
// them in float32, one after the other, all lanes together.
//
// Macros: SQUARED; expects `kind`.
#pragma once
#include "fixed_tile.cuh"
#include "word_pair.cuh"

// Both elements of a word as they are packed.
unsigned activated(unsigned word) { return SQUARED ? word_of(squared_relu(pair_of(word))) : word; }

constexpr int kWarps = 8;  // of a block

// What the warps of a block choose with, in shared memory: the tables of fixed_tile.cuh, and tiles that wait to be
// searched, one of each lane at most.
struct Tables {
    uint4 select[kChoices + 1];
    unsigned codes[kChoices + 1], pairs[96];
    unsigned char legal[96];
    alignas(8) unsigned short waiting[kWarps][32][16];

    void fill() {
        for (int i = threadIdx.x; i <= kChoices; i += blockDim.x) {
            select[i] = *(const uint4*)kTileChoices.select[i];
            codes[i] = kTileChoices.codes[i];
            if (i < 96) legal[i] = kTileChoices.legal[i], pairs[i] = kTileChoices.pairs[i];
        }
    }
};

// A thread's elements, four tiles: left above, right above, left below, right below.
struct Square {
    int row, column;  // of its corner in the matrix
    bool whole;       // all of it is inside
    unsigned words[8][4];
    unsigned choices;   // a byte for each tile
    unsigned searched;  // a bit for each tile that was searched in float32, because integers could not

    // Reads its rows of the matrix at `x`, and chooses the masks.  The tables are filled while the loads are in flight.
    Square(const char* x, long long x_row, int top, int left, int m, int k, Tables& tables) {
        const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
        row = top + 32 * (warp >> 1) + 8 * (lane >> 3), column = left + 64 * (warp & 1) + 8 * (lane & 7);
        whole = row + 8 <= m && column + 8 <= k;
        load(x + row * x_row + column * 2ll, x_row, m - row, k - column);
        tables.fill();
        __syncthreads();

        choices = searched = 0;
#pragma unroll
        for (int t = 0; t < 4; t++) {
            const int r = t / 2 * 4, w = t % 2 * 2;
            const unsigned tile[4][2] = {{words[r][w], words[r][w + 1]}, {words[r + 1][w], words[r + 1][w + 1]},
                                         {words[r + 2][w], words[r + 2][w + 1]},
                                         {words[r + 3][w], words[r + 3][w + 1]}};
            bool sure;
            const unsigned choice = choose_tile<kind>(tile, sure);
            choices |= (row + r < m && column + 2 * w < k ? choice : kOutside) << 8 * t;
            searched |= (unsigned)!sure << t;
        }
        if (__any_sync(~0u, searched)) {
            const JointSearch<kind> search(tables.pairs, tables.legal);
#pragma unroll
            for (int t = 0; t < 4; t++) search_jointly(t, search, tables.waiting[warp]);
        }
    }

    // The whole warp searches tile t of those lanes that are not sure of it, one after the other.
    void search_jointly(int t, const JointSearch<kind>& search, unsigned short (&waiting)[32][16]) {
        const bool mine = searched >> t & 1;
        const unsigned lanes = __ballot_sync(~0u, mine);
        const int place = __popc(lanes & (1u << (threadIdx.x & 31)) - 1);
        if (mine) {
            for (int r = 0; r < 4; r++) {
                const unsigned* word = words[t / 2 * 4 + r] + t % 2 * 2;
                *(uint2*)&waiting[place][4 * r] = make_uint2(word[0], word[1]);
            }
            choices &= ~(255u << 8 * t);
        }
        __syncwarp();
        for (int i = 0; i < __popc(lanes); i++) {
            const unsigned choice = search.choice(waiting[i]);
            if (mine && i == place) choices |= choice << 8 * t;
        }
        __syncwarp();
    }

    // `rows` and `columns`, multiples of four, exist.
    void load(const char* at, long long row_stride, int rows, int columns) {
        uint4 eight[8] = {};
        if (whole) {
#pragma unroll
            for (int r = 0; r < 8; r++) eight[r] = __ldg((const uint4*)(at + r * row_stride));
        } else {
            for (int r = 0; r < 8; r++) {
                if (r >= rows || columns <= 0) continue;
                const uint2 *source = (const uint2*)(at + r * row_stride), four = __ldg(source);
                const uint2 next = columns < 8 ? uint2{} : __ldg(source + 1);
                eight[r] = make_uint4(four.x, four.y, next.x, next.y);
            }
        }
        for (int r = 0; r < 8; r++) {
            words[r][0] = activated(eight[r].x), words[r][1] = activated(eight[r].y);
            words[r][2] = activated(eight[r].z), words[r][3] = activated(eight[r].w);
        }
    }

    // -0.0 becomes +0.0.  Adding zero does that in one instruction, but would change NaNs; a tile with a NaN is never
    // searched by integers.
    void drop_minus_zeros() {
        if (searched) {
            for (int i = 0; i < 32; i++) {
                unsigned& word = words[i / 4][i % 4];
                word &= fill<2>(nonzero<kind>(word & 0x7fff7fffu));
            }
        } else {
            for (int i = 0; i < 32; i++) {
                unsigned& word = words[i / 4][i % 4];
                word = word_of(__hadd2(pair_of(word), Pair{}));
            }
        }
    }
};
