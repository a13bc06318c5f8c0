// fixed_tile: the best mask of a 4x4 tile of 16-bit elements, as best_tile.cuh finds it, but by integers.
//
// If all 16 magnitudes of a tile are multiples of one unit, and less than 2^21 units, sums of up to eight of them are
// exact, in float32 as well.  So integers find the same mask.  The sum of the eight kept magnitudes has 24 bits, which
// leaves eight bits below it for the number of the mask.  So the largest of these integers holds the number of the best
// mask, and among equal sums that of the smallest mask.  The number of a mask is
//
//   choice = 36 (5 - p3) + 6 (5 - p2) + (5 - p1)
//
// where p1, p2 and p3 say which pair of columns rows 1, 2 and 3 keep (places in kPairMask); row 0 takes what the others
// leave.  5 - p is the sum of kColumnRank of the pair's columns, so each element brings its own part of the number.
//
// Other tiles are searched by a warp together, in float32: those with NaN or infinity, and those with a magnitude that is
// not zero, but small beside the largest.  Of normal bfloat16 numbers that is one tile in four hundred, of their squares,
// half of them set to zero as by squared relu, one in ten.
#pragma once
#include "best_tile.cuh"

constexpr int kChoices = 216, kOutside = 216;  // kOutside: a tile that does not exist
constexpr int kRowRank[4] = {0, 1, 6, 36}, kColumnRank[4] = {3, 2, 1, -1};

// What each choice does with the four rows and the four columns of a tile:
//
//   select[i]         bits 0-15   selector of `permute` that takes the pair of row i out of its eight bytes
//                     bits 16-31  the same for column i
//   byte i of codes   bits 0-3    code of row i
//                     bits 4-7    code of column i
struct TileChoices {
    unsigned select[kChoices + 1][4] = {}, codes[kChoices + 1] = {};
    unsigned char legal[96] = {};  // the 90 choices that are masks, in ascending order, and the last again
    unsigned pairs[96] = {};       // byte r: 6 r + p_r, which pair of row r a legal choice keeps

    constexpr TileChoices() {
        int count = 0;
        for (int i = 0; i < kChoices; i++) {
            const int p3 = 5 - i / 36, p2 = 5 - i / 6 % 6, p1 = 5 - i % 6;
            for (int p0 = 0; p0 < 6; p0++)
                if (column_use(p0, p1) + column_use(p2, p3) == 0xaa) {
                    set(i, p0, p1, p2, p3);
                    legal[count] = (unsigned char)i;
                    pairs[count++] = p0 | 6 + p1 << 8 | 12 + p2 << 16 | 18 + p3 << 24;
                }
        }
        for (; count < 96; count++) legal[count] = legal[89], pairs[count] = pairs[89];
        codes[kOutside] = 0x44444444u;
    }
    constexpr void set(int i, int p0, int p1, int p2, int p3) {
        const int pairs[4] = {p0, p1, p2, p3};
        int mask = 0;
        for (int r = 0; r < 4; r++) mask |= kPairMask[pairs[r]] << 4 * r;
        for (int r = 0; r < 4; r++) {
            int first = -1, second = 0;  // of column r
            for (int row = 0; row < 4; row++)
                if (mask >> (4 * row + r) & 1) first = first < 0 ? row : first, second = row;
            const int own_first = kPairFirst[pairs[r]], own_second = kPairSecond[pairs[r]];
            select[i][r] = selector(own_first, own_second) | selector(first, second) << 16;
            codes[i] |= (unsigned)(own_first | own_second << 2 | first << 4 | second << 6) << 8 * r;
        }
    }
    static constexpr unsigned selector(int first, int second) { return 0x1010 + first * 0x22 + second * 0x2200; }
};
__device__ constexpr TileChoices kTileChoices;

// Magnitudes of a word as floats.
template <Kind kind> void magnitudes(unsigned size, float& low, float& high) {
    if constexpr (kind == Kind::bfloat16) {
        low = __int_as_float(permute(size, 0, 0x1044)), high = __int_as_float(size & 0xffff0000u);
    } else {
        __half_raw half;
        half.x = (unsigned short)size, low = __half2float(__half(half));
        half.x = (unsigned short)(size >> 16), high = __half2float(__half(half));
    }
}

// x * scale, an integer of 21 bits, above a rank of eight: adding 2^23 puts it into the low bits.
inline unsigned ranked_integer(float x, float scale, int rank) {
    return ((unsigned)bits(__fmaf_rn(x, scale, 8388608.0f)) << 8) + rank;
}

