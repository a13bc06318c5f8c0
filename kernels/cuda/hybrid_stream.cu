// hybrid_stream: unstructured 16-bit matrix times a few columns, at the speed of memory.
//
// Sparse tensor cores take pairs of elements and a code that says where in its group of four each belongs.  So a
// decoder need not put a non-zero at its place in a row: it only has to reach the register of its group.  A lane of
// mma.sp m16n8k32 owns four groups of a slab of 16 rows by 32 columns ("quads").  A quad is of one of four kinds:
//
//   0 empty    nothing stored
//   1 single   16 bits        one non-zero at place 0, 1 or 2
//   2 double   a word         two non-zeros, or one at place 3
//   3 full     two words      three or four: places 0, 1 go to a first instruction (code 0x4),
//                             places 2, 3 to a second one (code 0xE)
//
// Layout.  A strip of 16 rows is cut into chunks of SPAN columns.  A chunk is
//
//   for every 128 columns   codes [lane][2 words], kinds [lane][1 word: quad q of slab s has bits 8 s + 2 q and next]
//   then                    rows of 32 words, one for each lane, as many rows as the fullest lane needs
//
// A lane reads words from the first row on, and singles from the last row back: the low halves of its words there for
// the first half of the slabs, then the high halves, again from the last row on, for the second.  It reads rows only in
// its own bank of shared memory, so there are no conflicts.
//
// Word i of the codes serves slabs 2 i and 2 i + 1 of the 128 columns: lanes 0 and 1 of a quad hold those of the even
// slab (selector 0), lanes 2 and 3 those of the odd one (selector 1).
//
// product: a team of four warps takes 64 rows and a part of k.  A block has TEAMS by PARTS teams; on Hopper a team
// multiplies by warpgroup instructions (WGMMA), elsewhere each warp multiplies for itself.  SPLITS blocks share the
// columns of the matrix.  Up to STAGES chunks of a warp are being loaded at a time (stream_chunks.cuh).  b comes in
// panels of PANEL lines for each part, BUFFERS - 1 of them ahead; a __syncthreads for each panel tells that all
// threads' copies of it have arrived and that the oldest buffer is free.  The first chunks are loaded before the kernel
// waits for the preceding one in the stream, as no kernel writes them; b is loaded afterwards (programmatic.cuh).
//
// Shared memory: barriers of the chunks, one for each stage of each warp; BUFFERS panels for each part, from a multiple
// of 1024 bytes on; STAGES chunks for each warp.  Afterwards the sums take the place of panels and chunks.
//
// Partial sums of the parts meet in shared memory.  Those of the blocks meet in global memory, where each block then
// adds up one share; blocks of the same rows are neighbours in the grid, so they run at the same time.  All sums are
// added in the order of k: the same bits every time.
//
// Macros: SPAN, and for the product ELEMENT TEAMS PARTS N_TILES SPLITS PANEL BUFFERS STAGES B_VECTOR (1:
// 16-byte copies of b) WGMMA; kernels/hybrid_stream_plan.py chooses.
// Tensor-core fragment and metadata layout: PTX ISA, mma.sp, m16n8k32.
// Reference: a dense product.  Launcher: kernels/hybrid_stream.py.
#include "numeric.cuh"
#include "programmatic.cuh"

using Count = long long;
using Element = unsigned short;
constexpr int kSlabs = SPAN / 32, kHeader = SPAN / 128 * 384, kPitch = 128;
constexpr unsigned kLowPair = 0x4, kHighPairs = 0xEEEEEEEE;
#include "stream_quads.cuh"

// Of a matrix w (m, k), whose rows are contiguous and `pitch` elements apart: writes units[strip][chunk], the size of
// every chunk in units of 16 bytes.  A warp takes one chunk; grid (chunks, strips).
extern "C" __global__ void __launch_bounds__(32)
measure(const Element* w, Count m, Count k, Count pitch, unsigned* units) {
    int words = 0, low = 0, high = 0;
    for (int s = 0; s < kSlabs; ++s)
        for (int q = 0; q < 4; ++q) {
            const Quad quad(w, m, k, pitch, blockIdx.y, Count(blockIdx.x) * SPAN + 32 * s, q);
            words += quad.kind >= 2 ? quad.kind - 1 : 0;
            (s < kSlabs / 2 ? low : high) += quad.kind == 1;
        }
    int rows = words + max(low, high);
    for (int step = 1; step < 32; step *= 2) rows = max(rows, __shfl_xor_sync(~0u, rows, step));
    if (threadIdx.x == 0) units[Count(blockIdx.y) * gridDim.x + blockIdx.x] = (kHeader + rows * kPitch) / 16;
}

