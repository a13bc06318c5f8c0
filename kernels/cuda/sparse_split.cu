// sparse_split: the bfloat16 pieces of a float32 matrix, arranged in six sections for one long product.
//
//   x    [batch, lines, length]                      float32, any strides             (read)
//   out  [batch, lines_out, 6 sections, length_out]  bfloat16 bits; the sections of a line are `out_section`
//        elements apart, either within the line or behind all lines                   (written)
//
// x = p1 + p2 + p3 with eight significant bits each.  This is exact down to |x| = 2^-110; below that, bits under
// 2^-133, the smallest bfloat16, are lost.  p1 is truncated, so that it cannot overflow; p2 is rounded to nearest, so
// that the products that are left out (p2 q3, p3 q2 and the much smaller p3 q3) have either sign.  SIDE 0 (the sparse
// operand) and SIDE 1 (the dense one, q) arrange their pieces such that a product along all sections sums small terms
// first:
//
//   section   0    1    2    3    4    5
//   SIDE 0    p1   p3   p2   p1   p2   p1
//   SIDE 1    q3   q1   q2   q2   q1   q1
//
// An infinity or a NaN is put into the last section alone, where it meets the leading piece of the other operand; in
// the other sections it might meet a zero.  Outside of x, pieces are zero.
//
// Macros: SIDE.  Reference: reference.split_bfloat16.  Launcher: kernels/pieces.py.  Memory-bound.
constexpr int kThreads = 256;
constexpr int kPer = 8;        // elements of a thread: 16 bytes of every section
constexpr int kSections = 6;
constexpr int kPieces = 3;

struct alignas(16) Vector { unsigned words[kPer / 2]; };

constexpr int piece_of(int section) {
    constexpr int sparse[] = {0, 2, 1, 0, 1, 0}, dense[] = {2, 0, 1, 1, 0, 0};
    return SIDE ? dense[section] : sparse[section];
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
    }
};

__device__ inline void split(float x, unsigned (&sections)[kSections]) {
    const Pieces pieces(x);
    const bool finite = (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u;
    const unsigned special = x != x ? 0x7fffu : pieces.bits[0];
#pragma unroll
    for (int s = 0; s < kSections; s++)
        sections[s] = finite ? pieces.bits[piece_of(s)] : s == kSections - 1 ? special : 0u;
}

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

extern "C" __global__ void __launch_bounds__(kThreads)
sparse_split(const float* x, long long x_batch, long long x_line, long long x_step, unsigned short* out,
             long long out_batch, long long out_line, long long out_section, int lines, int length, int lines_out,
             int length_out, int aligned) {
    const unsigned per_line = length_out / kPer, i = blockIdx.x * kThreads + threadIdx.x;
    const unsigned line = i / per_line, first = i % per_line * kPer;
    if (line >= lines_out) return;
    x += blockIdx.y * x_batch + line * x_line + first * x_step;
    out += blockIdx.y * out_batch + line * out_line + first;

    float given[kPer];
    load(x, x_step, line < lines ? length - int(first) : 0, aligned, given);
    Vector found[kSections];
#pragma unroll
    for (int j = 0; j < kPer; j++) {
        unsigned sections[kSections];
        split(given[j], sections);
#pragma unroll
        for (int s = 0; s < kSections; s++) {
            if (j % 2 == 0) found[s].words[j / 2] = sections[s];
            else found[s].words[j / 2] |= sections[s] << 16;
        }
    }
#pragma unroll
    for (int s = 0; s < kSections; s++) *reinterpret_cast<Vector*>(out + s * out_section) = found[s];
}
