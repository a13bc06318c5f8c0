// programmatic: programmatic dependent launch, kernels of a stream that overlap a little (sm_90 and later).
//
// A kernel launched `early` (kernels/launch.py) may start while the one before it finishes.  It sets
// itself up, and must wait before it writes global memory, or reads what a kernel may have written.
// Source: PTX ISA, griddepcontrol.
#pragma once

// When all blocks have said this or ended, blocks of the next kernel of the stream start where there is room.
__device__ inline void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Until all kernels before this one have finished and what they wrote can be seen.
__device__ inline void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
