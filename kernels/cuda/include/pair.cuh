// pair: two float32 sums, rounded to nearest even to two 16-bit elements by one instruction.
// Source: PTX ISA, cvt (which takes the element of the high half first).
#pragma once
#include "numeric.cuh"

// `kind` is float16 or bfloat16.
template <Kind kind> __device__ unsigned pair_of(float low, float high) {
    unsigned both;
    if constexpr (kind == Kind::bfloat16)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
