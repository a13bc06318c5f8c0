// lanes: groups of four elements, several at a time in one machine word.
//
// A word is divided into lanes, one for each of several groups: lane j of word x[i] is element i of group j.  Elements
// of 1, 2 and 4 bytes share 32-bit words (with 4, 2 and 1 lanes), those of 8 bytes take 64-bit words.  A flag is the
// top bit of a lane; the bits below it are arbitrary.  With flags, a rule on a group is a few bitwise operations on
// all lanes at once, and nothing branches.
//
// Reference: reference.top_mask, reference.compress.  Codes: sparse24/_spec.py.
#pragma once
#include "numeric.cuh"

constexpr int bytes_of(Kind kind) {
    return kind == Kind::float64 ? 8 : kind == Kind::float32 ? 4
         : kind == Kind::float16 || kind == Kind::bfloat16 ? 2 : 1;
}

template <bool yes, class A, class B> struct Conditional { using type = A; };
template <class A, class B> struct Conditional<false, A, B> { using type = B; };
template <bool yes, class A, class B> using conditional = typename Conditional<yes, A, B>::type;

template <int BYTES> struct Lanes {
    using word = unsigned;
    static constexpr int count = 4 / BYTES;
    static constexpr word top = BYTES == 1 ? 0x80808080u : BYTES == 2 ? 0x80008000u : 0x80000000u;
};
template <> struct Lanes<8> {
    using word = unsigned long long;
    static constexpr int count = 1;
    static constexpr word top = 1ull << 63;
};

// Four bytes of a and b, as __byte_perm; in addition bit 3 of a selector digit asks for copies of the byte's top bit.
inline unsigned permute(unsigned a, unsigned b, unsigned selector) {
    unsigned out;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(selector));
    return out;
}

// Sets or clears all bits of each lane according to its flag.
template <int BYTES, class Word> Word fill(Word flags) {
    if constexpr (BYTES == 1) return permute(flags, 0, 0xba98);
    if constexpr (BYTES == 2) return permute(flags, 0, 0xbb99);
    if constexpr (BYTES == 4) return (Word)((int)flags >> 31);
    if constexpr (BYTES == 8) return (Word)((long long)flags >> 63);
}

// Lane-wise magnitude as an unsigned number, equal for all NaNs and above infinity for them.
// It leaves the top bit of the lane clear, but for int8, where -128 gives 128.
template <Kind kind, class Word> Word magnitude(Word x) {
    constexpr Word top = Lanes<bytes_of(kind)>::top;
    if constexpr (kind == Kind::float16) {
        return __vminu2(x & ~top, 0x7c017c01u);
    } else if constexpr (kind == Kind::bfloat16) {
        return __vminu2(x & ~top, 0x7f817f81u);
    } else if constexpr (kind == Kind::float32) {
        return min(x & ~top, 0x7f800001u);
    } else if constexpr (kind == Kind::float64) {
        return min(x & ~top, 0x7ff0000000000001ull);
    } else if constexpr (kind == Kind::int8) {
        const Word sign = fill<1>(x);
        return (x ^ sign) + (sign & 0x01010101u);
    } else if constexpr (kind == Kind::float8_e5m2) {
        const Word size = x & ~top;
        const Word nan = (size + 0x03030303u) & top;  // 0x7d, 0x7e, 0x7f become 0x7f
        return size | nan >> 6 | nan >> 7;
    } else {
        return x & ~top;  // e4m3fn has one NaN
    }
}

// Flag where x >= y, of two magnitudes.  No lane borrows from its neighbour.
template <Kind kind, class Word> Word at_least(Word x, Word y) {
    constexpr Word top = Lanes<bytes_of(kind)>::top;
    if constexpr (kind == Kind::int8) {
        const Word low = (x | top) - (y & ~top);
        return (x & ~y) | (~(x ^ y) & low);
    } else {
        return x + top - y;
    }
}

// Flag where a magnitude is not zero.
template <Kind kind, class Word> Word nonzero(Word size) {
    constexpr Word top = Lanes<bytes_of(kind)>::top;
    if constexpr (kind == Kind::int8) return size | ((size & ~top) + ~top);
    return size + ~top;
}

