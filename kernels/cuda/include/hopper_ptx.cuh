// hopper_ptx: the PTX instructions of sm_90a that C++ cannot express, one function each.
//
// Addresses of type u32 are those of shared memory.  All statements but mapa are volatile, so the compiler keeps their
// order; a memory clobber also keeps ordinary loads and stores from crossing them.
//
// Source: PTX ISA 8.1 and later, sections on elect.sync, barrier.cluster, mapa, bar, setmaxnreg, mbarrier, fence,
// st.async, cp.async.bulk and cp.async.bulk.tensor, prefetch, stmatrix, ld and st.
#pragma once

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

// A CUtensorMap, encoded on the host by kernels/tensor_map.py.  cuda.h does not compile under NVRTC.
struct alignas(64) TensorMap { u64 words[16]; };

__device__ inline u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// True in one lane of a warp; all lanes must call it.  In a branch on elect.sync the compiler knows that only one lane
// is left, and issues the instructions of the TMA one after the other.  In a branch on the thread's number, or
// on a stored result of this, it would put each of them into a loop over the lanes.
__device__ inline bool elected() {
    u32 is;
    asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(is));
    return is;
}

__device__ inline u32 cluster_rank() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
// Waits until all threads of the cluster have arrived, without ordering their accesses to memory.
__device__ inline void cluster_meet() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;" ::: "memory");
}
// The same, with release and acquire: all threads then see what each of them wrote before.
__device__ inline void cluster_sync() {
    asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
}
// The address, in block `rank` of the cluster, that corresponds to `address` in this block.
__device__ inline u32 remote_address(u32 address, u32 rank) {
    u32 remote;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
    return remote;
}
// Named barrier `id`, 1 to 15, of `threads` threads, which are whole warps; id 0 is __syncthreads.
__device__ inline void group_sync(u32 id, u32 threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// By all warps of a warpgroup: raise, or lower, the registers that each of its threads may use, to a multiple of 8.
// Raising waits until other warps of the block have given up enough.
template <int registers> __device__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers> __device__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

// --- mbarrier ---------------------------------------------------------------------------------
// A phase completes when `arrivals` threads have arrived and all announced bytes have come; then the next one begins.
// Phases have parities 0, 1, 0, ...
__device__ inline void barrier_init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
__device__ inline void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// Arrive, and make this phase wait for so many bytes of asynchronous copies as well.
__device__ inline void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ inline void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrive on the same barrier of another block of the cluster.  Without .release.cluster, which halves the speed of a
// product (docs/explanation/hopper_kernel.rst): consumers have only read the stage that they give back.
__device__ inline void barrier_arrive_remote(u32 barrier, u32 rank) {
    asm volatile("{ .reg .b32 remote; mapa.shared::cluster.u32 remote, %0, %1;"
                 " mbarrier.arrive.shared::cluster.b64 _, [remote]; }" ::"r"(barrier), "r"(rank) : "memory");
}
// Waits until the phase of this parity is complete; in a new barrier that of parity 1 counts as complete.  try_wait
// returns after a while even if it is not, hence the loop; its label is local to the braces.
__device__ inline void barrier_wait(u32 barrier, u32 parity) {
    asm volatile("{ .reg .pred done;\n"
                 "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again; }" ::"r"(barrier), "r"(parity) : "memory");
}

// Four words into the shared memory of another block; the barrier at `barrier`, in the same block, counts their 16
// bytes.  Both addresses are those of remote_address.
__device__ inline void store_remote(u32 to, u32 a, u32 b, u32 c, u32 d, u32 barrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];"
                 ::"r"(to), "r"(a), "r"(b), "r"(c), "r"(d), "r"(barrier) : "memory");
}

// --- bulk copies, by the Tensor Memory Accelerator (TMA) ---------------------------------------
__device__ inline void prefetch_map(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
// All copies are asked for by one thread.
//
// Box at (x, y, z) of a 3-D tensor into shared memory; parts outside the tensor become zeros.
__device__ inline void load_box(u32 to, const TensorMap& map, int x, int y, int z, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
                 ::"r"(to), "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z) : "memory");
}
// The same into every block of the cluster whose bit in `mask` is set, at the same address; the same barrier of each of
// them counts the bytes.
__device__ inline void load_box_multicast(u32 to, const TensorMap& map, int x, int y, int z, u32 barrier, u16 mask) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                 " [%0], [%1, {%3, %4, %5}], [%2], %6;"
                 ::"r"(to), "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z), "h"(mask) : "memory");
}
// Consecutive bytes into shared memory; their number and both addresses are multiples of 16.
__device__ inline void load_bytes(u32 to, const void* from, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}
// From shared memory to a box of a tensor; parts outside the tensor are not written.
__device__ inline void store_box(const TensorMap& map, int x, int y, int z, u32 from) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];"
                 ::"l"(&map), "r"(from), "r"(x), "r"(y), "r"(z) : "memory");
}
__device__ inline void store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until at most `pending` groups of this thread's stores still read shared memory; what they write may come
// later.
template <int pending> __device__ void store_wait() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}
// Orders ordinary accesses to shared memory before those of the TMA and of wgmma, which take another path (proxy).
__device__ inline void async_proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// --- shared memory ----------------------------------------------------------------------------
// Four 8x8 matrices of 16-bit elements; lane i gives the address of row i % 8 of matrix i / 8.
__device__ inline void store_matrices(u32 to, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
__device__ inline void store_matrices_transposed(u32 to, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
__device__ inline uint4 load_shared4(u32 from) {
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(from) : "memory");
    return x;
}
// These two have no memory clobber, so that other values may stay in registers.  They are for what the TMA or
// other threads have written before a barrier, whose volatile statement they do not cross.
__device__ inline uint2 load_shared2(u32 from) {
    uint2 x;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(from));
    return x;
}
__device__ inline u32 load_shared(u32 from) {
    u32 x;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(from));
    return x;
}

// --- flags in global memory -------------------------------------------------------------------
// Whoever has seen the flag also sees what the thread that set it had written, or had seen, before.
__device__ inline void set_flag(u32* flag, u32 value) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}
__device__ inline void wait_flag(const u32* flag) {
    asm volatile("{ .reg .pred set; .reg .u32 value;\n"
                 "again: ld.acquire.gpu.global.u32 value, [%0];\n"
                 "setp.ne.u32 set, value, 0;\n"
                 "@!set bra again; }" ::"l"(flag) : "memory");
}
