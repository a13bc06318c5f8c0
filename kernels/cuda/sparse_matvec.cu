// sparse_matvec: out [m, n] = epilogue(A [m, k] 2:4  @  b [k, n]) in float32, for few columns.
//
//   values [batch, m, 2 ceil(k/4)]    stored elements, rows on 16-byte boundaries    (read)
//   packed [batch, K atoms, M atoms]  1024-byte atoms of metadata                    (read)
//   b      [batch, k, n]              any strides                                    (read)
//   out    [batch, m, n]              any strides                                    (written)
//
// Tensor cores do not multiply float32 at 2:4, so this uses fused multiply-adds.  While n is small, the time is that of
// reading A: 17 bytes for every 32 of the dense matrix.  A warp walks along PAIRS pairs of rows (g, g + 8), 512 columns
// in a step.  A lane takes 16 of these columns: one metadata word serves both rows of a pair, and 16-byte loads bring
// the values.  Those of the next step are loaded before this step is multiplied.  The step's rows of b lie in shared
// memory as [plane of columns][place in 16][lane][column], so lanes that select different rows of their 16 never meet
// in a bank; two such buffers take turns.  The sums of the lanes are added by shuffles, then those of the PARTS warps
// that share rows along k, both in a fixed order.
//
// Compiled with COLUMNS (1, 2, 4, 8: of a block), PAIRS, PARTS, B_COLUMN (1: 16-byte loads along k of b), OUTPUT, and
// the macros of epilogue.cuh.  Where n exceeds COLUMNS, further blocks take the other columns.  A b whose rows are
// contiguous is read kWide columns at a time, wherever that is one aligned load.
//
// Reference: reference.matmul and apply_epilogue.  Launcher: kernels/sparse_matvec.py.
#include "epilogue.cuh"
#include "packed_layout.cuh"
#include "programmatic.cuh"
#include "shape.cuh"

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kSpan = 16, kStep = 32 * kSpan;         // columns of a lane, of a warp
constexpr int kRowWarps = kWarps / PARTS;             // warps with rows of their own
constexpr int kBlockPairs = kRowWarps * PAIRS;        // pairs of rows of a block
constexpr int kWide = COLUMNS < 4 ? COLUMNS : 4;      // columns of one read from shared memory
constexpr int kPlanes = COLUMNS / kWide;

struct alignas(4 * kWide) Line { float x[kWide]; };
using Step = Line[kPlanes][kSpan][32];                // of b

// What a lane reads of a pair of rows in a step.
struct Piece {
    float4 values[2][2];  // of each row
    unsigned codes;       // low half: row g
};

struct Rows {
    int row[PAIRS];                  // g of each pair
    const char *values, *packed;     // of this product

    Rows(const char* values, const char* packed, int first_pair) : values(values), packed(packed) {
#pragma unroll
        for (int i = 0; i < PAIRS; ++i) row[i] = (first_pair + i) / 8 * 16 + (first_pair + i) % 8;
    }

    // Four stored values of a row, from number `at` of its `count` on; those outside the matrix are zero.
    static float4 load(const float* row, bool inside, int at, int count) {
        if (inside && at + 4 <= count) return __ldg(reinterpret_cast<const float4*>(row + at));
        float4 x = {0, 0, 0, 0};
        if (inside && at < count) x.x = row[at];
        if (inside && at + 1 < count) x.y = row[at + 1];
        if (inside && at + 2 < count) x.z = row[at + 2];
        return x;
    }
    void load(Piece (&pieces)[PAIRS], const Shape& s, int step) const {
        const int column = step * kStep + threadIdx.x % 32 * kSpan;
#pragma unroll
        for (int i = 0; i < PAIRS; ++i) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int r = row[i] + 8 * half;
                const auto* from = reinterpret_cast<const float*>(values + r * s.a_pitch);
                pieces[i].values[half][0] = load(from, r < s.m, column / 2, s.values_per_row);
                pieces[i].values[half][1] = load(from, r < s.m, column / 2 + 4, s.values_per_row);
            }
            int shift;
            const bool inside = row[i] < s.m && column < s.k;
            const char* at = packed + packed_byte<4>(row[i], column, s.meta_atoms_m, shift);
            pieces[i].codes = inside ? __ldg(reinterpret_cast<const unsigned*>(at)) : 0;
        }
    }
};

