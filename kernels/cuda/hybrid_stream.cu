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
// product: a warp takes STRIPS strips, a block WARPS of them and the same columns of the
// matrix, SPLITS blocks of a cluster the parts of k.  Partial sums are added in the order of
// the parts: the same bits every time.  Chunks are copied STAGES - 1 ahead, each warp for
// itself; b in panels of PANEL rows, two at a time, by the block.
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
constexpr int kThreads = 32 * WARPS, kColumns = 8 * N_TILES, kStripsOfBlock = WARPS * STRIPS;
constexpr int kBPitch = kColumns * 2 + (N_TILES > 1 ? 16 : 0);   // odd in 16-byte units: no conflicts
constexpr int kBBytes = PANEL * kBPitch, kBlocks = SPAN / 128, kPanelBlocks = PANEL / 128;
constexpr int kRedPitch = kColumns + 1;
constexpr bool kFew = N_TILES <= 2;             // decode a slab ahead; own accumulators for full quads

__device__ unsigned address(const void* p) { return unsigned(__cvta_generic_to_shared(p)); }

__device__ void copy16(unsigned to, const void* from, bool real = true) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(real ? 16 : 0));
}

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

__device__ void fetch_b(unsigned to, const Right& b, int first, Count column0) {
#if B_VECTOR
    constexpr int kRows = kThreads / N_TILES;           // that the block copies at a time
    const int r = threadIdx.x / N_TILES, c = threadIdx.x % N_TILES * 8;
    const int left = column0 + c < b.n ? min(PANEL, int(b.k) - first) : 0;
    const Element* from = b.b + Count(first + r) * b.row + column0 + c;
    to += r * kBPitch + c * 2;
#pragma unroll
    for (int i = 0; i < PANEL; i += kRows, from += kRows * b.row, to += kRows * kBPitch)
        copy16(to, i + r < left ? from : b.b, i + r < left);
#else
    // Columns beyond n were zeroed at the start and stay so.
    const int real = int(min(Count(kColumns), b.n - column0));
    for (int i = threadIdx.x; i < PANEL * real; i += kThreads) {
        const int r = i % PANEL, c = i / PANEL;
        const Element x = first + r < b.k ? b.b[Count(first + r) * b.row + (column0 + c) * b.column] : Element(0);
        asm volatile("st.shared.u16 [%0], %1;" ::"r"(to + r * kBPitch + c * 2), "h"(x));
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

#define MMA_TYPE_float16 "f16.f16"
#define MMA_TYPE_bfloat16 "bf16.bf16"
#define JOIN(a, b) a##b
#define MMA_TYPE(x) JOIN(MMA_TYPE_, x)

template <int sel>
__device__ void multiply(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[4], unsigned codes) {
    asm volatile("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32." MMA_TYPE(ELEMENT) ".f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9,%10,%11}, {%0,%1,%2,%3}, %12, %13;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]),
                   "r"(codes), "n"(sel));
}

__device__ void load_b(unsigned (&b)[4], unsigned from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3]) : "r"(from));
}

// Where this warp stands in one of its strips.
struct Stream {
    unsigned word, half, last;       // shared addresses: next word, next half, last row
    unsigned kinds, singles, fulls;  // of 128 columns: two bits a quad, and single ones of them
    unsigned codes[2];

    __device__ void start(unsigned stage, unsigned units) {
        word = stage + kHeader + threadIdx.x % 32 * 4;
        last = half = stage + 16 * units - kPitch + threadIdx.x % 32 * 4;
    }
    __device__ void load_codes(unsigned stage, int block, bool there) {
        const unsigned at = stage + block * 384 + threadIdx.x % 32 * 8;
        asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(codes[0]), "=r"(codes[1]) : "r"(at));
        const unsigned kinds_at = stage + block * 384 + 256 + threadIdx.x % 32 * 4;
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

    __device__ void decode(Stream& s, int slab) {
        const int base = 8 * slab;
#pragma unroll
        for (int q = 0; q < 4; ++q) pair[q] = take_word(s.kinds, base + 2 * q + 1, s.word);
#pragma unroll
        for (int q = 0; q < 4; ++q) take_half(pair[q], s.singles, base + 2 * q, s.half);
        full = __any_sync(~0u, s.fulls & (0xFFu << base));
        if (full)
#pragma unroll
            for (int q = 0; q < 4; ++q) more[q] = take_word(s.fulls, base + 2 * q + 1, s.word);
    }
};

