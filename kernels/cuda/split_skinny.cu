// split_skinny: out [m, n] = epilogue(A [m, k] 2:4  @  b [k, n]) in float32 for few columns, with mma.sp.
//
//   values [batch, m, 2 ceil(k/4)]    stored elements, rows on 16-byte boundaries                   (read once)
//   packed [batch, K atoms, M atoms]  1024-byte atoms of metadata, tensor-core order                (read once)
//   b      [batch, k, n]              k or n contiguous, its lines on 16-byte boundaries            (read)
//   out    [batch, m, n]              any strides                                                   (written)
//
// The time is that of reading A, 17 bytes for every 32 of the dense matrix, and from L2 of all of b for each block of
// rows.  So both stay float32 until they are in registers, where they become the pieces of bfloat16 that tensor cores
// multiply (split_pieces.cuh).  A block takes TILE_M rows and, where it can, all columns, through a ring of STAGES
// cp.async stages, which all of its warps fill.  Each warp takes a step of a stage, 32 columns of A, and leaves its
// sums in shared memory, where they are added in a fixed order.  A block whose sums are not all finite starts again,
// with care for infinities.
//
// A stage, in floats; the pitches spread what the lanes of a warp read at once over all banks:
//
//   values  [TILE_M][kPitchA]
//   meta    [kTileK / 128][TILE_M][4]    in the packed order
//   b       [TILE_N][kPitchB] if B_COLUMN, else [kTileK][kPitchB]
//
// What lies outside the matrices is read as zeros.
//
// Macros: TILE_M TILE_N WARPS BLOCKS STAGES B_COLUMN OUT_COLUMN, and those of epilogue.cuh; kernels/split_skinny.py
// chooses.  Reference: reference.matmul and apply_epilogue.  Launcher: kernels/split_skinny.py.
#include "epilogue.cuh"
#include "programmatic.cuh"
#include "shape.cuh"
#include "split_pieces.cuh"

constexpr int kThreads = 32 * WARPS;
constexpr int kStep = 32, kStoredStep = kStep / 2;              // columns of A of an mma.sp, and what is stored of them
constexpr int kTileK = kStep * WARPS;                           // a stage has a step for each warp
constexpr int kTilesM = TILE_M / 16, kTilesN = TILE_N / 8;      // mma tiles
constexpr int kTurns = kTilesN < 2 ? 1 : 2;                     // along n, that are multiplied in turn
constexpr int kAtomK = 128, kAtoms = kTileK / kAtomK, kAtomSteps = kAtomK / kStep;
constexpr int kPitchA = kTileK / 2 + 8;                         // 8 more than a multiple of 32
// 8 more than a multiple of 32, or of rows 4 or 12 more than a multiple of 16.
constexpr int kPitchB = B_COLUMN ? kTileK + 8 : TILE_N + 4;
constexpr int kMetaAt = TILE_M * kPitchA, kBAt = kMetaAt + kAtoms * TILE_M * 4;
constexpr int kStageFloats = kBAt + (B_COLUMN ? TILE_N : kTileK) * kPitchB;
constexpr int kSumsPitch = TILE_N + (OUT_COLUMN ? 1 : 8);
constexpr int kPartial = TILE_M * kSumsPitch;                   // floats of a warp's sums

static_assert(kTileK % kAtomK == 0 && TILE_M % 16 == 0);
static_assert(kPitchA % 32 == 8 && kPitchB % (B_COLUMN ? 32 : 8) == (B_COLUMN ? 8 : 4));

constexpr Kind kPiece = Kind::bfloat16;
using Sums = float[kTilesM][kTilesN][4];

// Calls body(i) for i = thread, thread + threads, ... below `count`.
template <int count, class Body> void deal(Body body) {
#pragma unroll
    for (int round = 0; round < (count + kThreads - 1) / kThreads; ++round) {
        const int i = round * kThreads + threadIdx.x;
        if (count % kThreads == 0 || i < count) body(i);
    }
}

struct Operands {
    const char *values, *meta;
    const float* b;
    int m0, n0;
};

