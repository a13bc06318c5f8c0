// uniform: values that the compiler knows to be the same in all lanes of a warp.
#pragma once

// The value of lane 0, for all lanes of a warp, which must all call it.  The compiler keeps what it computes from the
// result in uniform registers, from which wgmma takes its descriptors.  Otherwise it would move every descriptor there
// before its instruction.
__device__ inline unsigned uniform(unsigned x) { return __shfl_sync(~0u, x, 0); }
