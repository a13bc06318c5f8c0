// uniform: values that are the same in all lanes of a warp, and known to be.
#pragma once

// What comes of it stays in uniform registers; else the compiler transfers each descriptor before its instruction.
__device__ inline unsigned uniform(unsigned x) { return __shfl_sync(~0u, x, 0); }
