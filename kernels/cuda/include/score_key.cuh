// score_key: a score as an integer of the same order; -0.0 equals 0.0, NaN ranks above infinity.
//
// The bits of positive numbers are in order as signed integers already.  Those of negative ones are in the opposite
// order, so all of their bits but the sign are inverted.
#pragma once

inline long long score_key(double x) {
    const long long bits = x == 0 ? 0 : __double_as_longlong(x);
    return x == x ? bits ^ (bits >> 63 & 0x7fffffffffffffffll) : 0x7fffffffffffffffll;
}
inline int score_key(float x) {
    const int bits = __float_as_int(x) << 1 ? __float_as_int(x) : 0;  // with -ftz=true, x == 0 is true for subnormal x
    return x == x ? bits ^ (bits >> 31 & 0x7fffffff) : 0x7fffffff;
}