// The magnitudes of a tile, four rows of two words, and the range they lie in.
template <Kind kind> struct Sizes {
    static constexpr bool brain = kind == Kind::bfloat16;
    static constexpr unsigned fraction = brain ? 7 : 10, infinity = brain ? 0x7f80 : 0x7c00;
    unsigned of[4][2], largest = 0, smallest = ~0u;

    Sizes(const unsigned (&word)[4][2]) {
        for (int r = 0; r < 4; r++)
            for (int h = 0; h < 2; h++) {
                of[r][h] = word[r][h] & 0x7fff7fffu;
                largest = __vmaxu2(largest, of[r][h]), smallest = __vminu2(smallest, of[r][h]);
            }
        largest = max(largest & 0xffffu, largest >> 16), smallest = min(smallest & 0xffffu, smallest >> 16);
    }
    unsigned exponent() const { return largest & infinity; }

    // Whether all are finite multiples of the unit, which is 2^-20 of the power of two in the largest one: zeros, and
    // what is at least `least`.
    bool are_integers() const {
        const unsigned least = max((int)exponent() - (int)((20 - fraction) << fraction), 0);
        // A bfloat16 below 2^-107 would need a scale above the largest float.
        const bool tiny = brain && largest - 1 < (20u << fraction) - 1;
        bool sure = largest < infinity && !tiny;
        if (smallest < least) {
            const unsigned add_least = 0x80008000u - least * 0x10001u;
            unsigned lost = 0;  // flags of magnitudes that are neither
            for (int r = 0; r < 4; r++)
                for (int h = 0; h < 2; h++) lost |= (of[r][h] + 0x7fff7fffu) & ~(of[r][h] + add_least);
            sure = sure && !(lost & 0x80008000u);
        }
        return sure;
    }
    // What makes integers of them.
    float scale() const { return __int_as_float((brain ? 0x89000000u : 0x51000000u) - (exponent() << (23 - fraction))); }
};

// The choice for a tile of four rows of two words; `sure` says whether it is the best.
template <Kind kind> unsigned choose_tile(const unsigned (&word)[4][2], bool& sure) {
    const Sizes<kind> size(word);
    sure = size.are_integers();

    const float scale = size.scale();
    unsigned fixed[4][4], pair[4][6];
    for (int r = 0; r < 4; r++) {
        for (int h = 0; h < 2; h++) {
            float low, high;
            magnitudes<kind>(size.of[r][h], low, high);
            fixed[r][2 * h] = ranked_integer(low, scale, kRowRank[r] * kColumnRank[2 * h]);
            fixed[r][2 * h + 1] = ranked_integer(high, scale, kRowRank[r] * kColumnRank[2 * h + 1]);
        }
        for (int p = 0; p < 6; p++) pair[r][p] = fixed[r][kPairFirst[p]] + fixed[r][kPairSecond[p]];
    }
    unsigned upper[36], lower[36], best = 0;  // of each class; see best_tile.cuh
#pragma unroll
    for (int i = 0; i < 36; i++) {
        const int home = kClasses.own[i];
        upper[home] = home == i ? pair[0][i % 6] + pair[1][i / 6] : max(pair[0][i % 6] + pair[1][i / 6], upper[home]);
        lower[home] = home == i ? pair[2][i % 6] + pair[3][i / 6] : max(pair[2][i % 6] + pair[3][i / 6], lower[home]);
    }
#pragma unroll
    for (int i = 0; i < 36; i++)
        if (kClasses.own[i] == i) best = max(upper[i] + lower[kClasses.partner[i]], best);
    return best & 255u;
}

// A lane's part of a search in float32, which finds the choice for any tile: lane 6 r + p sums pair p of row r, and then
// every lane compares three of the masks.
template <Kind kind> class JointSearch {
    int first, second;      // of the pair, in the tile
    unsigned pairs[3];      // of the masks; see TileChoices
    unsigned choices = 0;   // their numbers, a byte for each, in ascending order

    // Elements of pairs as hexadecimal digits, from the lowest on.
    static constexpr unsigned digits(const int (&elements)[6]) {
        unsigned all = 0;
        for (int p = 0; p < 6; p++) all |= (unsigned)elements[p] << 4 * p;
        return all;
    }
    static float magnitude_of(unsigned short element) {
        float x, unused;
        magnitudes<kind>(element & 0x7fffu, x, unused);
        return x != x ? sixteenth_of_most() : x;
    }

public:
    JointSearch(const unsigned* all_pairs, const unsigned char* legal) {
        const int lane = threadIdx.x & 31, row = lane / 6 & 3, pair = lane % 6 * 4;
        first = 4 * row + (digits(kPairFirst) >> pair & 3), second = 4 * row + (digits(kPairSecond) >> pair & 3);
        for (int i = 0; i < 3; i++) pairs[i] = all_pairs[lane + 32 * i], choices |= legal[lane + 32 * i] << 8 * i;
    }

    // All lanes pass the same 16 elements.
    unsigned choice(const unsigned short* tile) const {
        const float sum = add(magnitude_of(tile[first]), magnitude_of(tile[second]));
        int most = -1;
        unsigned mine = 0;
#pragma unroll
        for (int i = 0; i < 3; i++) {
            float row[4];
            for (int r = 0; r < 4; r++) row[r] = __shfl_sync(~0u, sum, pairs[i] >> 8 * r);  // of 32: the low bits count
            const int total = bits(add(add(row[0], row[1]), add(row[2], row[3])));
            if (total >= most) most = total, mine = choices >> 8 * i & 255;
        }
        return __reduce_max_sync(~0u, __reduce_max_sync(~0u, most) == most ? mine : 0u);
    }
};
