// epilogue: what happens to an accumulator before it is stored.
//
//   x   = alpha * row_scale[i] * column_scale[j] * acc + beta * c[i, j]
//   x  += row_bias[i] + column_bias[j]
//   aux = x
//   out = out_scale * activation(x)
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

template <int kind, class Real> Real activate(Real x, Real lower, Real upper) {
    if constexpr (kind == kRelu) return x > lower ? min(x, upper) : (x == x ? Real(0) : x);
    if constexpr (kind == kRelu2) return x > Real(0) ? x * x : (x == x ? Real(0) : x);
    if constexpr (kind == kGelu) return Real(0.5) * x * (Real(1) + erf(x * Real(0.70710678118654752)));
    if constexpr (kind == kGeluTanh) {
        const Real inner = Real(0.79788456080286536) * (x + Real(0.044715) * x * x * x);
        return Real(0.5) * x * (Real(1) + tanh(inner));
    }
    if constexpr (kind == kSilu) return x / (Real(1) + exp(-x));
    return x;
}

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

// Returns the value to store for accumulator `acc` of element (row, column) of product `batch`.
template <Kind out, int bits, int activation, class Acc>
typename Scalar<out>::type epilogue(Acc acc, const EpilogueParams& p, long long batch, long long row, long long column,
                                    EpilogueTerms<typename Scalar<out>::real> of_row,
                                    EpilogueTerms<typename Scalar<out>::real> of_column) {
    using Out = Scalar<out>;
    if constexpr (bits == 0) {
        return Out::store(acc);
    } else {
        using Real = typename Out::real;
        Real x = Real(acc);
        if constexpr (bits & kAlpha) x *= Real(p.alpha);
        if constexpr (bits & kRowScale) x *= of_row.scale;
        if constexpr (bits & kColumnScale) x *= of_column.scale;
        if constexpr (bits & kC) {
            const auto* c = static_cast<const typename Out::type*>(p.c);
            x += Real(p.beta) * Real(Out::load(c[batch * p.c_batch + row * p.c_row + column * p.c_column]));
        }
        if constexpr (bits & kRowBias) x += of_row.bias;
        if constexpr (bits & kColumnBias) x += of_column.bias;
        if constexpr (bits & kAux) {
            auto* aux = static_cast<typename Out::type*>(p.aux);
            aux[batch * p.aux_batch + row * p.aux_row + column * p.aux_column] = Out::store(x);
        }
        if constexpr (bits & kActivation) x = activate<activation>(x, Real(p.lower), Real(p.upper));
        if constexpr (bits & kOutScale) x *= Real(p.out_scale);
        return Out::store(x);
    }
}

// The same for an element on its own.
template <Kind out, int bits, int activation, class Acc>
typename Scalar<out>::type epilogue(Acc acc, const EpilogueParams& p, long long batch, long long row, long long column) {
    using Real = typename Scalar<out>::real;
    return epilogue<out, bits, activation>(acc, p, batch, row, column, row_terms<bits, Real>(p, row),
                                           column_terms<bits, Real>(p, column));
}
