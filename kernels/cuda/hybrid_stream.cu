// hybrid_stream: unstructured 16-bit matrix times a few columns, at the speed of memory.
//
// Sparse tensor cores multiply compressed pairs and place them by a code, so a streamed
// non-zero needs no scatter: it only has to reach the register of its group of four.  A lane
// of mma.sp m16n8k32 owns four groups of a 16x32 slab ("quads").  Each has one of four kinds:
//
//   0 empty    nothing stored
//   1 single   a half word    one non-zero at place 0, 1 or 2
//   2 double   a word         two non-zeros, or one at place 3
//   3 full     two words      three or four: places 0, 1 go to a first instruction (code 0x4),
//                             places 2, 3 to a second one (code 0xE)
//
// Layout.  A strip of 16 rows is cut into chunks of SPAN columns.  A chunk is
//   per 128 columns   codes [lane][2 words], kinds [lane][1 word, 2 bits a quad]
//   then              rows [lane] of words, as many as the fullest lane needs
// A lane reads words downwards from the first row, and single halves upwards from the last:
// the low halves for the first half of the slabs, the high halves for the second.  It only
// ever touches its own bank of shared memory, so there are no conflicts.
//
// product: a team of four warps takes 64 rows and a part of k.  A block has TEAMS by PARTS teams; on
// Hopper a team multiplies by warpgroup instructions (WGMMA), elsewhere each warp for itself.
// SPLITS blocks of a cluster share the columns of the matrix.  A warp copies its chunks STAGES - 1
// ahead; b comes in panels of PANEL lines for each part, a panel ahead where BUFFERS is 2.  Partial
// sums are added in the order of the parts: the same bits every time.
//
// Tensor-core fragment and metadata layout: PTX ISA, mma.sp, m16n8k32.
// Reference: a dense product.  Launcher: kernels/hybrid_stream.py.
#include "numeric.cuh"

using Count = long long;
using Element = unsigned short;
constexpr int kSlabs = SPAN / 32, kHeader = SPAN / 128 * 384, kPitch = 128;
constexpr unsigned kLowPair = 0x4, kHighPairs = 0xEEEEEEEE;

__device__ bool nonzero(Element x) { return (x & 0x7fff) != 0; }

// The four elements of quad q of a slab, for this lane.
struct Quad {
    int kind, code;
    unsigned word, second;     // what is stored; a single's value is the low half of word

    __device__ Quad(const Element* w, Count m, Count k, Count pitch, Count strip, Count column, int q) {
        const int lane = threadIdx.x % 32;
        const Count row = strip * 16 + lane / 4 + 8 * (q & 1), first = column + 16 * (q >> 1) + 4 * (lane & 3);
        Element x[4];
        unsigned low = 0, high = 0;            // the first two non-zeros, and their places
        int held = 0, low_place = 0, high_place = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            x[i] = row < m && first + i < k ? w[row * pitch + first + i] : Element(0);
            if (!nonzero(x[i])) { x[i] = 0; continue; }
            if (held == 0) { low = x[i]; low_place = i; }
            if (held == 1) { high = x[i]; high_place = i; }
            ++held;
        }
        second = 0;
        if (held > 2) {
            kind = 3; code = kLowPair;
            word = x[0] | unsigned(x[1]) << 16;
            second = x[2] | unsigned(x[3]) << 16;
        } else if (held == 2) {
            kind = 2; code = low_place | high_place << 2;
            word = low | high << 16;
        } else if (held == 1) {
            const bool last = low_place == 3;
            kind = last ? 2 : 1; code = last ? 0xC : low_place | 0xC;
            word = last ? low << 16 : low;
        } else {
            kind = 0; code = kLowPair; word = 0;
        }
    }
};

// units[chunk], the size of every chunk in 16 bytes; one warp a chunk, grid (chunks, strips).
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

// Write the chunks into `blob`, which starts as zeros; same grid.
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
            if ((kinds >> (2 * (4 * (s % 4) + q)) & 3) == 3) *reinterpret_cast<unsigned*>(rows + kPitch * next++) = seconds[q];
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
using Out = Scalar<Kind::ELEMENT>;
constexpr int kTeams = TEAMS * PARTS, kWarps = 4 * kTeams, kThreads = 32 * kWarps;
constexpr int kColumns = 8 * N_TILES, kLine = 2 * kColumns, kRows = 64 * TEAMS;
constexpr int kBBytes = PARTS * PANEL * kLine, kBlocks = SPAN / 128, kPanelChunks = PANEL / SPAN;
constexpr int kSumPitch = kColumns + 1;
using Sums = float[4 * N_TILES];

__device__ unsigned address(const void* p) { return unsigned(__cvta_generic_to_shared(p)); }

