// hopper_store: from the accumulators of a warpgroup through the epilogue to the result.
//
// A warpgroup turns 64 rows by kChunk columns at a time into output elements, arranges them in a buffer in
// shared memory as lines along the contiguous axis of the result, and hands them to the TMA.  The TMA drops what lies
// outside the result, but always writes 16 bytes: a line must end on 16 bytes, or it must be allowed to overwrite what
// lies behind it (sparse24/_staging.py).  Results that the TMA cannot address (start or pitch not a multiple of 16
// bytes, or no contiguous axis) are written by the threads instead.
//
// A warpgroup has STAGING buffers of its own.  Its first thread, which asks the TMA, waits until the TMA has read what
// a buffer held before.  A named barrier of the warpgroup then lets all threads fill it, and a second one tells the
// first thread that they have.
//
// Compiled with -DOUTPUT, -DOUT_ROW_MAJOR, -DOUT_BULK (1: by the TMA) and -DSTAGING (buffers).
// Source: PTX ISA, wgmma.mma_async, fragment of D; stmatrix; tensor swizzling modes.
#pragma once
#include "epilogue.cuh"
#include "pair.cuh"
#include "wgmma_sp.cuh"

using Out = Scalar<Kind::OUTPUT>;
constexpr int kOutBytes = sizeof(Out::type);
constexpr int kChunk = kOutBytes == 4 || BLOCK_N == 32 ? 32 : 64;
constexpr int kLines = OUT_ROW_MAJOR ? 64 : kChunk;
constexpr int kLineBytes = (OUT_ROW_MAJOR ? kChunk : 64) * kOutBytes;
constexpr int kSpan = kLineBytes < 128 ? kLineBytes : 128;  // of a line in one box: its swizzle
constexpr int kStagingBytes = kLines * kLineBytes;
constexpr bool kPlain = EPILOGUE == 0;

struct OutView { void* data; long long row, column, batch; };  // strides in elements

// Byte offset of element (row, column) of a chunk: lines of kSpan bytes, whose 16-byte units are exchanged as the TMA's
// swizzle of 128 or 64 bytes does.  sparse_wgmma_plan.py refuses results whose lines would be shorter.
__device__ inline u32 staged(int row, int column) {
    const u32 line = OUT_ROW_MAJOR ? row : column, byte = (OUT_ROW_MAJOR ? column : row) * kOutBytes;
    const u32 swizzle = kSpan == 128 ? line % 8 : line / 2 % 4;
    return byte / kSpan * (kLines * kSpan) + line * kSpan + (byte % kSpan ^ swizzle << 4);
}

class ResultStore {
  public:
    // `staging`: STAGING buffers of kStagingBytes for this warpgroup alone.
    __device__ ResultStore(const TensorMap& map, const OutView& out, const EpilogueParams& params, int m, int n,
                           u32 staging)
        : map_(map), out_(out), params_(params), numbers_(params), m_(m), n_(n), staging_(staging) {}

    // Store d, whose corner is (row, column) of product `batch`.  `complete(sums, first)` is called for each chunk,
    // which begins at sum `first`.  It adds the sums of other blocks and returns true, or gives these sums to
    // another block and returns false.
    template <class Complete>
    __device__ void store(Sum (&d)[BLOCK_N / 2], int row, int column, int batch, Complete complete) {
        using Real = Out::real;
        const int g = threadIdx.x % 32 / 4, warp = threadIdx.x / 32 % 4, top = row + 16 * warp + g;
        EpilogueTerms<Real> rows[2];
        if (!kPlain && top < m_) rows[0] = row_terms<EPILOGUE, Real>(params_, top);
        if (!kPlain && top + 8 < m_) rows[1] = row_terms<EPILOGUE, Real>(params_, top + 8);
#pragma unroll
        for (int chunk = 0; chunk < BLOCK_N / kChunk; chunk++) {
            Sum sums[kChunk / 2];
#pragma unroll
            for (int i = 0; i < kChunk / 2; i++) sums[i] = d[chunk * kChunk / 2 + i];
            if (!complete(sums, chunk * kChunk / 2)) continue;
            const Columns columns(*this, column + chunk * kChunk);
            const u32 buffer = staging_ + turn_ * kStagingBytes;
            turn_ = turn_ + 1 == STAGING ? 0 : turn_ + 1;
            if (OUT_BULK && leader()) store_wait<STAGING - 1>();
            sync();
            arrange(sums, buffer, row, column + chunk * kChunk, batch, rows, columns);
            if (OUT_BULK) async_proxy_fence();
            sync();
            write(buffer, row, column + chunk * kChunk, batch);
        }
    }
    // Before the block ends: shared memory must outlive the copies.
    __device__ void finish() const {
        if (OUT_BULK && leader()) store_wait<0>();
    }

