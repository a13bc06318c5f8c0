// epilogue: what happens to an accumulator before it is stored.
//
//   x   = alpha * row_scale[i] * column_scale[j] * acc + beta * c[i, j]
//   x  += row_bias[i] + column_bias[j]
//   aux = x
//   out = out_scale * activation(x)       relu: x > lower ? min(x, upper) : 0; NaN stays NaN
//
// Compiled with -DEPILOGUE=<bits below> and -DACTIVATION=<number below>; EPILOGUE 0 stores
// the accumulator as it is.  EpilogueParams is mirrored by kernels/epilogue.py.
#pragma once
#include "numeric.cuh"

enum EpilogueBits {
    kAlpha = 1, kC = 2, kRowScale = 4, kColumnScale = 8, kRowBias = 16, kColumnBias = 32,
    kActivation = 64, kOutScale = 128, kAux = 256,
};
enum Activation { kIdentity, kRelu, kRelu2, kGelu, kGeluTanh, kSilu };

struct EpilogueParams {
    double alpha, beta, lower, upper, out_scale;
    const void* c;
    long long c_row, c_column, c_batch;        // strides in elements
    void* aux;
    long long aux_row, aux_column, aux_batch;
    const void* row_scale;                     // vectors of `real` (float; double for float64)
    const void* column_scale;
    const void* row_bias;
    const void* column_bias;
};

// x * sigmoid(s).
inline float gated(float x, float s) { return __fdividef(x, 1.f + __expf(-s)); }
inline double gated(double x, double s) { return x / (1.0 + exp(-s)); }

// x times the normal distribution function of x.  The float version takes the complementary error
// function from a rational substitution with a relative error below 1.2e-7, without a branch.
// Source: Press et al., Numerical Recipes, erfcc.
inline float normal_gated(float x) {
    const float z = fabsf(x) * 0.70710678f, t = __fdividef(1.f, 1.f + 0.5f * z);
    float sum = 0.17087277f;
    sum = sum * t - 0.82215223f;
    sum = sum * t + 1.48851587f;
    sum = sum * t - 1.13520398f;
    sum = sum * t + 0.27886807f;
    sum = sum * t - 0.18628806f;
    sum = sum * t + 0.09678418f;
    sum = sum * t + 0.37409196f;
    sum = sum * t + 1.00002368f;
    sum = sum * t - 1.26551223f;
    const float half_tail = 0.5f * t * expf(sum - z * z);
    return x * (x < 0.f ? half_tail : 1.f - half_tail);
}
inline double normal_gated(double x) { return 0.5 * x * (1.0 + erf(x * 0.70710678118654752)); }

// (1 + tanh(y)) * half, by one instruction for tanh, whose relative error is 2^-11 (PTX ISA, tanh).
inline float half_gated(float half, float y) {
    asm("tanh.approx.f32 %0, %0;" : "+f"(y));
    return half * y + half;
}

// The gated activations for results of 16 bits or fewer.  Every instruction for each element costs half a percent of an
// 8192 x 8192 x 8192 product on Hopper, so these are short.  Positive results have a relative error below 8e-4,
// negative ones an error below 2.5e-4 * |x| + 2.7e-4.  The coefficients of gelu are a minimax fit; those of its tanh
// form are its definition.
template <int kind> float activate_roughly(float x) {
    const float half = 0.5f * x;
    if constexpr (kind == kGelu) return half_gated(half, x * (0.80015708f + 0.03470089f * (x * x)));
    if constexpr (kind == kGeluTanh) return half_gated(half, x * (0.79788456f + 0.03567741f * (x * x)));
    return half_gated(half, half);  // silu
}

// `rough`: the result is rounded to 16 bits or fewer.
template <int kind, bool rough, class Real> Real activate(Real x, Real lower, Real upper) {
    if constexpr (rough && (kind == kGelu || kind == kGeluTanh || kind == kSilu)) return activate_roughly<kind>(x);
    if constexpr (kind == kRelu) return x > lower ? min(x, upper) : (x == x ? Real(0) : x);
    if constexpr (kind == kRelu2) return x > Real(0) ? x * x : (x == x ? Real(0) : x);
    if constexpr (kind == kGelu) return normal_gated(x);
    // (1 + tanh(y)) / 2 is sigmoid(2 y).
    if constexpr (kind == kGeluTanh)
        return gated(x, x * (Real(1.5957691216057308) + Real(0.07135481627159645) * x * x));
    if constexpr (kind == kSilu) return gated(x, x);
    return x;
}

