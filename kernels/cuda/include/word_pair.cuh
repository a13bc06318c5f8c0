// word_pair: both 16-bit elements of a word at once, and their relu.
//
// Expects `kind`, float16 or bfloat16.
#pragma once
#include "lanes.cuh"

using Pair = conditional<kind == Kind::bfloat16, __nv_bfloat162, __half2>;
inline Pair pair_of(unsigned word) { return reinterpret_cast<const Pair&>(word); }
inline unsigned word_of(Pair pair) { return reinterpret_cast<const unsigned&>(pair); }

// Every NaN in the result has the bits 0x7fff.
inline Pair relu(Pair x) { return __hmax2_nan(x, Pair{}); }

// The square of a 16-bit element is exact in float32, or too small for bfloat16, so one 16-bit multiplication rounds it
// as float32 arithmetic would.
inline Pair squared_relu(Pair x) { return __hmul2(relu(x), relu(x)); }
