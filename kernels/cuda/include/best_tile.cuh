// best_tile: the best of the 90 masks of a 4x4 tile that keep two in every row and column.
//
// A mask is four pairs of columns, one for each row.  Rows 0 and 1 together use every column 0, 1 or
// 2 times, and rows 2 and 3 must use it 2, 1 or 0 times.  So the 36 choices of the upper rows fall
// into 19 classes of equal use, and only the best of each can be part of the best mask: 36 + 36 sums
// of two rows and 36 totals replace 90 sums of four.  Rounding is monotonic, so this also finds the
// largest *rounded* total, which defines the mask: reference.transposable_mask.
//
// Sums of magnitudes are not negative, hence their bits compare as integers.
#pragma once
#include "lanes.cuh"
#include "subnormals.cuh"

// The pairs of a row in the order of their masks 0011, 0101, 0110, 1001, 1010, 1100.
constexpr int kPairMask[6] = {3, 5, 6, 9, 10, 12};
constexpr int kPairFirst[6] = {0, 0, 1, 0, 1, 2}, kPairSecond[6] = {1, 2, 2, 3, 3, 3};
constexpr int kScratch = 52;  // words of a thread; 48 are used, but 52 give 16-byte accesses without bank conflicts

// Use of the four columns by two pairs, two bits each.
constexpr int column_use(int p, int q) {
    int use = 0;
    for (int c = 0; c < 4; c++) use |= ((kPairMask[p] >> c & 1) + (kPairMask[q] >> c & 1)) << 2 * c;
    return use;
}
// The class of a pair of pairs: the smallest 6 q + p of equal use; -1 where use is not `wanted`.
constexpr int class_of_use(int wanted) {
    for (int q = 0; q < 6; q++)
        for (int p = 0; p < 6; p++)
            if (column_use(p, q) == wanted) return 6 * q + p;
    return -1;
}
constexpr int class_of(int p, int q) { return class_of_use(column_use(p, q)); }
constexpr int partner_class(int p, int q) { return class_of_use(0xaa - column_use(p, q)); }

struct ClassTable {
    signed char own[36] = {}, partner[36] = {};
    constexpr ClassTable() {
        for (int i = 0; i < 36; i++) own[i] = class_of(i % 6, i / 6), partner[i] = partner_class(i % 6, i / 6);
    }
};
constexpr ClassTable kClasses;

inline int bits(float x) { return __float_as_int(x); }

// The upper rows that fit a choice of the lower rows, 6 p3 + p2.
struct UpperRows {
    unsigned char mask, small, large, p0, p1, many, unused[2];

    // mask: of rows 2 and 3; small, large: the first and the last mask of rows 0 and 1 that fits; p0, p1: the pairs
    // of `small`; many: six fit, otherwise one or two.
    void find(int lower) {
        const int p2 = lower % 6, p3 = lower / 6, wanted = 0xaa - column_use(p2, p3);
        int found = 0, first = 0, last = 0;
#pragma unroll 1
        for (int i = 0; i < 36; i++) {
            if (column_use(i % 6, i / 6) != wanted) continue;
            last = i;
            if (found++ == 0) first = i;
        }
        small = (unsigned char)(kPairMask[first % 6] | kPairMask[first / 6] << 4);
        large = (unsigned char)(kPairMask[last % 6] | kPairMask[last / 6] << 4);
        p0 = (unsigned char)(first % 6), p1 = (unsigned char)(first / 6);
        mask = (unsigned char)(kPairMask[p2] | kPairMask[p3] << 4);
        many = found > 2;
    }
};

// Sums of the pairs of a row.
inline void sum_pairs(const float (&row)[4], float (&pair)[6]) {
#pragma unroll
    for (int p = 0; p < 6; p++) pair[p] = add(row[kPairFirst[p]], row[kPairSecond[p]]);
}

// What a thread keeps in memory, as it is indexed at run time: the totals of all choices of the lower rows, 6 p3 + p2,
// and the pairs of rows 0 and 1.  A barrier before these are read keeps them out of registers.
struct TileScratch {
    float* words;

    // Twelve words from 12 `twelfth` on: three 16-byte accesses.
    void store(int twelfth, const float (&x)[12]) const {
#pragma unroll
        for (int i = 0; i < 12; i += 4)
            ((float4*)words)[3 * twelfth + i / 4] = make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
    }
    float total(int p2, int p3) const { return words[6 * p3 + p2]; }
    const float* upper_pairs() const { return words + 36; }
    void load_upper_pairs(float (&pair)[12]) const {
#pragma unroll
        for (int i = 0; i < 3; i++) {
            const float4 four = ((const float4*)words)[9 + i];
            pair[4 * i] = four.x, pair[4 * i + 1] = four.y, pair[4 * i + 2] = four.z, pair[4 * i + 3] = four.w;
        }
    }
};

