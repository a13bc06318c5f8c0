// split_pieces: float32 numbers as bfloat16 pieces in registers, the operands of mma.sp.
//
// x = p1 + p2 + p3 with eight significant bits each, as in sparse_split.cu: p1 is truncated, so that it cannot
// overflow, and p2 is rounded.  Six products of pieces make up one of float32.  Those of a second and a third piece, and
// of two third ones, are left out: each is at most 2^-23 of it.  Small ones come first, because tensor cores truncate
// their sums:
//
//   term   0    1    2    3    4    5
//   A      p1   p3   p2   p1   p2   p1
//   b      q3   q1   q2   q2   q1   q1
//
// An infinity leaves NaN to its other pieces, and would meet zeros, so a sum with infinities or NaN becomes NaN.  With
// CAREFUL they take part in the last term alone, as leading pieces that meet leading pieces.
#pragma once
#include "mma_sp.cuh"

constexpr int kTerms = 6;
using Fragment = unsigned[4];  // register i holds two neighbours along k

// x - y with subnormal numbers, which -ftz=true, CuPy's option, would flush in a C++ subtraction.
inline float minus(float x, float y) {
    float difference;
    asm("sub.rn.f32 %0, %1, %2;" : "=f"(difference) : "f"(x), "f"(y));
    return difference;
}
inline float upper_half(float x) { return __uint_as_float(__float_as_uint(x) & 0xffff0000u); }
inline unsigned upper_halves(float low, float high) {
    return __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x7632);
}
// Both rounded to bfloat16, the first one in the lower half.
inline unsigned rounded(float low, float high) {
    unsigned both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
inline bool is_finite(float x) { return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u; }
// A NaN that its upper half tells from an infinity.
inline float upper_nan(float x) { return x != x ? __uint_as_float(0x7fffffffu) : x; }

template <bool CAREFUL> struct Pieces {
    Fragment first, second, third;
    Fragment last;  // with CAREFUL: of term 5

    void set(int i, float x, float y) {
        if constexpr (CAREFUL) {
            last[i] = upper_halves(upper_nan(x), upper_nan(y));
            x = is_finite(x) ? x : 0.0f, y = is_finite(y) ? y : 0.0f;
        }
        first[i] = upper_halves(x, y);
        const float x_rest = minus(x, upper_half(x)), y_rest = minus(y, upper_half(y));
        second[i] = rounded(x_rest, y_rest);
        third[i] = upper_halves(minus(x_rest, __uint_as_float(second[i] << 16)),
                                minus(y_rest, upper_half(__uint_as_float(second[i]))));
    }
    // The pieces of a term, as operand A or b.
    const Fragment& of_a(int term) const { return term == 1 ? third : term == 2 || term == 4 ? second : leading(term); }
    const Fragment& of_b(int term) const { return term == 0 ? third : term == 2 || term == 3 ? second : leading(term); }

  private:
    const Fragment& leading(int term) const { return CAREFUL && term == kTerms - 1 ? last : first; }
};
