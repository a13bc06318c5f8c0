// activate_compress: an activation, 2:4 along the features and, if asked for, fp8, in one pass.
//
//   x, gate [m, k]  float16 or bfloat16 (ELEMENT), rows contiguous on 16-byte boundaries (read)
//   values  rows `pitch` bytes apart, a multiple of 16; packed metadata                 (written)
//   scales  [m]  float32, of activate_quantise                                          (written)
//
//   y = round(relu(x)), round(relu(x)^2) or, if GATED, round(silu(x) * gate), computed in
//   float32 and rounded to ELEMENT; the two largest magnitudes of every four y stay.
//   activate_rows      stores them as ELEMENT; work is shared out as in piece.cuh.
//   activate_quantise  stores them as e4m3: value = y * (448 / amax) and scale = amax / 448,
//                      with amax the largest |y| of the row, NaN left out, and both factors 1
//                      where amax < 2^-100.  WARPS warps hold a row in registers, 32 columns
//                      a thread; LONG_ROWS do not fit and are read twice.
//
// Meaning: reference.activate_compress.  Launcher: kernels/activate_compress.py.
#include "piece.cuh"

enum { kRelu, kRelu2, kSilu };

constexpr Kind kind = Kind::ELEMENT;
using P = Piece<2>;
using S = Scalar<kind>;

S::type element_of(unsigned word, int half) {
    const unsigned short bits = (unsigned short)(word >> 16 * half);
    return reinterpret_cast<const S::type&>(bits);
}
unsigned bits_of(S::type x) { return reinterpret_cast<const unsigned short&>(x); }

float activated(float x, float gate) {
    if (ACTIVATION == kSilu) return x / (1.0f + expf(-x)) * gate;
    const float positive = x > 0 ? x : x == x ? 0.0f : x;  // NaN stays
    return ACTIVATION == kRelu2 ? positive * positive : positive;
}

// The activation of both elements of a word.
unsigned activated_word(unsigned x, unsigned gate) {
    unsigned out = 0;
    for (int h = 0; h < 2; h++) {
        const float other = GATED ? S::load(element_of(gate, h)) : 0.0f;
        out |= bits_of(S::store(activated(S::load(element_of(x, h)), other))) << 16 * h;
    }
    return out;
}

// 16 columns of a row; `valid` of them exist.
void load_activated(const char* x, const char* gate, int valid, unsigned (&y)[P::words]) {
    load_elements<2, 16>(x, 2, valid, y);
    unsigned other[P::words] = {};
    if (GATED) load_elements<2, 16>(gate, 2, valid, other);
    for (int i = 0; i < P::words; i++) y[i] = activated_word(y[i], other[i]);
}

// The stored pairs of two times 16 columns, and their codes.
unsigned choose(const unsigned (&y)[P::rows][P::words], unsigned (&stored)[P::rows][P::words / 2]) {
    unsigned first[P::steps], second[P::steps], codes[1] = {};
    for (int s = 0; s < P::steps; s++) {
        unsigned in[4], keep[4];
        P::spread(y, s, in);
        largest_two<kind>(in, keep);
        stored_pair<kind>(in, keep, first[s], second[s]);
        codes[0] = append_code<2>(codes[0], keep);
    }
    P::gather(first, second, stored);
    return codes[0];
}

extern "C" __global__ void __launch_bounds__(128) activate_rows(
    const char* x, long long x_row, const char* gate, long long gate_row, char* values, long long pitch,
    unsigned* packed, long long m_, long long k_) {
    const int m = (int)m_, k = (int)k_;
    const Place<2> place(m, k);
    unsigned y[Place<2>::pieces][P::rows][P::words];
#pragma unroll
    for (int p = 0; p < Place<2>::pieces; p++)
        for (int r = 0; r < P::rows; r++) {
            const int row = place.row + 4 * p + 8 * r;
            load_activated(x + row * x_row + place.column * 2, gate + row * gate_row + place.column * 2,
                           row < m ? min(max(k - place.column, 0), P::columns) : 0, y[p][r]);
        }
#pragma unroll
    for (int p = 0; p < Place<2>::pieces; p++) {
        unsigned stored[P::rows][P::words / 2];
        const unsigned codes = choose(y[p], stored);
        if (place.inside) packed[place.packed_word(p)] = codes;
        for (int r = 0; r < P::rows; r++) {
            const int row = place.row + 4 * p + 8 * r;
            if (row < m) store_values<2>(values + row * pitch, pitch, place.column, stored[r]);
        }
    }
}

