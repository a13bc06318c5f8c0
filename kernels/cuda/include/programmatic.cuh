// programmatic: programmatic dependent launch: successive kernels of a stream overlap a little (sm_90 and later).
//
// A kernel that is launched `early` (kernels/launch.py) may start while the preceding kernel of the stream finishes.
// Before wait_for_previous() it may set itself up, and read what no kernel writes any more, such as a packed matrix.
// It must wait before it writes global memory, or reads what a kernel may have written, such as b.  The memory clobbers
// keep the compiler from moving such accesses to the other side.
// Source: PTX ISA, griddepcontrol.
#pragma once

// Once all blocks have called this or ended, blocks of the next kernel of the stream start where there is room.
__device__ inline void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Waits until all kernels before this one have finished and what they wrote can be seen.
__device__ inline void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