// Lines of `chunks` x 16 bytes to lines `pitch` floats apart; each begins at from(line), where left(line) floats exist.
template <int lines, int chunks, class From, class Left>
inline void copy_lines(unsigned to, int pitch, From from, Left left) {
    deal<lines * chunks>([&](int i) {
        const int line = i / chunks, first = i % chunks * 4, bytes = 4 * max(0, min(4, left(line) - first));
        copy_async(to + 4 * (line * pitch + first), from(line) + (bytes ? first : 0), bytes);
    });
}

inline void fill(unsigned stage, const Operands& of, const Shape& s, int k0) {
    const char* const values = of.values + 2 * k0;  // half of the columns, of four bytes
    copy_lines<TILE_M, kTileK / 8>(
        stage, kPitchA,
        [&](int i) { return reinterpret_cast<const float*>(values + min(of.m0 + i, s.m - 1) * s.a_pitch); },
        [&](int i) { return of.m0 + i < s.m ? s.values_per_row - k0 / 2 : 0; });
    deal<kAtoms * TILE_M>([&](int i) {  // outside the matrix any legal codes will do: those of its last atom
        const int atoms_k = (s.k + kAtomK - 1) / kAtomK, atom = min(k0 / kAtomK + i / TILE_M, atoms_k - 1);
        const long long line = (long long)atom * s.meta_atoms_m * 64 + min(of.m0 + i % TILE_M, s.meta_atoms_m * 64 - 1);
        copy_async(stage + 4 * (kMetaAt + 4 * i), of.meta + 16 * line, 16);
    });
    const unsigned to = stage + 4 * kBAt;
    if constexpr (B_COLUMN)
        copy_lines<TILE_N, kTileK / 4>(
            to, kPitchB, [&](int i) { return of.b + min(of.n0 + i, s.n - 1) * s.b_column + k0; },
            [&](int i) { return of.n0 + i < s.n ? s.k - k0 : 0; });
    else
        copy_lines<kTileK, TILE_N / 4>(
            to, kPitchB, [&](int i) { return of.b + min(k0 + i, s.k - 1) * s.b_row + of.n0; },
            [&](int i) { return k0 + i < s.k ? s.n - of.n0 : 0; });
}

struct Lane {
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, warp = threadIdx.x / 32;  // row and column of a fragment
};

template <class A> inline void load_a(A& a, const float* stage, int tile, int step, const Lane& w) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int row = 16 * tile + w.g + i % 2 * 8, at = step * kStoredStep + i / 2 * 8 + 2 * w.t;
        const float2 two = *reinterpret_cast<const float2*>(stage + row * kPitchA + at);
        a.set(i, two.x, two.y);
    }
}
template <class B> inline void load_b(B& b, const float* stage, int f, int step, const Lane& w) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int k = step * kStep + 8 * i + 2 * w.t, column = 8 * f + w.g;
        const float* at = stage + kBAt + (B_COLUMN ? column * kPitchB + k : k * kPitchB + column);
        b.set(i, at[0], at[B_COLUMN ? 1 : kPitchB]);
    }
}
// The codes of the step, which the first two lanes of every quad give.
inline unsigned load_word(const float* stage, int tile, int step, const Lane& w) {
    const int line = step / kAtomSteps * TILE_M + 16 * tile + w.g + w.t % 2 * 8;
    return __float_as_uint(stage[kMetaAt + 4 * line + step % kAtomSteps]);
}

// sums += A b for a step.  Tensor cores sum the six terms of a step alone; float32 additions, which round, do the rest.
// An instruction waits for the one before it with the same sums, so several tiles take turns.
template <bool CAREFUL> inline void multiply(Sums& sums, const float* stage, int step, const Lane& w) {
    Pieces<CAREFUL> a[kTilesM];
    unsigned words[kTilesM];
#pragma unroll
    for (int tile = 0; tile < kTilesM; ++tile) {
        load_a(a[tile], stage, tile, step, w);
        words[tile] = load_word(stage, tile, step, w);
    }
#pragma unroll
    for (int f = 0; f < kTilesN; f += kTurns) {
        Pieces<CAREFUL> b[kTurns];
        float products[kTilesM][kTurns][4] = {};
#pragma unroll
        for (int j = 0; j < kTurns; ++j) load_b(b[j], stage, f + j, step, w);
#pragma unroll
        for (int term = 0; term < kTerms; ++term)
#pragma unroll
            for (int tile = 0; tile < kTilesM; ++tile)
#pragma unroll
                for (int j = 0; j < kTurns; ++j)
                    mma_sp<kPiece, kPiece, 0>(products[tile][j], a[tile].of_a(term), b[j].of_b(term), words[tile]);
#pragma unroll
        for (int tile = 0; tile < kTilesM; ++tile)
#pragma unroll
            for (int j = 0; j < kTurns; ++j)
#pragma unroll
                for (int q = 0; q < 4; ++q) sums[tile][f + j][q] += products[tile][j][q];
    }
}