// Writes the chunks into `blob`, which must be cleared before, from offsets[strip][chunk] on, in units of 16 bytes;
// same grid.
extern "C" __global__ void __launch_bounds__(32)
pack(const Element* w, Count m, Count k, Count pitch, const unsigned* offsets, unsigned char* blob) {
    const int lane = threadIdx.x, t = lane % 4;
    const Count chunk = Count(blockIdx.y) * gridDim.x + blockIdx.x;
    unsigned char* base = blob + Count(offsets[chunk]) * 16;
    unsigned char* rows = base + kHeader + 4 * lane;
    const int last = int((offsets[chunk + 1] - offsets[chunk]) * 16 - kHeader) / kPitch - 1;
    int next = 0, half = last;
    unsigned kinds = 0;
    for (int s = 0; s < kSlabs; ++s) {
        if (s == kSlabs / 2) half = last;
        unsigned codes[2] = {0, 0}, seconds[4];
#pragma unroll
        for (int q = 0; q < 4; ++q) {
            const Quad quad(w, m, k, pitch, blockIdx.y, Count(blockIdx.x) * SPAN + 32 * s, q);
            if (quad.kind >= 2) *reinterpret_cast<unsigned*>(rows + kPitch * next++) = quad.word;
            if (quad.kind == 1)
                *reinterpret_cast<Element*>(rows + kPitch * half-- + (s < kSlabs / 2 ? 0 : 2)) = Element(quad.word);
            kinds |= unsigned(quad.kind) << (2 * (4 * (s % 4) + q));
            codes[q >> 1] |= unsigned(quad.code) << (4 * t + 16 * (q & 1));
            seconds[q] = quad.second;
        }
#pragma unroll
        for (int q = 0; q < 4; ++q)
            if ((kinds >> (2 * (4 * (s % 4) + q)) & 3) == 3)
                *reinterpret_cast<unsigned*>(rows + kPitch * next++) = seconds[q];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            codes[h] |= __shfl_xor_sync(~0u, codes[h], 1);
            codes[h] |= __shfl_xor_sync(~0u, codes[h], 2);
        }
        auto* part = reinterpret_cast<unsigned*>(base + s / 4 * 384);
        if (t / 2 == s % 2) part[2 * lane + s % 4 / 2] = t % 2 ? codes[1] : codes[0];
        if (s % 4 == 3) {
            part[64 + lane] = kinds;
            kinds = 0;
        }
    }
}

#ifdef ELEMENT
#include "block_sums.cuh"
#include "uniform.cuh"
#if WGMMA
#include "hopper_ptx.cuh"
#endif
using Out = Scalar<Kind::ELEMENT>;
constexpr int kTeams = TEAMS * PARTS, kWarps = 4 * kTeams, kThreads = 32 * kWarps, kGroup = 128 * TEAMS;
constexpr int kColumns = 8 * N_TILES, kLine = 2 * kColumns;
constexpr int kBBytes = PARTS * PANEL * kLine, kBlocks = SPAN / 128, kPanelChunks = PANEL / SPAN;
constexpr int kFirstPanels = BUFFERS > 1 ? BUFFERS - 1 : 1, kBarriers = 8 * STAGES * kWarps;
using Sums = float[4 * N_TILES];
using Others = BlockSums<N_TILES, kGroup>;

struct Left {                          // the streamed matrix
    const unsigned char* blob;
    const unsigned* starts;            // [blocks][warps][pitch]: where a warp's chunks begin, in units of 16 bytes
    const int* order;                  // strips, by row block; -1: none
    const int* cuts;                   // [row blocks][SPLITS * PARTS + 1] chunks at which the parts begin
    int pitch;
    unsigned stage_bytes;
    Count m;
};
#include "stream_chunks.cuh"
#include "stream_panels.cuh"

struct Product {
    Out::type* to;
    Count row, column;       // strides in elements
};
#include "stream_multiply.cuh"

// Multiply 128 columns of A, whose first slab has been decoded already, and decode the first slab of the next 128.
// A slab is decoded while the one before it is multiplied.  The registers of the codes change only after `hold`, when
// no instruction reads them any more.
__device__ void multiply_block(Sums& acc, Sums& spill, Fragment (&fragments)[2], Stream& stream, unsigned b_at) {
    if (WGMMA) b_at = uniform(b_at);
#pragma unroll
    for (int slab = 0; slab < 4; ++slab) {
        const Fragment& fragment = fragments[slab % 2];
        multiply_slab(acc, spill, fragment, b_at + slab * 32 * kLine, stream.codes[slab / 2], stream.high, slab);
        if (slab < 3) fragments[(slab + 1) % 2].decode(stream, slab + 1);
        finish_slab();
    }
    hold(stream.codes, stream.high, stream.stage);
    if (stream.advance()) fragments[0].decode(stream, 0);
}