__device__ void copy16(unsigned to, const void* from, bool real = true) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(real ? 16 : 0));
}
template <int most> __device__ void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(most) : "memory"); }
__device__ void commit_copies() { asm volatile("cp.async.commit_group;"); }

// One chunk to shared memory, by one warp.
__device__ void fetch_chunk(unsigned stage, const unsigned char* blob, unsigned begin, unsigned end) {
    const int lane = threadIdx.x % 32;
    const unsigned char* from = blob + (Count(begin) + lane) * 16;
    stage += lane * 16;
#pragma unroll 4
    for (int left = int(end - begin) - lane; left > 0; left -= 32, from += 512, stage += 512) copy16(stage, from);
}

struct Right {                  // the dense operand
    const Element* b;
    Count k, n, row, column;    // sizes and strides in elements
};

// Lines of b lie one after the other, their 16-byte pieces exchanged as the tensor cores' own
// 32-, 64- and 128-byte swizzles do.
__device__ unsigned swizzled(int line, int piece) {
    constexpr int kLinesOfRow = N_TILES < 8 ? 8 / N_TILES : 1;      // that fill the 32 banks
    return line * kLine + ((piece ^ line / kLinesOfRow % N_TILES) * 16);
}

// PANEL lines of b from line `first` on, by the teams of one part; what lies beyond `end` is zero.
// Blocks begin at different lines, or they would all ask the same slice of L2 at the same time.
__device__ void fetch_b(unsigned to, const Right& b, Count first, Count end, Count column0) {
    const int turn = blockIdx.x * 88, index = threadIdx.x % (128 * TEAMS);
    end = min(end, b.k);
#if B_VECTOR
    for (int i = index; i < PANEL * N_TILES; i += 128 * TEAMS) {
        const int line = (i / N_TILES + turn) % PANEL, piece = i % N_TILES;
        const bool real = first + line < end && column0 + 8 * piece < b.n;
        copy16(to + swizzled(line, piece), real ? b.b + (first + line) * b.row + column0 + 8 * piece : b.b, real);
    }
#else
    for (int i = index; i < PANEL * kColumns; i += 128 * TEAMS) {
        const int line = i % PANEL, c = i / PANEL;
        const bool real = first + line < end && column0 + c < b.n;
        const Element x = real ? b.b[(first + line) * b.row + (column0 + c) * b.column] : Element(0);
        asm volatile("st.shared.u16 [%0], %1;" ::"r"(to + swizzled(line, c / 8) + c % 8 * 2), "h"(x));
    }
#endif
}

// Read a word if the flag is set, else zero; then, over it, a single half if its flag is set.
__device__ unsigned take_word(unsigned flags, int bit, unsigned& at) {
    unsigned x;
    asm volatile("{.reg .pred p; .reg .b32 t; and.b32 t, %2, %3; setp.ne.u32 p, t, 0; mov.u32 %0, 0;\n"
                 "@p ld.shared.u32 %0, [%1]; @p add.u32 %1, %1, 128;}" : "=&r"(x), "+r"(at) : "r"(flags), "r"(1u << bit));
    return x;
}
__device__ void take_half(unsigned& x, unsigned flags, int bit, unsigned& at) {
    asm volatile("{.reg .pred p; .reg .b32 t; and.b32 t, %2, %3; setp.ne.u32 p, t, 0;\n"
                 "@p ld.shared.u16 %0, [%1]; @p add.u32 %1, %1, -128;}" : "+r"(x), "+r"(at) : "r"(flags), "r"(1u << bit));
}

struct Left {                          // the streamed matrix
    const unsigned char* blob;
    const unsigned* starts;            // [blocks][SPLITS][warps][pitch]: of a warp's chunks, in 16 bytes
    const int* order;                  // strips, by block; -1: none
    const int* cuts;                   // [row blocks][SPLITS * PARTS + 1] chunks at which the parts begin
    int pitch;
    unsigned stage_bytes;
    Count m;
};

// A warp's way through its chunks, STAGES - 1 of which are on their way to shared memory.
struct Stream {
    const unsigned char* blob;
    const unsigned* cursor;          // the start of the chunk after those in hand
    unsigned stage, stage_bytes;     // shared address of the first stage, size of one
    unsigned ends[STAGES + 1];       // where the chunks in hand begin and end
    int left, block;                 // chunks left, with the present one; 128 columns in it
    bool there;                      // nothing is fetched for a strip that is not
    unsigned here;                   // offset of the present stage
    unsigned word, half, last;       // shared addresses: next word, next half, last row
    unsigned kinds, singles, fulls;  // of 128 columns: two bits a quad, and single ones of them
    unsigned codes[2];
    unsigned high;                   // the codes of all second pairs