// Whether kWide columns of each row of b are one load.
inline bool has_lines(const float* b, const Shape& s) {
    return s.b_column == 1 && s.b_row % kWide == 0 && reinterpret_cast<unsigned long long>(b) % sizeof(Line) == 0;
}

// This warp's share of the rows of b of a step, by lines.  Eight neighbouring lanes load the same place of eight spans,
// and store to all banks; the four of a warp load four neighbouring rows of each span, which often share a line of
// memory.
inline void load_lines(Step& to, const float* b, const Shape& s, int step, int column0, int warp) {
    constexpr int octets = 4;  // of spans, and of places that a warp loads at once
    const int lane = threadIdx.x % 32;
    for (int i = warp; i < kPlanes * kSpan; i += kRowWarps) {
        const int plane = i / kSpan, span = i % octets * 8 + lane % 8, place = i / octets % (kSpan / 4) * 4 + lane / 8;
        const int k = step * kStep + span * kSpan + place, column = column0 + plane * kWide;
        const float* from = b + k * s.b_row + column;
        Line line = {};
        if (k < s.k && column + kWide <= s.n) {
            line = *reinterpret_cast<const Line*>(from);
        } else if (k < s.k) {
#pragma unroll
            for (int c = 0; c < kWide; ++c) line.x[c] = column + c < s.n ? from[c] : 0.0f;
        }
        to[plane][place][span] = line;
    }
}

// The same for a b of any strides.
inline void load_b(Step& to, const float* b, const Shape& s, int step, int column0, int warp) {
    const int lane = threadIdx.x % 32, k0 = step * kStep + lane * kSpan;
    for (int i = warp; i < kPlanes * kSpan / 4; i += kRowWarps) {
        const int plane = i / (kSpan / 4), place = i % (kSpan / 4) * 4;
        float x[4][kWide];
#pragma unroll
        for (int c = 0; c < kWide; ++c) {
            const int column = column0 + plane * kWide + c, k = k0 + place;
            const float* from = b + k * s.b_row + column * s.b_column;
            if (B_COLUMN && column < s.n && k + 4 <= s.k) {
                const float4 four = __ldg(reinterpret_cast<const float4*>(from));
                x[0][c] = four.x, x[1][c] = four.y, x[2][c] = four.z, x[3][c] = four.w;
            } else {
#pragma unroll
                for (int j = 0; j < 4; ++j) x[j][c] = column < s.n && k + j < s.k ? from[j * s.b_row] : 0.0f;
            }
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            Line line;
#pragma unroll
            for (int c = 0; c < kWide; ++c) line.x[c] = x[j][c];
            to[plane][place + j][lane] = line;
        }
    }
}

using Sums = float[PAIRS][2][COLUMNS];
constexpr int kSums = 2 * PAIRS * COLUMNS;

inline void multiply(Sums& sums, const Piece (&pieces)[PAIRS], const Step& b) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < PAIRS; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                const float4 four = pieces[i].values[half][j / 4];
                const float value = j % 4 == 0 ? four.x : j % 4 == 1 ? four.y : j % 4 == 2 ? four.z : four.w;
                const int place = j / 2 * 4 + (pieces[i].codes >> (16 * half + 2 * j) & 3);
#pragma unroll
                for (int plane = 0; plane < kPlanes; ++plane) {
                    const Line line = b[plane][place][lane];
#pragma unroll
                    for (int c = 0; c < kWide; ++c) sums[i][half][plane * kWide + c] += value * line.x[c];
                }
            }
}

// What a warp multiplies.  Blocks of the same rows are neighbours, so that L2 serves them all.
struct Position {
    int warp = threadIdx.x / 32 % kRowWarps, part = threadIdx.x / 32 / kRowWarps;
    int column0, batch, first_pair;

