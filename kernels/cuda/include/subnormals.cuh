// subnormals: float arithmetic that keeps subnormal numbers, each result rounded once.
//
// By PTX, because CuPy compiles with -ftz=true, which makes the operators of C++ flush them to zero.
// Source: PTX ISA, add, mul, fma and sqrt.
#pragma once

inline float add(float a, float b) {
    float out;
    asm("add.rn.f32 %0, %1, %2;" : "=f"(out) : "f"(a), "f"(b));
    return out;
}
inline float multiply(float a, float b) {
    float out;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(out) : "f"(a), "f"(b));
    return out;
}
inline float multiply_add(float a, float b, float c) {
    float out;
    asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(out) : "f"(a), "f"(b), "f"(c));
    return out;
}
inline float root(float x) {
    float out;
    asm("sqrt.rn.f32 %0, %1;" : "=f"(out) : "f"(x));
    return out;
}
// For code of several types.
inline double multiply(double a, double b) { return a * b; }
inline double multiply_add(double a, double b, double c) { return fma(a, b, c); }
inline double root(double x) { return sqrt(x); }
