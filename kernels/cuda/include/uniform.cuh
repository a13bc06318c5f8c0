// uniform: values that the compiler knows to be the same in all lanes of a warp.
#pragma once

// What is computed from such a value stays in uniform registers, where wgmma takes its descriptors.  Otherwise the
// compiler moves every descriptor there before its instruction.
__device__ inline unsigned uniform(unsigned x) { return __shfl_sync(~0u, x, 0); }