using Sums = float[STRIPS][N_TILES][4];

// One slab of 32 columns: the fragments of all strips by all columns of b.
__device__ void multiply_slab(Sums& acc, Sums& spill, const Fragment (&fragments)[STRIPS],
                              const Stream (&streams)[STRIPS], unsigned b_at, int slab) {
#pragma unroll
    for (int j = 0; j < N_TILES; ++j) {
        unsigned right[4];
        load_b(right, b_at + slab * 32 * kBPitch + 16 * j);
#pragma unroll
        for (int r = 0; r < STRIPS; ++r) {
            const Fragment& f = fragments[r];
            if (slab % 2) multiply<1>(acc[r][j], f.pair, right, streams[r].codes[slab / 2]);
            else multiply<0>(acc[r][j], f.pair, right, streams[r].codes[slab / 2]);
            if (f.full) multiply<0>(kFew ? spill[r][j] : acc[r][j], f.more, right, kHighPairs);
        }
    }
}

// 128 columns.  Halfway through the chunk the single halves turn to the high ones.
__device__ void multiply_block(Sums& acc, Sums& spill, Stream (&streams)[STRIPS], unsigned b_at, int block) {
    Fragment fragments[2][STRIPS];
    const auto decode = [&](int slab) {
#pragma unroll
        for (int r = 0; r < STRIPS; ++r) {
            if (SPAN == 128 ? slab == 2 : slab == 0 && block == kBlocks / 2) streams[r].half = streams[r].last + 2;
            fragments[slab % 2][r].decode(streams[r], slab);
        }
    };
    if (kFew) decode(0);
#pragma unroll
    for (int slab = 0; slab < 4; ++slab) {
        if (!kFew) decode(slab);
        else if (slab < 3) decode(slab + 1);
        multiply_slab(acc, spill, fragments[slab % 2], streams, b_at, slab);
    }
}

__device__ unsigned cluster_address(unsigned at, int rank) {
    unsigned there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
    return there;
}
__device__ void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

struct Left {                          // the streamed matrix
    const unsigned char* blob;
    const unsigned* offsets;           // of the chunks, in 16 bytes; one more at the end
    const int* order;                  // strips, by block; -1: none
    const int* cuts;                   // [row blocks][SPLITS + 1] chunks at which the parts begin
    int chunks;
    unsigned stage_bytes;
    Count m;
};

