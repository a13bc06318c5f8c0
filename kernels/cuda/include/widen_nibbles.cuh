// widen_nibbles: two integers of 4 bits, nibbles p and p + 4 of a word, as a pair of 16-bit floats.  Exact.
//
//   float16    0x640u is 1024 + u, and u = q ^ 8 is q + 8, so that 1032 (0x6408) is to be subtracted
//   bfloat16   0x430u is 128 + u; 136 (0x4308)
//
// The exclusive or with what is subtracted sets the exponent and flips the sign bit of q at once.
#pragma once
#include "widen_bytes.cuh"

template <Kind to, int p> unsigned widen_nibbles(unsigned word) {
    static_assert(to == Kind::float16 || to == Kind::bfloat16);
    constexpr unsigned biased_zero = to == Kind::float16 ? 0x64086408 : 0x43084308;
    const unsigned biased = word >> 4 * p & 0x000f000f ^ biased_zero;
    return to == Kind::float16 ? subtract_halves(biased, biased_zero) : subtract_bfloats(biased, biased_zero);
}