// Four stored elements as e4m3; underflow of either sign gives +0.0.
unsigned quantised(unsigned low, unsigned high, float factor) {
    unsigned out = 0;
    for (int i = 0; i < 4; i++) {
        const float y = S::load(element_of(i < 2 ? low : high, i % 2)) * factor;
        const unsigned byte = __nv_cvt_float_to_fp8(y, __NV_SATFINITE, __NV_E4M3);
        out |= (byte == 0x80u ? 0u : byte) << 8 * i;
    }
    return out;
}

// a / b, rounded to nearest, for b whose reciprocal is a normal number.  The operator's code for
// all other b would need a stack.
float quotient(float a, float b) {
    float r;
    asm("rcp.approx.f32 %0, %1;" : "=f"(r) : "f"(b));
    r = fmaf(r, fmaf(-b, r, 1.0f), r);
    float q = a * r;
    q = fmaf(fmaf(-b, q, a), r, q);
    return fmaf(fmaf(-b, q, a), r, q);
}

constexpr unsigned kInfinity = kind == Kind::bfloat16 ? 0x7f80 : 0x7c00;
constexpr float kLeast = 7.888609e-31f;  // 2^-100
constexpr int kRowThreads = 32 * WARPS, kRowColumns = 32 * kRowThreads;
constexpr int kThreads = WARPS < 8 ? 256 : kRowThreads, kRows = kThreads / kRowThreads;

extern "C" __global__ void __launch_bounds__(kThreads) activate_quantise(
    const char* x, long long x_row, const char* gate, long long gate_row, char* values, long long pitch,
    unsigned* packed, float* scales, long long m_, long long k_) {
    __shared__ unsigned largest[kRows];
    const int m = (int)m_, k = (int)k_, m_atoms = (m + 63) / 64, end = (k + 127) / 128 * 128;
    const int local = threadIdx.x / kRowThreads, row = blockIdx.x * kRows + local;
    const int lane_column = threadIdx.x % kRowThreads * 32;
    unsigned y[P::rows][P::words], most = 0;

    if (threadIdx.x < kRows) largest[threadIdx.x] = 0;
    __syncthreads();
    for (int column = lane_column; column < (LONG_ROWS ? end : kRowColumns); column += kRowColumns)
        for (int h = 0; h < P::rows; h++) {
            const int from = column + 16 * h;
            load_activated(x + row * x_row + from * 2ll, gate + row * gate_row + from * 2ll,
                           row < m ? min(max(k - from, 0), P::columns) : 0, y[h]);
            for (int i = 0; i < P::words; i++)
                for (int e = 0; e < 2; e++) {
                    const unsigned size = y[h][i] >> 16 * e & 0x7fffu;
                    most = max(most, size <= kInfinity ? size : 0);
                }
        }
    most = __reduce_max_sync(0xffffffffu, most);
    if ((threadIdx.x & 31) == 0) atomicMax(largest + local, most);
    __syncthreads();
    const float amax = S::load(element_of(largest[local], 0));
    const bool tiny = amax < kLeast, infinite = largest[local] == kInfinity;
    const float factor = tiny ? 1.0f : infinite ? 0.0f : quotient(448.0f, amax);
    if (row < m && lane_column == 0) scales[row] = tiny ? 1.0f : infinite ? amax : quotient(amax, 448.0f);

    for (int column = lane_column; column < end; column += kRowColumns) {
        if (LONG_ROWS)
            for (int h = 0; h < P::rows; h++) {
                const int from = column + 16 * h;
                load_activated(x + row * x_row + from * 2ll, gate + row * gate_row + from * 2ll,
                               row < m ? min(max(k - from, 0), P::columns) : 0, y[h]);
            }
        unsigned stored[P::rows][P::words / 2];
        const unsigned codes = choose(y, stored);
        if (row < m_atoms * 64)
            packed[((column / 128) * (long long)m_atoms + row / 64) * 256 + row % 64 * 4 + column % 128 / 32] = codes;
        const uint4 bytes = make_uint4(
            quantised(stored[0][0], stored[0][1], factor), quantised(stored[0][2], stored[0][3], factor),
            quantised(stored[1][0], stored[1][1], factor), quantised(stored[1][2], stored[1][3], factor));
        if (row < m && column / 2 < pitch) *(uint4*)(values + row * pitch + column / 2) = bytes;
    }
}