// Sums over all of k.  Every iteration commits one group of copies, empty ones included, so waiting for all but the
// last STAGES - 2 groups means that the stage of this iteration is there.
template <bool CAREFUL> inline void multiply_all(Sums& sums, float* ring, const Operands& of, const Shape& s) {
    const Lane w;
    const int count = (s.k + kTileK - 1) / kTileK;
    const auto ask = [&](int i) {
        if (i < count) fill(shared_address(ring + i % STAGES * kStageFloats), of, s, i * kTileK);
        commit_copies();
    };
    for (int i = 0; i < STAGES - 1; ++i) ask(i);
    for (int i = 0; i < count; ++i) {
        wait_copies<STAGES - 2>();
        __syncthreads();  // stage i is there for all, and nobody reads the one before it any more
        ask(i + STAGES - 1);
        multiply<CAREFUL>(sums, ring + i % STAGES * kStageFloats, w.warp, w);
    }
    wait_copies<0>();
    __syncthreads();
}

// Calls visit(sum, its row and column in the tile) for all sums of a lane.
template <class S, class Visit> inline void each_sum(S& sums, const Lane& w, Visit visit) {
#pragma unroll
    for (int tile = 0; tile < kTilesM; ++tile)
#pragma unroll
        for (int f = 0; f < kTilesN; ++f)
#pragma unroll
            for (int q = 0; q < 4; ++q) visit(sums[tile][f][q], 16 * tile + w.g + q / 2 * 8, 8 * f + 2 * w.t + q % 2);
}

extern "C" __global__ void __launch_bounds__(kThreads, BLOCKS)
split_skinny(const char* values, const char* packed, const float* b, float* out, const __grid_constant__ Shape s,
             const __grid_constant__ EpilogueParams p) {
    extern __shared__ __align__(16) float memory[];
    // Blocks of the same rows are neighbours, so that L2 serves them all.
    const int tiles_n = (s.n + TILE_N - 1) / TILE_N, tiles_m = (s.m + TILE_M - 1) / TILE_M;
    const int batch = blockIdx.x / tiles_n / tiles_m;
    const Operands of = {values + batch * s.a_batch, packed + batch * s.meta_batch, b + batch * s.b_batch,
                         int(blockIdx.x / tiles_n % tiles_m) * TILE_M, int(blockIdx.x % tiles_n) * TILE_N};
    Sums sums = {};
    let_next_start();
    wait_for_previous();
    multiply_all<false>(sums, memory, of, s);
    const Lane w;
    bool finite = true;
    each_sum(sums, w, [&](float sum, int, int) { finite &= is_finite(sum); });
    if (__syncthreads_or(!finite)) {
        each_sum(sums, w, [](float& sum, int, int) { sum = 0; });
        multiply_all<true>(sums, memory, of, s);
    }
    each_sum(sums, w, [&](float sum, int row, int column) {
        memory[w.warp * kPartial + row * kSumsPitch + column] = sum;
    });
    __syncthreads();
    out += batch * s.out_batch;
    deal<TILE_M * TILE_N>([&](int i) {
        const int row = OUT_COLUMN ? i % TILE_M : i / TILE_N, column = OUT_COLUMN ? i / TILE_M : i % TILE_N;
        float sum = 0;
#pragma unroll
        for (int warp = 0; warp < WARPS; ++warp) sum += memory[warp * kPartial + row * kSumsPitch + column];
        const int r = of.m0 + row, c = of.n0 + column;
        if (r < s.m && c < s.n)
            out[r * s.out_row + c * s.out_column] = epilogue<Kind::OUTPUT, EPILOGUE, ACTIVATION>(sum, p, batch, r, c);
    });
}