#if SPLITS > 1
extern "C" __global__ void __cluster_dims__(1, SPLITS, 1) __launch_bounds__(kThreads, kThreads * STRIPS <= 256 ? 2 : 1)
#else
extern "C" __global__ void __launch_bounds__(kThreads, kThreads * STRIPS <= 256 ? 2 : 1)
#endif
product(const Left a, const Right b, Out::type* out, Count out_row, Count out_column) {
    extern __shared__ __align__(128) unsigned char shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned b_stage = address(shared);
    const unsigned a_stage = b_stage + 2 * kBBytes + warp * STRIPS * STAGES * a.stage_bytes;
    const int* cut = a.cuts + blockIdx.x * (SPLITS + 1) + blockIdx.y;
    const int from = cut[0], to = cut[1];
    const Count column0 = Count(blockIdx.z) * kColumns;
    int strips[STRIPS];
    unsigned ends[STAGES + 1][STRIPS];           // offsets[c], offsets[c + 1], ... of chunk c in hand
    const unsigned* cursor[STRIPS];              // the offset after those
    Stream streams[STRIPS];
    Sums acc = {}, spill = {};

    const auto fetch_panel = [&](int first, unsigned stage) {
        if (first < to * SPAN) fetch_b(stage, b, first, column0);
    };
#if !B_VECTOR
    for (int i = threadIdx.x; i < 2 * kBBytes / 16; i += kThreads) reinterpret_cast<uint4*>(shared)[i] = uint4{};
    __syncthreads();
#endif
    fetch_panel(from * SPAN, b_stage);
    // Offsets past the part are never used: copies beyond `to` are left out.
#pragma unroll
    for (int r = 0; r < STRIPS; ++r) {
        strips[r] = a.order[blockIdx.x * kStripsOfBlock + warp * STRIPS + r];
        cursor[r] = a.offsets + Count(max(strips[r], 0)) * a.chunks + from;
#pragma unroll
        for (int i = 0; i <= STAGES; ++i) ends[i][r] = from + i <= to && strips[r] >= 0 ? cursor[r][i] : 0;
        cursor[r] += STAGES + 1;
    }
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) {
#pragma unroll
        for (int r = 0; r < STRIPS; ++r)
            if (from + i < to) fetch_chunk(a_stage + (STAGES * r + i) * a.stage_bytes, a.blob, ends[i][r], ends[i + 1][r]);
        asm volatile("cp.async.commit_group;");
    }
    constexpr int kAhead = PANEL >= (STAGES - 1) * SPAN ? STAGES - 2 : 0;    // copies that may be under way
    int block = 0, panel_block = 0, next_panel = from * SPAN + PANEL;
    unsigned here = 0, b_turn = 0, b_at = 0;     // offset of the stage in hand; panel in hand
    int c = from;
    for (int t = 0; t < (to - from) * kBlocks; ++t) {
        if (block == 0 || panel_block == 0) {
            asm volatile("cp.async.wait_group %0;" ::"n"(kAhead));
            if (panel_block == 0) {
                __syncthreads();
                b_at = b_stage + b_turn + lane * kBPitch;
                b_turn = kBBytes - b_turn;
                fetch_panel(next_panel, b_stage + b_turn);
                next_panel += PANEL;
            } else {
                __syncwarp();
            }
            if (block == 0) {
                unsigned free = here + (STAGES - 1) * a.stage_bytes;
                if (free >= STAGES * a.stage_bytes) free -= STAGES * a.stage_bytes;
#pragma unroll
                for (int r = 0; r < STRIPS; ++r) {
                    const unsigned stage = a_stage + STAGES * r * a.stage_bytes;
                    streams[r].start(stage + here, ends[1][r] - ends[0][r]);
                    if (c + STAGES - 1 < to) fetch_chunk(stage + free, a.blob, ends[STAGES - 1][r], ends[STAGES][r]);
#pragma unroll
                    for (int i = 0; i < STAGES; ++i) ends[i][r] = ends[i + 1][r];
                    if (c + STAGES < to && strips[r] >= 0) ends[STAGES][r] = *cursor[r]++;
                }
            }
            asm volatile("cp.async.commit_group;");
        }
#pragma unroll
        for (int r = 0; r < STRIPS; ++r) streams[r].load_codes(a_stage + STAGES * r * a.stage_bytes + here, block, strips[r] >= 0);
        multiply_block(acc, spill, streams, b_at, block);
        b_at += 128 * kBPitch;
        if (++panel_block == kPanelBlocks) panel_block = 0;
        if (++block == kBlocks) {
            block = 0;
            ++c;
            here += a.stage_bytes;
            if (here == STAGES * a.stage_bytes) here = 0;
        }
    }
    asm volatile("cp.async.wait_group 0;");
    if (kFew)
#pragma unroll
        for (int i = 0; i < STRIPS * N_TILES * 4; ++i) (&acc[0][0][0])[i] += (&spill[0][0][0])[i];
    // Sums go through shared memory, are added over the parts of k in order, and leave once.
    __syncthreads();
    auto* sums = reinterpret_cast<float*>(shared);
#pragma unroll
    for (int r = 0; r < STRIPS; ++r)
#pragma unroll
        for (int j = 0; j < N_TILES; ++j)
#pragma unroll
            for (int x = 0; x < 4; ++x)
                sums[((warp * STRIPS + r) * 16 + lane / 4 + x / 2 * 8) * kRedPitch + 8 * j + lane % 4 * 2 + x % 2] = acc[r][j][x];
#if SPLITS > 1
    cluster_barrier();
#else
    __syncthreads();
#endif
    for (int i = threadIdx.x + blockIdx.y * kThreads; i < kStripsOfBlock * 16 * kColumns; i += kThreads * SPLITS) {
        const int r = i / kColumns, c = i % kColumns, strip = a.order[blockIdx.x * kStripsOfBlock + r / 16];
        const Count row = Count(strip) * 16 + r % 16, column = column0 + c;
        float sum = 0;
#if SPLITS > 1
        const unsigned at = address(sums + r * kRedPitch + c);
        for (int part = 0; part < SPLITS; ++part) {
            float x;
            asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(cluster_address(at, part)));
            sum += x;
        }
#else
        sum = sums[r * kRedPitch + c];
#endif
        if (strip >= 0 && row < a.m && column < b.n) out[row * out_row + column * out_column] = Out::store(sum);
    }
#if SPLITS > 1
    cluster_barrier();
#endif
}
#endif