    __device__ void begin() {
        high = kHighPairs | (stage_bytes & 1);   // sizes are even: so the compiler keeps it in a register
        here = (STAGES - 1) * stage_bytes;
        block = kBlocks - 1;
#pragma unroll
        for (int i = 0; i <= STAGES; ++i) ends[i] = i <= left ? cursor[i] : 0;
        cursor += STAGES + 1;
#pragma unroll
        for (int i = 0; i < STAGES - 1; ++i) {
            if (i < left) fetch_chunk(stage + i * stage_bytes, blob, ends[i], ends[i + 1]);
            commit_copies();
        }
        ++left;
    }
    // Go to the next 128 columns, if there are any.
    __device__ bool advance() {
        if (++block == kBlocks) {
            block = 0;
            if (--left <= 0) return false;
            open_chunk();
        }
        load_codes();
        return true;
    }
    __device__ void open_chunk() {
        wait_copies<STAGES - 2>();
        __syncwarp();
        if (left >= STAGES) fetch_chunk(stage + here, blob, ends[STAGES - 1], ends[STAGES]);
        commit_copies();
        here = here + stage_bytes == STAGES * stage_bytes ? 0 : here + stage_bytes;
        word = stage + here + kHeader + threadIdx.x % 32 * 4;
        last = half = stage + here + 16 * (ends[1] - ends[0]) - kPitch + threadIdx.x % 32 * 4;
#pragma unroll
        for (int i = 0; i < STAGES; ++i) ends[i] = ends[i + 1];
        if (left > STAGES) ends[STAGES] = *cursor++;
    }
    __device__ void load_codes() {
        const unsigned at = stage + here + block * 384 + threadIdx.x % 32 * 8;
        asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(codes[0]), "=r"(codes[1]) : "r"(at));
        const unsigned kinds_at = stage + here + block * 384 + 256 + threadIdx.x % 32 * 4;
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(kinds) : "r"(kinds_at));
        if (!there) {
            kinds = 0;
            codes[0] = codes[1] = 0x44444444u;
        }
        singles = kinds & ~(kinds >> 1) & 0x55555555u;
        fulls = kinds & (kinds << 1) & 0xAAAAAAAAu;
    }
};

// The pairs of four quads, as they wait for the tensor core.
struct Fragment {
    unsigned pair[4], more[4];
    bool full;

    // Halfway through a chunk the single halves turn to the high ones.
    __device__ void decode(Stream& s, int slab) {
        const int base = 8 * slab;
        if (SPAN == 128 ? slab == 2 : slab == 0 && s.block == kBlocks / 2) s.half = s.last + 2;
#pragma unroll
        for (int q = 0; q < 4; ++q) pair[q] = take_word(s.kinds, base + 2 * q + 1, s.word);
#pragma unroll
        for (int q = 0; q < 4; ++q) take_half(pair[q], s.singles, base + 2 * q, s.half);
        full = __any_sync(~0u, s.fulls & (0xFFu << base));
#pragma unroll
        for (int q = 0; q < 4; ++q) more[q] = 0;
        if (full)
#pragma unroll
            for (int q = 0; q < 4; ++q) more[q] = take_word(s.fulls, base + 2 * q + 1, s.word);
    }
};

#if WGMMA
#include "wgmma_pairs.cuh"

// d += four pairs a lane, of 64 rows, by the 32 lines of b from `b_at` on.
__device__ void multiply_slab(Sums& d, Sums&, const Fragment& f, unsigned b_at, unsigned codes, unsigned high, int slab) {
    const unsigned long long b = b_descriptor<N_TILES>(b_at);
    wgmma_fence();
    if (slab % 2) multiply_pairs<N_TILES, 1>(d, f.pair, b, codes);
    else multiply_pairs<N_TILES, 0>(d, f.pair, b, codes);
    multiply_pairs<N_TILES, 0>(d, f.more, b, high);
    wgmma_commit();
}
__device__ void finish_slab() { wgmma_wait(); }
#else
#define MMA_TYPE_float16 "f16.f16"
#define MMA_TYPE_bfloat16 "bf16.bf16"
#define JOIN(a, b) a##b
#define MMA_TYPE(x) JOIN(MMA_TYPE_, x)

template <int sel>
__device__ void multiply(float* d, const unsigned (&a)[4], const unsigned (&b)[4], unsigned codes) {
    asm volatile("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32." MMA_TYPE(ELEMENT) ".f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9,%10,%11}, {%0,%1,%2,%3}, %12, %13;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]),
                   "r"(codes), "n"(sel));
}

// The same by single warps, 16 rows each; third and fourth elements have sums of their own.
__device__ void multiply_slab(Sums& d, Sums& spill, const Fragment& f, unsigned b_at, unsigned codes, unsigned high, int slab) {
    const unsigned line = b_at + swizzled(threadIdx.x % 32, 0);
#pragma unroll
    for (int j = 0; j < N_TILES; ++j) {
        unsigned b[4];
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3]) : "r"(line ^ 16 * j));
        if (slab % 2) multiply<1>(d + 4 * j, f.pair, b, codes);
        else multiply<0>(d + 4 * j, f.pair, b, codes);
        if (f.full) multiply<0>(spill + 4 * j, f.more, b, high);
    }
}
__device__ void finish_slab() {}
__device__ void hold(const unsigned (&)[2], unsigned, unsigned) {}
#endif

