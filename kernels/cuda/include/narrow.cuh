// narrow: double to float and back, subnormal numbers included.
//
// By PTX, because CuPy compiles with -ftz=true, which makes conversions in C++ flush them to zero.
// Source: PTX ISA, cvt.
#pragma once

inline float narrow(double x) {
    float y;
    asm("cvt.rn.f32.f64 %0, %1;" : "=f"(y) : "d"(x));
    return y;
}
inline float narrow_toward_zero(double x) {
    float y;
    asm("cvt.rz.f32.f64 %0, %1;" : "=f"(y) : "d"(x));
    return y;
}
inline double widen(float x) {
    double y;
    asm("cvt.f64.f32 %0, %1;" : "=d"(y) : "f"(x));
    return y;
}
// For code of several types.
inline float narrow(float x) { return x; }
inline float narrow(int x) { return (float)x; }
