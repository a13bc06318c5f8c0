// widen_bytes: four 8-bit elements, the bytes of a word, as two pairs of 16-bit ones.  Exact, NaN and infinities included.
//
//   int8 to float16    0x64bb is 1024 + b; with the sign bit of x flipped, b is x + 128
//   int8 to bfloat16   0x43bb is 128 + b for 7 bits of b; what is to be subtracted, 128 or 256, is the same with the
//                      sign bit alone
//   fp8                by the conversion of sm_89 to float16, and from there by float32 to bfloat16
#pragma once
#include "numeric.cuh"

inline unsigned subtract_halves(unsigned x, unsigned y) {
    unsigned z;
    asm("sub.f16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
    return z;
}
inline unsigned subtract_bfloats(unsigned x, unsigned y) {
    unsigned z;
    asm("sub.bf16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
    return z;
}
template <Kind from> unsigned float8_to_halves(unsigned pair) {
    unsigned z;
    if constexpr (from == Kind::float8_e4m3fn)
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(z) : "h"((unsigned short)pair));
    else asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(z) : "h"((unsigned short)pair));
    return z;
}
inline unsigned halves_to_bfloats(unsigned pair) {
    const float2 x = __half22float2(reinterpret_cast<const __half2&>(pair));
    const __nv_bfloat162 y = __float22bfloat162_rn(x);
    return reinterpret_cast<const unsigned&>(y);
}

// Bytes 0 and 1 (`high` false), or 2 and 3.
template <Kind from, Kind to, bool high> unsigned widen_pair(unsigned word) {
    static_assert(to == Kind::float16 || to == Kind::bfloat16);
    constexpr unsigned selector = high ? 0x4342 : 0x4140;  // a byte of the constant above each one
    if constexpr (from != Kind::int8) {
        const unsigned halves = float8_to_halves<from>(high ? word >> 16 : word);
        return to == Kind::float16 ? halves : halves_to_bfloats(halves);
    } else if constexpr (to == Kind::float16) {
        return subtract_halves(__byte_perm(word ^ 0x80808080, 0x64646464, selector), 0x64806480);
    } else {
        const unsigned biased = __byte_perm(word, 0x43434343, selector);
        return subtract_bfloats(biased & 0xff7fff7f, biased & 0xff80ff80);
    }
}