  private:
    // The terms of this thread's columns of a chunk, two in each 8-column block, loaded together.
    struct Columns {
        EpilogueTerms<Out::real> terms[kChunk / 8][2];

        __device__ Columns(const ResultStore& store, int column) {
#pragma unroll
            for (int i = 0; i < kChunk / 4; i++) {
                const int at = column + i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2;
                if (at < store.n_) terms[i / 2][i % 2] = column_terms<EPILOGUE, Out::real>(store.params_, at);
            }
        }
    };

    __device__ static bool leader() { return threadIdx.x % 128 == 0; }
    __device__ static void sync() { group_sync(1 + threadIdx.x / 128, 128); }

    __device__ auto value(Sum sum, int row, int column, int batch, EpilogueTerms<Out::real> of_row,
                          EpilogueTerms<Out::real> of_column) const {
        if constexpr (EPILOGUE & (kC | kAux)) {  // only these read or write at (row, column); the test costs a tenth
            if (row >= m_ || column >= n_) return Out::real(0);
        }
        return epilogue_value<Kind::OUTPUT, EPILOGUE, ACTIVATION>(sum, params_, batch, row, column, of_row,
                                                                  of_column, numbers_);
    }

    // Stage a chunk.  Of every 8-column block a thread has four elements: rows g and g + 8, columns 2 t
    // and 2 t + 1.
    __device__ void arrange(const Sum (&sums)[kChunk / 2], u32 buffer, int row, int column, int batch,
                            const EpilogueTerms<Out::real> (&rows)[2], const Columns& columns) const {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, g = lane / 4, t = lane % 4;
        u32 packed[4];
#pragma unroll
        for (int j = 0; j < kChunk / 8; j++) {
            const int local = 8 * j + 2 * t, at = column + local;
            decltype(value(Sum(), 0, 0, 0, rows[0], rows[0])) x[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                x[i] = value(sums[4 * j + i], row + 16 * warp + g + 8 * (i / 2), at + i % 2, batch, rows[i / 2],
                             columns.terms[j][i % 2]);
            if constexpr (kOutBytes == 2) {
                packed[2 * (j % 2)] = pair_of<Kind::OUTPUT>(x[0], x[1]);
                packed[2 * (j % 2) + 1] = pair_of<Kind::OUTPUT>(x[2], x[3]);
                if (j % 2) matrices(buffer, packed, warp, j - 1, lane);
            } else {
#pragma unroll
                for (int i = 0; i < 4; i++)
                    put(buffer + staged(16 * warp + g + 8 * (i / 2), local + i % 2), Out::store(x[i]));
            }
        }
    }
    // 16 rows by 16 columns, from 8-column block j on, as four 8x8 matrices.
    __device__ static void matrices(u32 buffer, const u32 (&x)[4], int warp, int j, int lane) {
        const int row = 16 * warp + 8 * (lane / 8 % 2), column = 8 * (j + lane / 16), line = lane % 8;
        if constexpr (OUT_ROW_MAJOR)
            store_matrices(buffer + staged(row + line, column), x[0], x[1], x[2], x[3]);
        else
            store_matrices_transposed(buffer + staged(row, column + line), x[0], x[1], x[2], x[3]);
    }
    template <class T> __device__ static void put(u32 to, T x) {
        if constexpr (sizeof(T) == 4)
            asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(reinterpret_cast<const u32&>(x)) : "memory");
        else
            asm volatile("st.shared.u8 [%0], %1;"
                         ::"r"(to), "r"((u32) reinterpret_cast<const unsigned char&>(x)) : "memory");
    }

    __device__ void write(u32 buffer, int row, int column, int batch) const {
        if constexpr (OUT_BULK) {
            if (leader() && row < m_ && column < n_) {
#pragma unroll
                for (int span = 0; span < kLineBytes / kSpan; span++) {
                    const int along = span * kSpan / kOutBytes;
                    store_box(map_, (OUT_ROW_MAJOR ? column : row) + along, OUT_ROW_MAJOR ? row : column, batch,
                              buffer + span * kLines * kSpan);
                }
            }
            if (leader()) store_commit();
        } else {
            auto* out = static_cast<Out::type*>(out_.data) + batch * out_.batch;
            constexpr int length = kLineBytes / kOutBytes;
            for (int i = threadIdx.x % 128; i < kLines * length; i += 128) {
                const int r = OUT_ROW_MAJOR ? i / length : i % length, c = OUT_ROW_MAJOR ? i % length : i / length;
                if (row + r < m_ && column + c < n_)
                    out[(row + r) * out_.row + (column + c) * out_.column] = *static_cast<const Out::type*>(
                        __cvta_shared_to_generic(buffer + staged(r, c)));
            }
        }
    }

    const TensorMap& map_;
    const OutView& out_;
    const EpilogueParams& params_;
    EpilogueNumbers<Out::real> numbers_;
    int m_, n_;
    u32 staging_;
    int turn_ = 0;
};
