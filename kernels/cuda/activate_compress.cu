// activate_compress: an activation, 2:4 along the features and, if asked for, fp8, in one pass.
//
//   x, gate [m, k]  float16 or bfloat16 (ELEMENT), rows contiguous on 16-byte boundaries (read)
//   values  [m, 2 ceil(k/4)]  rows `pitch` bytes apart, a multiple of 16                (written)
//   packed  [ceil(k/128), ceil(m/64), 1024]  metadata, tensor core order                (written)
//   scales  [m]  float32, of activate_quantise                                          (written)
//
//   y = round(relu(x)), round(relu(x)^2) or, if GATED, round(silu(x) * gate), computed in
//   float32 and rounded to ELEMENT; the two largest magnitudes of every four y stay.
//   activate_rows      stores them as ELEMENT; threads take pieces as in piece.cuh.
//   activate_quantise  stores them as e4m3: value = y * (448 / amax) and scale = amax / 448,
//                      with amax the largest |y| of the row, NaN left out.  Both factors are 1
//                      where amax < 2^-100, and 0 and infinity where it is infinite.  WARPS warps
//                      share a row and hold it in registers, each PIECES times 256 columns, a lane
//                      eight neighbouring ones of every 256.  Rows that do not fit (LONG_ROWS) are
//                      read twice.  The maximum over the row's warps is an atomicMax in shared
//                      memory, on bits, which order as integers.
//
// Metadata of activate_quantise is in the 8-bit order, of activate_rows in the 16-bit one
// (packed_layout.cuh).
//
// Macros: ELEMENT ACTIVATION GATED, and PIECES WARPS LONG_ROWS of activate_quantise.
// Reference: reference.activate_compress.  Launcher: kernels/activate_compress.py.
#include "piece.cuh"

enum { kRelu, kRelu2, kSilu };

constexpr Kind kind = Kind::ELEMENT;
#include "word_pair.cuh"

using P = Piece<2>;
using S = Scalar<kind>;

S::type element_of(unsigned word, int half) {
    const unsigned short bits = (unsigned short)(word >> 16 * half);
    return reinterpret_cast<const S::type&>(bits);
}
unsigned bits_of(S::type x) { return reinterpret_cast<const unsigned short&>(x); }

// The activation of both elements of a word; every NaN in the result has the bits 0x7fff.
unsigned activated(unsigned x, unsigned gate) {
    if constexpr (ACTIVATION == kSilu) {
        unsigned out = 0;
        for (int h = 0; h < 2; h++) {
            const float wide = S::load(element_of(x, h)), other = S::load(element_of(gate, h));
            out |= bits_of(S::store(wide / (1.0f + expf(-wide)) * other)) << 16 * h;
        }
        return out;
    } else {
        return word_of(ACTIVATION == kRelu2 ? squared_relu(pair_of(x)) : relu(pair_of(x)));
    }
}

// Activations of ROWS stretches of neighbouring elements; at(r) says where stretch r starts, in bytes from x
// and from the gate, and how many of its elements exist.  All loads are issued before the first is used.
struct Stretch {
    long long x, gate;
    int valid;
};
template <int ROWS, int COUNT, class At>
void load_activated(const char* x, const char* gate, unsigned (&y)[ROWS][COUNT], At at) {
    unsigned other[ROWS][COUNT] = {};
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const Stretch from = at(r);
        load_elements<2, 16>(x + from.x, 2, from.valid, y[r]);
        if (GATED) load_elements<2, 16>(gate + from.gate, 2, from.valid, other[r]);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < COUNT; i++) y[r][i] = activated(y[r][i], other[r][i]);
}

// The two best of two groups at once: group c of stretches a and b, words 2 c and 2 c + 1.
template <int COUNT>
void choose(const unsigned (&a)[COUNT], const unsigned (&b)[COUNT], int c,
            unsigned& first, unsigned& second, unsigned& codes) {
    constexpr unsigned top = Lanes<2>::top;
    unsigned in[4], size[4], keep[4];
    for (int i = 0; i < 4; i++) {
        in[i] = permute(a[2 * c + i / 2], b[2 * c + i / 2], i % 2 ? 0x7632 : 0x5410);
        size[i] = ACTIVATION == kSilu ? in[i] & ~top : in[i];  // relu has no sign
    }
    best_two([&](int i, int j) { return at_least<kind>(size[i], size[j]); }, keep);
    for (int i = 0; i < 4; i++) keep[i] &= nonzero<kind>(size[i]);
    stored_pair<kind>(in, keep, first, second);
    codes = append_code<2>(codes, keep);
}