// Of each class, at its smallest member, the largest sum of rows 0 and 1.
inline void best_of_classes(const float (&row0)[6], const float (&row1)[6], float (&top)[36]) {
#pragma unroll
    for (int i = 0; i < 36; i++) {
        const float sum = add(row0[i % 6], row1[i / 6]);
        const int home = kClasses.own[i];
        top[home] = home == i ? sum : __int_as_float(max(bits(top[home]), bits(sum)));
    }
}

// The largest total of all masks, as bits, and in `best` that of those with pair p3 in row 3.
inline int largest_total(const float (&top)[36], const float (&row2)[6], const float (&row3)[6],
                         const TileScratch& scratch, int (&best)[6]) {
    int most = 0;
#pragma unroll
    for (int third = 0; third < 3; third++) {
        float total[12];
#pragma unroll
        for (int i = 0; i < 12; i++) {
            const int p3 = 2 * third + i / 6, p2 = i % 6;
            total[i] = add(top[kClasses.partner[6 * p3 + p2]], add(row2[p2], row3[p3]));
            best[p3] = p2 ? max(best[p3], bits(total[i])) : bits(total[i]);
        }
        most = max(most, max(best[2 * third], best[2 * third + 1]));
        scratch.store(third, total);
    }
    return most;
}

// The smallest mask of rows 0 and 1 that gives the total `most` with lower rows of sum `lower`.
inline unsigned smallest_upper(const TileScratch& scratch, const UpperRows& fitting, float lower, int most) {
    const float* pair = scratch.upper_pairs();
    const float smaller = add(pair[fitting.p0], pair[6 + fitting.p1]);
    float again[12];
    scratch.load_upper_pairs(again);
    unsigned of_six = 0;
#pragma unroll
    for (int q = 5; q >= 0; q--)  // six fit where each column is used once: complements
        if (bits(add(add(again[5 - q], again[6 + q]), lower)) == most) of_six = kPairMask[5 - q] | kPairMask[q] << 4;
    const unsigned of_few = bits(add(smaller, lower)) == most ? fitting.small : fitting.large;
    return fitting.many ? of_six : of_few;
}

// The mask, bit 4 row + column, for magnitudes without NaN: of the largest total, the smallest, row 3 first, then 2,
// then 1 and 0.  `memory` is this thread's own.
inline unsigned best_tile(const float (&x)[4][4], float* memory, const UpperRows* upper) {
    const TileScratch scratch{memory};
    float pair[4][6], top[36];
#pragma unroll
    for (int r = 0; r < 4; r++) sum_pairs(x[r], pair[r]);
    best_of_classes(pair[0], pair[1], top);
    const float upper_pairs[12] = {pair[0][0], pair[0][1], pair[0][2], pair[0][3], pair[0][4], pair[0][5],
                                   pair[1][0], pair[1][1], pair[1][2], pair[1][3], pair[1][4], pair[1][5]};
    scratch.store(3, upper_pairs);
    int best[6];
    const int most = largest_total(top, pair[2], pair[3], scratch, best);

    int p3 = 5, p2 = 5;
    float row3 = pair[3][5], row2 = pair[2][5];
#pragma unroll
    for (int p = 4; p >= 0; p--)
        if (best[p] == most) p3 = p, row3 = pair[3][p];
#pragma unroll
    for (int p = 4; p >= 0; p--)
        if (bits(scratch.total(p, p3)) == most) p2 = p, row2 = pair[2][p];
    const UpperRows fitting = upper[6 * p3 + p2];
    const float lower = add(row2, row3);
    asm volatile("" ::: "memory");
    return smallest_upper(scratch, fitting, lower, most) | fitting.mask << 8;
}

// A magnitude that stands for NaN: sixteen of them do not overflow.
inline float sixteenth_of_most() { return __int_as_float(0x7d7fffff); }

// best_tile where NaN may be; says whether there was one.
inline unsigned best_tile_or_nan(float (&x)[4][4], float* scratch, const UpperRows* upper, bool& nan) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 16; i++) sum = add(sum, x[i / 4][i % 4]);
    nan = (bits(sum) & 0x7fffffff) > 0x7f800000;
    if (nan)
        for (int i = 0; i < 16; i++)
            if ((bits(x[i / 4][i % 4]) & 0x7fffffff) > 0x7f800000) x[i / 4][i % 4] = sixteenth_of_most();
    return best_tile(x, scratch, upper);
}