template <class Word> Word majority(Word a, Word b, Word c) { return (a & b) | (a & c) | (b & c); }

// Flags of the two best of four, which are those that beat at least two others.  `beats(i, j)` is called for
// i < j; it flags where element i goes before element j, and should do so for a tie.
template <class Word, class Beats> void best_two(Beats beats, Word (&keep)[4]) {
    const Word b01 = beats(0, 1), b02 = beats(0, 2), b03 = beats(0, 3);
    const Word b12 = beats(1, 2), b13 = beats(1, 3), b23 = beats(2, 3);
    keep[0] = majority(b01, b02, b03);
    keep[1] = majority(~b01, b12, b13);
    keep[2] = majority(~b02, ~b12, b23);
    keep[3] = majority(~b03, ~b13, ~b23);
}

// Flags of the two largest magnitudes, of equal ones those of lower index; a kept zero loses its flag.
template <Kind kind, class Word> void largest_two(const Word (&x)[4], Word (&keep)[4]) {
    Word size[4];
    for (int i = 0; i < 4; i++) size[i] = magnitude<kind>(x[i]);
    best_two([&](int i, int j) { return at_least<kind>(size[i], size[j]); }, keep);
    for (int i = 0; i < 4; i++) keep[i] &= nonzero<kind>(size[i]);
}

// Where there are more than two flags, leaves only the first and the last; returns flags of such groups.
template <class Word> Word drop_excess(Word (&keep)[4]) {
    const Word extra1 = keep[1] & keep[0] & (keep[2] | keep[3]);
    const Word extra2 = keep[2] & keep[3] & (keep[0] | keep[1]);
    keep[1] &= ~extra1;
    keep[2] &= ~extra2;
    return extra1 | extra2;
}

// The two stored elements of every group, for at most two flags.  What has no flag, as -0.0 should, becomes +0.0.
template <Kind kind, class Word>
void stored_pair(const Word (&x)[4], const Word (&keep)[4], Word& first, Word& second) {
    constexpr int bytes = bytes_of(kind);
    Word mask[4], y[4];
    for (int i = 0; i < 4; i++) mask[i] = fill<bytes>(keep[i]), y[i] = x[i] & mask[i];
    const Word upper = mask[0] | mask[1];
    first = y[0] | (y[1] & ~mask[0]) | (y[2] & ~upper);
    second = y[3] | (y[1] & mask[0]) | (y[2] & upper);
}

// Shifts each lane right and puts a flag on top: after n calls the first flag is in bit (lane width - n).
template <int BYTES, class Word> Word append(Word bits, Word flags) {
    constexpr Word top = Lanes<BYTES>::top;
    return (flags & top) | (bits >> 1 & ~top);
}

// Appends the four bits of the code of every group, for at most two flags.  The code has the two places
//   no flag: (0, 1);   only i < 3: (i, 3);   only 3: (0, 3);   two flags: their places.
template <int BYTES, class Word> Word append_code(Word bits, const Word (&keep)[4]) {
    const Word none_above = ~(keep[0] | keep[1]);
    bits = append<BYTES>(bits, keep[1] & ~keep[0]);                          // first: 1
    bits = append<BYTES>(bits, keep[2] & none_above);                        // first: 2
    bits = append<BYTES>(bits, ~(keep[2] & ~none_above));                    // second: 1 or 3
    bits = append<BYTES>(bits, keep[2] | keep[3] | (keep[0] ^ keep[1]));     // second: 2 or 3
    return bits;
}

// Turns four words of four bytes: byte j of out[i] is byte i of in[j].
inline void transpose_bytes(const unsigned (&in)[4], unsigned (&out)[4]) {
    const unsigned a = permute(in[0], in[1], 0x5140), b = permute(in[0], in[1], 0x7362);
    const unsigned c = permute(in[2], in[3], 0x5140), d = permute(in[2], in[3], 0x7362);
    out[0] = permute(a, c, 0x5410), out[1] = permute(a, c, 0x7632);
    out[2] = permute(b, d, 0x5410), out[3] = permute(b, d, 0x7632);
}