// 128 columns, the first of whose slabs is decoded; a slab is decoded while the last is multiplied.
// The codes change only when no instruction reads them any more; ends with the next ones' first slab.
__device__ void multiply_block(Sums& acc, Sums& spill, Fragment (&fragments)[2], Stream& stream, unsigned b_at) {
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

__device__ void cluster_barrier() {
#if SPLITS > 1
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
    __syncthreads();
#endif
}
// A float of the block of this cluster that holds part `rank` of k.
__device__ float shared_float(unsigned at, int rank) {
    float x;
#if SPLITS > 1
    unsigned there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(there));
#else
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(at));
#endif
    return x;
}

#if SPLITS > 1
extern "C" __global__ void __cluster_dims__(1, SPLITS, 1) __launch_bounds__(kThreads, 1)
#else
extern "C" __global__ void __launch_bounds__(kThreads, 1)
#endif
product(const Left a, const Right b, Out::type* out, Count out_row, Count out_column) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, team = warp / 4 % TEAMS, part = warp / 4 / TEAMS;
    const int* strips = a.order + blockIdx.x * TEAMS * 4;
    const int* cut = a.cuts + blockIdx.x * (SPLITS * PARTS + 1) + blockIdx.y * PARTS;
    const int from = cut[part], chunks = cut[part + 1] - from;
    int phases = 1;
#pragma unroll
    for (int p = 0; p < PARTS; ++p) phases = max(phases, (cut[p + 1] - cut[p] + kPanelChunks - 1) / kPanelChunks);
    const Count column0 = Count(blockIdx.z) * kColumns;
    const unsigned b_stage = (address(shared) + 1023) / 1024 * 1024, b_part = b_stage + part * PANEL * kLine;
    const auto fetch_panel = [&](int phase) {
        const Count first = (Count(from) + phase * kPanelChunks) * SPAN;
        fetch_b(b_part + phase % BUFFERS * kBBytes, b, first, Count(from + chunks) * SPAN, column0);
    };
    Stream stream;
    stream.blob = a.blob;
    stream.cursor = a.starts + ((Count(blockIdx.x) * SPLITS + blockIdx.y) * kWarps + warp) * a.pitch;
    stream.stage_bytes = a.stage_bytes;
    stream.stage = b_stage + BUFFERS * kBBytes + warp * STAGES * a.stage_bytes;
    stream.left = chunks;
    stream.there = strips[team * 4 + warp % 4] >= 0;
    fetch_panel(0);
    stream.begin();
    Sums acc = {}, spill = {};
    Fragment fragments[2];
    if (stream.advance()) fragments[0].decode(stream, 0);
    for (int phase = 0; phase < phases; ++phase) {
        wait_copies<(kPanelChunks > STAGES - 2 ? STAGES - 2 : kPanelChunks - 1)>();
#if WGMMA
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
        __syncthreads();
        if (BUFFERS > 1 && phase + 1 < phases) fetch_panel(phase + 1);
        unsigned b_at = b_part + phase % BUFFERS * kBBytes;
        const int blocks = min(kPanelChunks, chunks - phase * kPanelChunks) * kBlocks;
        for (int i = 0; i < blocks; ++i, b_at += 128 * kLine) multiply_block(acc, spill, fragments, stream, b_at);
    }
    wait_copies<0>();
    // Sums go through shared memory, are added over the parts of k in order, and leave once.
    __syncthreads();
    auto* sums = reinterpret_cast<float*>(shared);
    const int row0 = part * kRows + team * 64 + warp % 4 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < 4 * N_TILES; ++i)
        sums[(row0 + i / 2 % 2 * 8) * kSumPitch + i / 4 * 8 + lane % 4 * 2 + i % 2] = acc[i] + spill[i];
    cluster_barrier();
    for (int i = threadIdx.x + blockIdx.y * kThreads; i < kRows * kColumns; i += kThreads * SPLITS) {
        const int r = i / kColumns, x = i % kColumns, of = strips[r / 16];
        const Count row = Count(of) * 16 + r % 16, column = column0 + x;
        float sum = 0;
#pragma unroll
        for (int rank = 0; rank < SPLITS; ++rank)
#pragma unroll
            for (int p = 0; p < PARTS; ++p)
                sum += shared_float(address(sums + (p * kRows + r) * kSumPitch + x), rank);
        if (of >= 0 && row < a.m && column < b.n) out[row * out_row + column * out_column] = Out::store(sum);
    }
    if (SPLITS > 1) cluster_barrier();
}
#endif
