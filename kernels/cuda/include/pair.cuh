// pair: two sums as 16-bit elements of a result, by one instruction.
// Source: PTX ISA, cvt.
#pragma once
#include "numeric.cuh"

// The first one in the low half; `kind` is a 16-bit type of floats.
template <Kind kind> __device__ unsigned pair_of(float low, float high) {
    unsigned both;
    if constexpr (kind == Kind::bfloat16)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