    explicit Position(const Shape& s) {
        const int tiles_n = (s.n + COLUMNS - 1) / COLUMNS;
        const int tiles_m = ((s.m + 15) / 16 * 8 + kBlockPairs - 1) / kBlockPairs;
        column0 = blockIdx.x % tiles_n * COLUMNS, batch = blockIdx.x / tiles_n / tiles_m;
        first_pair = blockIdx.x / tiles_n % tiles_m * kBlockPairs + warp * PAIRS;
    }
};

// The sums of a warp over its part of k.  `ring`: two buffers take turns.
inline void accumulate(Sums& sums, const Position& at, const Rows& rows, const float* b, const Shape& s,
                       Step (*ring)[PARTS]) {
    const bool by_lines = !B_COLUMN && kWide > 1 && has_lines(b, s);
    const int steps = (s.k + kStep - 1) / kStep, rounds = (steps + PARTS - 1) / PARTS;
    Piece now[PAIRS], next[PAIRS];
    rows.load(next, s, at.part);
    for (int round = 0; round < rounds; ++round) {
        const int step = round * PARTS + at.part;
        Step& of_b = ring[round % 2][at.part];
#pragma unroll
        for (int i = 0; i < PAIRS; ++i) now[i] = next[i];
        rows.load(next, s, step + PARTS);
        if (by_lines)
            load_lines(of_b, b, s, step, at.column0, at.warp);
        else
            load_b(of_b, b, s, step, at.column0, at.warp);
        __syncthreads();  // one for each round is enough: the buffer is written again two rounds later
        multiply(sums, now, of_b);
    }
}

// Adds up every sum over all lanes; lane l returns that of number l % kSums.
inline float over_lanes(Sums& sums) {
    auto& all = reinterpret_cast<float(&)[kSums]>(sums);
    float mine = 0;
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
#pragma unroll
        for (int other = 16; other; other /= 2) all[i] += __shfl_xor_sync(~0u, all[i], other);
        if (threadIdx.x % kSums == i) mine = all[i];
    }
    return mine;
}

// Adds up the sums of the parts; the total is what the warps of the first part return.
inline float over_parts(float sum, const Position& at, char* memory) {
    const int lane = threadIdx.x % 32;
    auto* partials = reinterpret_cast<float(*)[kRowWarps][kSums]>(memory);
    __syncthreads();
    if (lane < kSums) partials[at.part][at.warp][lane] = sum;
    __syncthreads();
    if (at.part == 0 && lane < kSums)
        for (int i = 1; i < PARTS; ++i) sum += partials[i][at.warp][lane];
    return sum;
}

extern "C" __global__ void __launch_bounds__(kThreads)
sparse_matvec(const char* values, const char* packed, const float* b, Scalar<Kind::OUTPUT>::type* out,
              const __grid_constant__ Shape s, const __grid_constant__ EpilogueParams p) {
    extern __shared__ __align__(16) char memory[];
    const Position at(s);
    const Rows rows(values + at.batch * s.a_batch, packed + at.batch * s.meta_batch, at.first_pair);
    let_next_start();
    wait_for_previous();

    Sums sums = {};
    accumulate(sums, at, rows, b + at.batch * s.b_batch, s, reinterpret_cast<Step(*)[PARTS]>(memory));
    float sum = over_lanes(sums);
    if constexpr (PARTS > 1) sum = over_parts(sum, at, memory);
    const int lane = threadIdx.x % 32;
    if (at.part || lane >= kSums) return;
    const int c = lane % COLUMNS, half = lane / COLUMNS % 2, pair = at.first_pair + lane / COLUMNS / 2;
    const int row = pair / 8 * 16 + pair % 8 + 8 * half, column = at.column0 + c;
    if (row < s.m && column < s.n)
        out[at.batch * s.out_batch + row * s.out_row + column * s.out_column] =
            epilogue<Kind::OUTPUT, EPILOGUE, ACTIVATION>(sum, p, at.batch, row, column);
}