// The numbers of EpilogueParams in the type of the arithmetic, converted once for many elements.
template <class Real> struct EpilogueNumbers {
    Real alpha, beta, lower, upper, out_scale;

    explicit EpilogueNumbers(const EpilogueParams& p)
        : alpha(Real(p.alpha)), beta(Real(p.beta)), lower(Real(p.lower)), upper(Real(p.upper)),
          out_scale(Real(p.out_scale)) {}
};

// The scale and the bias of one row or one column, loaded once for many elements.
template <class Real> struct EpilogueTerms { Real scale = 1, bias = 0; };

template <int bits, class Real> EpilogueTerms<Real> row_terms(const EpilogueParams& p, long long row) {
    EpilogueTerms<Real> terms;
    if constexpr (bits & kRowScale) terms.scale = static_cast<const Real*>(p.row_scale)[row];
    if constexpr (bits & kRowBias) terms.bias = static_cast<const Real*>(p.row_bias)[row];
    return terms;
}
template <int bits, class Real> EpilogueTerms<Real> column_terms(const EpilogueParams& p, long long column) {
    EpilogueTerms<Real> terms;
    if constexpr (bits & kColumnScale) terms.scale = static_cast<const Real*>(p.column_scale)[column];
    if constexpr (bits & kColumnBias) terms.bias = static_cast<const Real*>(p.column_bias)[column];
    return terms;
}

// Returns what to store for accumulator `acc` of element (row, column) of product `batch`, which must
// be inside the result where c or aux is used.
template <Kind out, int bits, int activation, class Acc>
auto epilogue_value(Acc acc, const EpilogueParams& p, long long batch, long long row, long long column,
                    EpilogueTerms<typename Scalar<out>::real> of_row,
                    EpilogueTerms<typename Scalar<out>::real> of_column,
                    const EpilogueNumbers<typename Scalar<out>::real>& numbers) {
    using Out = Scalar<out>;
    if constexpr (bits == 0) {
        return acc;
    } else {
        using Real = typename Out::real;
        Real x = Real(acc);
        if constexpr (bits & kAlpha) x *= numbers.alpha;
        if constexpr (bits & kRowScale) x *= of_row.scale;
        if constexpr (bits & kColumnScale) x *= of_column.scale;
        if constexpr (bits & kC) {
            const auto* c = static_cast<const typename Out::type*>(p.c);
            x += numbers.beta * Real(Out::load(c[batch * p.c_batch + row * p.c_row + column * p.c_column]));
        }
        if constexpr (bits & kRowBias) x += of_row.bias;
        if constexpr (bits & kColumnBias) x += of_column.bias;
        if constexpr (bits & kAux) {
            auto* aux = static_cast<typename Out::type*>(p.aux);
            aux[batch * p.aux_batch + row * p.aux_row + column * p.aux_column] = Out::store(x);
        }
        constexpr bool rough = sizeof(typename Out::type) <= 2;
        if constexpr (bits & kActivation) x = activate<activation, rough>(x, numbers.lower, numbers.upper);
        if constexpr (bits & kOutScale) x *= numbers.out_scale;
        return x;
    }
}

// The same for an element on its own, in the type of the result.
template <Kind out, int bits, int activation, class Acc>
typename Scalar<out>::type epilogue(Acc acc, const EpilogueParams& p, long long batch, long long row,
                                    long long column) {
    using Real = typename Scalar<out>::real;
    return Scalar<out>::store(epilogue_value<out, bits, activation>(
        acc, p, batch, row, column, row_terms<bits, Real>(p, row), column_terms<bits, Real>(p, column),
        EpilogueNumbers<Real>(p)));
}
