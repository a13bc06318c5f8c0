// sparse_split: the bfloat16 pieces of a float32 matrix, arranged in sections for a product of three or of six pieces.
//
//   x    [batch, lines, length]                    float32, any strides             (read)
//   out  [batch, lines_out, SECTIONS, length_out]  bfloat16 bits; the sections of a line are `out_section` elements
//        apart, either within the line or behind all lines                          (written)
//
// x = p1 + p2 + p3 with eight significant bits each.  This is exact down to |x| = 2^-110; below that, bits under
// 2^-133, the smallest bfloat16, are lost.  p1 is truncated, so that it cannot overflow; p2 is rounded to nearest, so
// that the products that are left out (p2 q3, p3 q2 and the much smaller p3 q3) have either sign.
//
// With three sections they are the pieces, in order, which sparse_wgmma.cu multiplies crosswise.  With six, SIDE 0 (the
// sparse operand) and SIDE 1 (the dense one, q) repeat their pieces such that one long product sums all six, small
// terms first:
//
//   section   0    1    2    3    4    5
//   SIDE 0    p1   p3   p2   p1   p2   p1
//   SIDE 1    q3   q1   q2   q2   q1   q1
//
// An infinity must not meet a zero among the pieces of a number.  So it is the third piece, which meets leading pieces
// alone, and a one takes its place as the leading piece, which another infinity or a zero meets.
//
// Outside of x, pieces are zero.
//
// Macros: SECTIONS SIDE.  Reference: reference.split_bfloat16.  Launcher: kernels/pieces.py.  Memory-bound.
#include "programmatic.cuh"

constexpr int kThreads = 256;
constexpr int kPer = 8;        // elements of a thread: 16 bytes of every section
constexpr int kPieces = 3;
constexpr unsigned kOne = 0x3f80, kNan = 0x7fff;  // in bfloat16

struct alignas(16) Vector { unsigned words[kPer / 2]; };

constexpr int piece_of(int section) {
    constexpr int sparse[] = {0, 2, 1, 0, 1, 0}, dense[] = {2, 0, 1, 1, 0, 0};
    return SECTIONS == kPieces ? section : SIDE ? dense[section] : sparse[section];
}

// x - y with subnormal numbers, which -ftz=true, CuPy's option, would flush in a C++ subtraction.
__device__ inline float minus(float x, float y) {
    float difference;
    asm("sub.rn.f32 %0, %1, %2;" : "=f"(difference) : "f"(x), "f"(y));
    return difference;
}

// The pieces of x, as bits of bfloat16, which are the upper halves of those of float32.
struct Pieces {
    unsigned bits[kPieces];

    __device__ explicit Pieces(float x) {
        const unsigned whole = __float_as_uint(x);
        bits[0] = whole >> 16;
        const float rest = minus(x, __uint_as_float(bits[0] << 16));
        const unsigned low = __float_as_uint(rest);
        bits[1] = (low + 0x7fffu + (low >> 16 & 1)) >> 16;  // to nearest even
        bits[2] = __float_as_uint(minus(rest, __uint_as_float(bits[1] << 16))) >> 16;
        if ((whole & 0x7f800000u) == 0x7f800000u) {
            bits[2] = x != x ? kNan : whole >> 16;
            bits[1] = 0;
            bits[0] = x != x ? kNan : kOne | (whole >> 16 & 0x8000u);
        }
    }
};

__device__ inline void load(const float* x, long long step, int inside, bool aligned, float (&to)[kPer]) {
    if (aligned && inside >= kPer) {
        const float4 low = reinterpret_cast<const float4*>(x)[0], high = reinterpret_cast<const float4*>(x)[1];
        to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
        to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
    } else {
#pragma unroll
        for (int i = 0; i < kPer; i++) to[i] = i < inside ? x[i * step] : 0.f;
    }
}

// Distances in elements: from matrix to matrix, from line to line, and along a line or from section to section.
struct Split {
    const float* x;
    long long x_batch, x_line, x_step;
    unsigned short* out;
    long long out_batch, out_line, out_section;
    int lines, length, lines_out, length_out;
    int blocks;   // of a matrix
    int aligned;  // whether 16 bytes of x can be read at once
};

extern "C" __global__ void __launch_bounds__(kThreads) sparse_split(const __grid_constant__ Split s) {
    let_next_start();
    wait_for_previous();
    const unsigned batch = blockIdx.x / s.blocks, i = blockIdx.x % s.blocks * kThreads + threadIdx.x;
    const unsigned per_line = s.length_out / kPer, line = i / per_line, first = i % per_line * kPer;
    if (line >= s.lines_out) return;
    const float* x = s.x + batch * s.x_batch + line * s.x_line + first * s.x_step;
    unsigned short* out = s.out + batch * s.out_batch + line * s.out_line + first;

    float given[kPer];
    load(x, s.x_step, line < s.lines ? s.length - int(first) : 0, s.aligned, given);
    Vector found[kPieces];
#pragma unroll
    for (int j = 0; j < kPer; j++) {
        const Pieces pieces(given[j]);
#pragma unroll
        for (int p = 0; p < kPieces; p++) {
            if (j % 2 == 0) found[p].words[j / 2] = pieces.bits[p];
            else found[p].words[j / 2] |= pieces.bits[p] << 16;
        }
    }
#pragma unroll
    for (int section = 0; section < SECTIONS; section++)
        *reinterpret_cast<Vector*>(out + section * s.out_section) = found[piece_of(section)];
}
