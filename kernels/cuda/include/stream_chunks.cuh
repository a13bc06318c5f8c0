// stream_chunks: how a warp of hybrid_stream.cu goes through its chunks of the matrix, and reads them.
//
// At the beginning the first STAGES chunks are requested; a stage that has been read takes the chunk STAGES further on.
// Only the warp itself reads its chunks, so __syncwarp is enough before a stage is refilled.  On Hopper lane 0 asks the
// TMA for a chunk, and an mbarrier of the stage (one arrival, and the bytes) tells when it has arrived.  Elsewhere the
// lanes copy it by cp.async, and the chunk is there once at most STAGES - 1 groups of copies are in flight.  (Groups of
// copies of b count as well, which can only make the wait longer.)
#pragma once

__device__ unsigned address(const void* p) { return unsigned(__cvta_generic_to_shared(p)); }

__device__ void copy16(unsigned to, const void* from, bool real = true) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(real ? 16 : 0));
}
template <int most> __device__ void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(most) : "memory"); }
__device__ void commit_copies() { asm volatile("cp.async.commit_group;"); }

// take_word reads the next word if its flag, `bit` of `flags`, is set, and otherwise gives zero; take_half then reads a
// single half in its place, if that has a flag.  The next word lies in the next row of 128 bytes, the next half in the
// row before.  By predicates, as lanes differ.
__device__ unsigned take_word(unsigned flags, int bit, unsigned& at) {
    unsigned x;
    asm volatile("{.reg .pred p; .reg .b32 t; and.b32 t, %2, %3; setp.ne.u32 p, t, 0; mov.u32 %0, 0;\n"
                 "@p ld.shared.u32 %0, [%1]; @p add.u32 %1, %1, 128;}"
                 : "=&r"(x), "+r"(at) : "r"(flags), "r"(1u << bit));
    return x;
}
__device__ void take_half(unsigned& x, unsigned flags, int bit, unsigned& at) {
    asm volatile("{.reg .pred p; .reg .b32 t; and.b32 t, %2, %3; setp.ne.u32 p, t, 0;\n"
                 "@p ld.shared.u16 %0, [%1]; @p add.u32 %1, %1, -128;}"
                 : "+r"(x), "+r"(at) : "r"(flags), "r"(1u << bit));
}

struct Stream {
    const unsigned char* blob;
    const unsigned* cursor;          // the start of the chunk after those in hand
    unsigned stage, stage_bytes;     // shared address of the first stage, size of one
    unsigned arrivals;               // shared address of the first stage's barrier
    unsigned ends[STAGES + 1];       // where the chunks in hand begin and end
    int left, block;                 // chunks left, with the present one; 128 columns in it
    bool there;                      // whether the strip exists; one that does not has empty chunks
    unsigned here, parity;           // the present stage; odd or even turn of the stages
    unsigned word, half, last;       // shared addresses: next word, next half, last row
    // Of 128 columns, two bits for each quad: its kind; the low bit set if it is single; the high bit set if it is
    // full.
    unsigned kinds, singles, fulls;
    unsigned codes[2];
    unsigned high;                   // the codes of all second pairs

    // Of a warp of the block.  Barriers of all warps begin at `barriers`, their stages at `stages`.
    __device__ Stream(const Left& a, int warp, int chunks, bool there, unsigned barriers, unsigned stages)
        : blob(a.blob), cursor(a.starts + (Count(blockIdx.x) * kWarps + warp) * a.pitch),
          stage(stages + warp * STAGES * a.stage_bytes), stage_bytes(a.stage_bytes),
          arrivals(barriers + warp * 8 * STAGES), left(chunks), there(there) {}
    __device__ void begin() {
        high = kHighPairs | (stage_bytes & 1);   // adds 0, as sizes are even: the compiler cannot see that, and keeps this in a register
        here = parity = block = 0;
        prepare_stages();
#pragma unroll
        for (int i = 0; i <= STAGES; ++i) ends[i] = cursor[i];
        cursor += STAGES + 1;
#pragma unroll
        for (int i = 0; i < STAGES; ++i) fetch(i, i < left, ends[i], ends[i + 1]);
    }
    // Go to the first 128 columns, if there are any.
    __device__ bool first() {
        if (left <= 0) return false;
        open_chunk();
        load_codes();
        return true;
    }
    // Go to the next 128 columns; false if there are none.
    __device__ bool advance() {
        if (++block == kBlocks) {
            block = 0;
            if (--left <= 0) return false;
            __syncwarp();
            fetch(here, left >= STAGES, ends[STAGES - 1], ends[STAGES]);
            if (++here == STAGES) {
                here = 0;
                parity ^= 1;
            }
            open_chunk();
        }
        load_codes();
        return true;
    }
#if WGMMA
    __device__ void prepare_stages() {
        if (threadIdx.x % 32 == 0) {
#pragma unroll
            for (int i = 0; i < STAGES; ++i) barrier_init(arrivals + 8 * i, 1);
            barrier_init_fence();
        }
        __syncwarp();
    }
    __device__ void fetch(unsigned to, bool wanted, unsigned from, unsigned end) {
        if (!wanted || threadIdx.x % 32) return;
        barrier_expect(arrivals + 8 * to, (end - from) * 16);
        if (end > from)
            load_bytes(stage + to * stage_bytes, blob + Count(from) * 16, (end - from) * 16, arrivals + 8 * to);
    }
    __device__ void wait_for_chunk() { barrier_wait(arrivals + 8 * here, parity); }
#else
    __device__ void prepare_stages() {}
    __device__ void fetch(unsigned to, bool wanted, unsigned from, unsigned end) {
        const int lane = threadIdx.x % 32;
        const unsigned char* piece = blob + (Count(from) + lane) * 16;
        unsigned at = stage + to * stage_bytes + lane * 16;
#pragma unroll 4
        for (int i = wanted ? int(end - from) - lane : 0; i > 0; i -= 32, piece += 512, at += 512) copy16(at, piece);
        commit_copies();
    }
    __device__ void wait_for_chunk() {
        wait_copies<STAGES - 1>();
        __syncwarp();
    }
#endif
    __device__ void open_chunk() {
        wait_for_chunk();
        word = stage + here * stage_bytes + kHeader + threadIdx.x % 32 * 4;
        last = half = stage + here * stage_bytes + 16 * (ends[1] - ends[0]) - kPitch + threadIdx.x % 32 * 4;
#pragma unroll
        for (int i = 0; i < STAGES; ++i) ends[i] = ends[i + 1];
        if (left > STAGES) ends[STAGES] = *cursor++;
    }
    __device__ void load_codes() {
        const unsigned at = stage + here * stage_bytes + block * 384 + threadIdx.x % 32 * 8;
        asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(codes[0]), "=r"(codes[1]) : "r"(at));
        const unsigned kinds_at = stage + here * stage_bytes + block * 384 + 256 + threadIdx.x % 32 * 4;
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(kinds) : "r"(kinds_at));
        if (!there) {
            kinds = 0;
            codes[0] = codes[1] = 0x44444444u;
        }
        singles = kinds & ~(kinds >> 1) & 0x55555555u;
        fulls = kinds & (kinds << 1) & 0xAAAAAAAAu;
    }
};

// The pairs of a slab's four quads, as operand A of the instructions: first pairs, and second ones if a quad is full.
struct Fragment {
    unsigned pair[4], more[4];
    bool full;

    // Halfway through a chunk single halves begin anew, in the high halves of words.
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
