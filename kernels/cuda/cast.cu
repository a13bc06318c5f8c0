// cast: convert a matrix of one element type to another, row by row.
//
//   x   [rows, columns]  ELEMENT, any row pitch   (read)
//   out [rows, columns]  OUTPUT, any row pitch    (written)
//
// A thread converts VECTOR neighbours of a row, which it moves at once: up to 16 bytes, where rows begin on as many.
//
// Rounds to nearest even, once; integers and fp8 saturate.  Types narrower than float32 are made of float32, to which a
// float64 element is rounded to odd before.
//
// Macros: ELEMENT OUTPUT VECTOR.
//
// Reference: reference.to_dtype.  Launcher: kernels/cast.py.
#include "narrow.cuh"
#include "numeric.cuh"

using Element = Scalar<Kind::ELEMENT>;
using Output = Scalar<Kind::OUTPUT>;

// A second rounding, to at least two bits less, then gives what one rounding would give.
//
// Source: Boldo and Melquiond, "When double rounding is odd", 2004.
__device__ float to_odd(double x) {
    const float cut = narrow_toward_zero(x);
    const bool exact = widen(cut) == x || x != x;
    return exact ? cut : __int_as_float(__float_as_int(cut) | 1);
}

// Subnormal numbers included (narrow.cuh).
__device__ double wide(float x) { return widen(x); }
__device__ double wide(double x) { return x; }
__device__ double wide(int x) { return x; }

template <class Value>
__device__ typename Output::real before_rounding(Value x) {
    constexpr bool from_double = sizeof(Value) == sizeof(double);
    if constexpr (from_double && sizeof(Output::type) < sizeof(float)) return to_odd(x);
    else if constexpr (from_double && sizeof(typename Output::real) == sizeof(float)) return narrow(x);
    else if constexpr (sizeof(typename Output::real) == sizeof(double)) return wide(x);
    else return typename Output::real(x);
}

template <class Value> struct alignas(VECTOR * sizeof(Value)) Neighbours { Value of[VECTOR]; };

__device__ Output::type converted(Element::type x) { return Output::store(before_rounding(Element::load(x))); }

__device__ void convert(const Element::type* from, Output::type* to, long long left) {
    if (left < VECTOR) {
        for (int i = 0; i < left; ++i) to[i] = converted(from[i]);
        return;
    }
    const auto x = *reinterpret_cast<const Neighbours<Element::type>*>(from);
    Neighbours<Output::type> y;
#pragma unroll
    for (int i = 0; i < VECTOR; ++i) y.of[i] = converted(x.of[i]);
    *reinterpret_cast<Neighbours<Output::type>*>(to) = y;
}

extern "C" __global__ void __launch_bounds__(256) cast(
    const Element::type* x, long long x_pitch, Output::type* out, long long out_pitch,
    long long rows, long long columns) {
    const long long parts = (columns + VECTOR - 1) / VECTOR, step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < rows * parts; i += step) {
        const long long row = i / parts, column = i % parts * VECTOR;
        convert(x + row * x_pitch + column, out + row * out_pitch + column, columns - column);
    }
}
