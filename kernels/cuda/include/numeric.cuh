// numeric: the element types, and their conversion to and from the type of the arithmetic.
//
// A kernel is compiled with -DELEMENT=<name> and -DOUTPUT=<name>, names as in
// sparse24/_dtypes.py, and says Scalar<Kind::ELEMENT>.
//
//   type    an element in memory
//   real    the type in which an epilogue computes
//   load    exact: float, double, or int for integers
//   store   rounds to nearest, ties to even; integers and fp8 saturate; NaN becomes the integer 0
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

enum class Kind { float16, bfloat16, float32, float64, int8, int32, float8_e4m3fn, float8_e5m2 };

template <Kind> struct Scalar;

template <> struct Scalar<Kind::float16> {
    using type = __half;
    using real = float;
    static float load(type x) { return __half2float(x); }
    static type store(float x) { return __float2half_rn(x); }
};
template <> struct Scalar<Kind::bfloat16> {
    using type = __nv_bfloat16;
    using real = float;
    static float load(type x) { return __bfloat162float(x); }
    static type store(float x) { return __float2bfloat16_rn(x); }
};
template <> struct Scalar<Kind::float32> {
    using type = float;
    using real = float;
    static float load(type x) { return x; }
    static type store(float x) { return x; }
};
template <> struct Scalar<Kind::float64> {
    using type = double;
    using real = double;
    static double load(type x) { return x; }
    static type store(double x) { return x; }
};
template <> struct Scalar<Kind::int8> {
    using type = signed char;
    using real = float;
    static int load(type x) { return x; }
    static type store(float x) { return (type)max(-128, min(127, __float2int_rn(x))); }
    static type store(int x) { return (type)max(-128, min(127, x)); }
};
template <> struct Scalar<Kind::int32> {
    using type = int;
    using real = float;
    static int load(type x) { return x; }
    static type store(float x) { return __float2int_rn(x); }
    static type store(int x) { return x; }
};
template <> struct Scalar<Kind::float8_e4m3fn> {
    using type = __nv_fp8_e4m3;
    using real = float;
    static float load(type x) { return float(x); }
    static type store(float x) { type y; y.__x = __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3); return y; }
};
template <> struct Scalar<Kind::float8_e5m2> {
    using type = __nv_fp8_e5m2;
    using real = float;
    static float load(type x) { return float(x); }
    static type store(float x) { type y; y.__x = __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2); return y; }
};