extern "C" __global__ void __launch_bounds__(128) activate_rows(
    const char* x, long long x_row, const char* gate, long long gate_row, char* values, long long pitch,
    unsigned* packed, long long m_, long long k_) {
    const int m = (int)m_, k = (int)k_;
    const Place<2> place(m, k);
    unsigned y[Place<2>::pieces * P::rows][P::words];
    load_activated(x, gate, y, [&](int i) {
        const int row = place.row + 4 * (i / P::rows) + 8 * (i % P::rows);
        return Stretch{row * x_row + place.column * 2, row * gate_row + place.column * 2,
                       row < m ? min(max(k - place.column, 0), P::columns) : 0};
    });
#pragma unroll
    for (int p = 0; p < Place<2>::pieces; p++) {
        unsigned stored[P::rows][P::groups], codes = 0;
        for (int c = 0; c < P::groups; c++) {
            unsigned first, second;
            choose(y[P::rows * p], y[P::rows * p + 1], c, first, second, codes);
            stored[0][c] = permute(first, second, 0x5410), stored[1][c] = permute(first, second, 0x7632);
        }
        if (place.inside) packed[place.packed_word(p)] = codes;
        for (int r = 0; r < P::rows; r++) {
            const int row = place.row + 4 * p + 8 * r;
            if (row < m) store_values<2>(values + row * pitch, pitch, place.column, stored[r]);
        }
    }
}

// Two stored elements, one of each word, as e4m3; underflow of either sign gives +0.0.
unsigned quantised(unsigned first, unsigned second, int half, float factor) {
    const float2 y = {S::load(element_of(first, half)) * factor, S::load(element_of(second, half)) * factor};
    unsigned bytes = __nv_cvt_float2_to_fp8x2(y, __NV_SATFINITE, __NV_E4M3);
    if (ACTIVATION == kSilu)
        for (int i = 0; i < 2; i++)
            if ((bytes >> 8 * i & 255) == 128) bytes &= ~(255u << 8 * i);
    return bytes;
}

// a / b, rounded to nearest, where a, b and 1 / b are normal numbers (subnormal ones would be flushed): the reciprocal
// and the quotient are refined by Newton's method.  The code of the operator /, which serves all b, would need a stack.
float quotient(float a, float b) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(b));
    r = fmaf(r, fmaf(-b, r, 1.0f), r);
    float q = a * r;
    q = fmaf(fmaf(-b, q, a), r, q);
    return fmaf(fmaf(-b, q, a), r, q);
}

constexpr unsigned kInfinity = kind == Kind::bfloat16 ? 0x7f80 : 0x7c00;
constexpr float kLeast = 7.888609e-31f;  // 2^-100
constexpr int kPieceColumns = 8, kApart = 32 * kPieceColumns;  // of a thread; from one piece of it to the next
constexpr int kRowThreads = 32 * WARPS, kRowColumns = WARPS * PIECES * kApart;
constexpr int kRows = WARPS < 4 ? 4 / WARPS : 1, kThreads = kRows * kRowThreads;
using Pieces = unsigned[PIECES][kPieceColumns / 2];

// The row of a thread, and from which columns on it holds pieces, modulo kRowColumns.  Columns are unsigned, as the next
// ones of the longest rows lie beyond 2^31.
struct RowPart {
    int local, row;  // in the block; in the matrix
    unsigned start;

    RowPart()
        : local(threadIdx.x / kRowThreads), row(blockIdx.x * kRows + local),
          start(threadIdx.x % kRowThreads / 32 * (PIECES * kApart) + (threadIdx.x & 31) * kPieceColumns) {}