// Sums of the parts of this block, added in order, in the threads of the first part.
__device__ void add_parts(Sums& acc, void* shared) {
    auto* sums = static_cast<float4*>(shared) + threadIdx.x % kGroup;
    const int part = threadIdx.x / kGroup;
    __syncthreads();         // nobody reads b or chunks any more
    if (part > 0)
#pragma unroll
        for (int j = 0; j < N_TILES; ++j)
            sums[((part - 1) * N_TILES + j) * kGroup] = {acc[4 * j], acc[4 * j + 1], acc[4 * j + 2], acc[4 * j + 3]};
    __syncthreads();
    if (part == 0)
        for (int p = 0; p < PARTS - 1; ++p)
#pragma unroll
            for (int j = 0; j < N_TILES; ++j) {
                const float4 x = sums[(p * N_TILES + j) * kGroup];
                acc[4 * j] += x.x, acc[4 * j + 1] += x.y, acc[4 * j + 2] += x.z, acc[4 * j + 3] += x.w;
            }
}

// Four sums of thread `member` of the first part, of column tile j.
__device__ void store_sums(const float4& x, int j, int member, const Left& a, const Right& b, const Product& out,
                           const int* strips) {
    const int of = strips[member / 32], lane = member % 32;
    const Count row = Count(of) * 16 + lane / 4, column = 8 * j + lane % 4 * 2;
    const float sums[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < 4; ++i)
        if (of >= 0 && row + i / 2 * 8 < a.m && column + i % 2 < b.n)
            out.to[(row + i / 2 * 8) * out.row + (column + i % 2) * out.column] = Out::store(sums[i]);
}

// The sums of this warp's chunks.
__device__ void multiply(Sums& acc, Stream& stream, const Panels& panels) {
    Sums spill = {};
    Fragment fragments[2];
    if (stream.first()) fragments[0].decode(stream, 0);
    for (int phase = 0; phase < panels.phases; ++phase) {
        panels.await(phase);
        unsigned b_at = panels.at(phase);
        const int blocks = panels.blocks(phase);
        for (int i = 0; i < blocks; ++i, b_at += 128 * kLine) multiply_block(acc, spill, fragments, stream, b_at);
    }
#pragma unroll
    for (int i = 0; i < 4 * N_TILES; ++i) acc[i] += spill[i];
}

// Store the sums of the first part, of which each of SPLITS blocks has a part.  `room`: shared memory.
template <class Store> __device__ void finish(const Sums& acc, const Room& global, void* room, Store store) {
    const bool first = threadIdx.x < kGroup;
    if (SPLITS > 1) {
        const Others others(global, room);
        const Others::Group group = {2 * (blockIdx.x / SPLITS) * SPLITS, SPLITS};
        if (Others::kKeeps) __syncthreads();         // nobody reads b, chunks or sums of parts any more
        if (first) others.give(acc, threadIdx.x, group, 2 * blockIdx.x, true);
        others.collect(group, true, store);
    } else if (first) {
#pragma unroll
        for (int j = 0; j < N_TILES; ++j)
            store({acc[4 * j], acc[4 * j + 1], acc[4 * j + 2], acc[4 * j + 3]}, j, threadIdx.x);
    }
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
product(const Left a, const Right b, const Product out, const Room room) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const int warp = threadIdx.x / 32, team = warp / 4 % TEAMS, part = warp / 4 / TEAMS;
    const int block = blockIdx.x / SPLITS, rank = blockIdx.x % SPLITS;
    const int* strips = a.order + block * TEAMS * 4;
    const unsigned panels_at = (address(shared) + kBarriers + 1023) / 1024 * 1024;
    unsigned char* rest = shared + (panels_at - address(shared));
    let_next_start();
    const Panels panels(b, a.cuts + block * (SPLITS * PARTS + 1) + rank * PARTS, part, panels_at);
    Stream stream(a, warp, panels.chunks(), strips[team * 4 + warp % 4] >= 0, address(shared), panels_at + BUFFERS * kBBytes);
    stream.begin();
    wait_for_previous();
    panels.begin();
    Sums acc = {};
    multiply(acc, stream, panels);
    if (PARTS > 1) add_parts(acc, rest);
    finish(acc, room, rest,
           [&](const float4& x, int j, int member) { store_sums(x, j, member, a, b, out, strips); });
}
#endif