    // Pieces from `column` on, activated.
    void load(const char* x, long long x_row, const char* gate, long long gate_row, int m, unsigned k,
              unsigned column, Pieces& y) const {
        load_activated(x, gate, y, [&](int p) {
            const unsigned from = column + kApart * p;
            const int valid = row < m && from < k ? min(k - from, (unsigned)kPieceColumns) : 0;
            return Stretch{row * x_row + from * 2ll, row * gate_row + from * 2ll, valid};
        });
    }
};

// The larger ones of `most` and the magnitudes of pieces, of which the maximum leaves NaN out.
Pair largest_of(const Pieces& y, Pair most) {
    for (int p = 0; p < PIECES; p++)
        for (int i = 0; i < kPieceColumns / 2; i++)
            most = __hmax2(most, ACTIVATION == kSilu ? __habs2(pair_of(y[p][i])) : pair_of(y[p][i]));
    return most;
}

// What elements of a row are multiplied by, and what their e4m3 are, from the bits of the largest magnitude.
struct RowScale {
    float factor, scale;

    RowScale(unsigned largest) {
        const float amax = S::load(element_of(largest, 0));
        const bool tiny = amax < kLeast, infinite = largest == kInfinity;
        // 448 / amax by way of amax / 64, which has a normal reciprocal even above 2^126.
        factor = tiny ? 1.0f : infinite ? 0.0f : quotient(7.0f, amax * 0.015625f);
        scale = tiny ? 1.0f : infinite ? amax : quotient(amax, 448.0f);
    }
};

// Stores pieces from `column` on: of the row at `values`, and their codes at `codes_at`, that of the first piece.
void store_pieces(const Pieces& y, float factor, unsigned column, unsigned end, char* values, long long pitch,
                  unsigned char* codes_at, int m_atoms, bool in_atoms, bool in_matrix) {
#pragma unroll
    for (int p = 0; p < PIECES; p += 2) {
        unsigned first[2], second[2], codes = 0;
        for (int c = 0; c < 2; c++) choose(y[p], y[p + 1], c, first[c], second[c], codes);
        for (int h = 0; h < 2; h++) {
            const unsigned at = column + kApart * (p + h);
            if (in_atoms && at < end)
                codes_at[(p + h) * (kApart / 128 * 1024ll) * m_atoms] = (unsigned char)(codes >> (16 * h + 8));
            if (in_matrix && at / 2 < pitch)
                *(unsigned*)(values + at / 2) = quantised(first[0], second[0], h, factor)
                                              | quantised(first[1], second[1], h, factor) << 16;
        }
    }
}

extern "C" __global__ void __launch_bounds__(kThreads) activate_quantise(
    const char* x, long long x_row, const char* gate, long long gate_row, char* values, long long pitch,
    unsigned char* packed, float* scales, long long m_, long long k_) {
    __shared__ unsigned largest[kRows];
    const int m = (int)m_, m_atoms = (m + 63) / 64;
    const unsigned k = (unsigned)k_, end = (k + 127) / 128 * 128;
    const RowPart part;
    Pieces y;

    if (threadIdx.x < kRows) largest[threadIdx.x] = 0;
    Pair most{};
    for (unsigned column = part.start; column < (LONG_ROWS ? end : kRowColumns); column += kRowColumns) {
        part.load(x, x_row, gate, gate_row, m, k, column, y);
        most = largest_of(y, most);
    }
    const unsigned both = word_of(most), warp_most = __reduce_max_sync(~0u, max(both & 0xffffu, both >> 16));
    __syncthreads();
    if ((threadIdx.x & 31) == 0) atomicMax(largest + part.local, warp_most);
    __syncthreads();
    const RowScale by(largest[part.local]);
    if (part.row < m && part.start == 0) scales[part.row] = by.scale;

    for (unsigned column = part.start; column < end; column += kRowColumns) {
        if (LONG_ROWS) part.load(x, x_row, gate, gate_row, m, k, column, y);
        const long long atom = (column / 128) * (long long)m_atoms + part.row / 64;
        store_pieces(y, by.factor, column, end, values + part.row * pitch, pitch,
                     packed + atom * 1024 + part.row % 64 * 16 + column % 128 / 8,
                     m_atoms, part.row < m_atoms * 64, part.row < m);
    }
}
