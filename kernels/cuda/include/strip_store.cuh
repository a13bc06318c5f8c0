// strip_store: from the accumulators of a warpgroup to rows of the result that are not neighbours.
//
// Strips of rows of similar density hold rows from anywhere in the matrix.  The TMA copies boxes, so it cannot
// put them back; `rows` says where each of them belongs.  As in hopper_store.cuh, 64 rows by 64 columns at a
// time become lines of 128 bytes in shared memory.  Eight threads then write one line, 16 bytes each, so that
// every row of a chunk is one full cache line, and a warp writes four at once.  Where rows of the result are not
// contiguous on 16-byte boundaries, and at its right edge, elements are written one by one.
//
// One buffer is enough, because only the threads themselves read it.  There is no epilogue.
// Compiled as hopper_store.cuh is, with OUT_ROW_MAJOR 1, OUT_BULK 0 and an OUTPUT of 16 bits.
#pragma once
#include "hopper_store.cuh"

class StripStore {
    static_assert(OUT_ROW_MAJOR && !OUT_BULK && kOutBytes == 2 && kLineBytes == 128 && kPlain);

  public:
    // `rows`: numbers in the result of the rows of all strips; m or more: none.  `staging`: kStagingBytes
    // for this warpgroup alone.
    __device__ StripStore(const OutView& out, const int* rows, int m, int n, u32 staging)
        : out_(out), rows_(rows), m_(m), n_(n), staging_(staging) {}

    // Store d, as ResultStore does; `row` counts in the order of the strips.
    template <class Complete>
    __device__ void store(Sum (&d)[BLOCK_N / 2], int row, int column, int batch, Complete complete) const {
        auto* out = static_cast<Out::type*>(out_.data) + batch * out_.batch;
#pragma unroll
        for (int chunk = 0; chunk < BLOCK_N / kChunk; chunk++) {
            Sum sums[kChunk / 2];
#pragma unroll
            for (int i = 0; i < kChunk / 2; i++) sums[i] = d[chunk * kChunk / 2 + i];
            if (!complete(sums, chunk * kChunk / 2)) continue;
            const int at = column + chunk * kChunk;
            const Targets targets(rows_ + row);
            sync();  // all have read the last chunk
            arrange(sums);
            sync();
            if (aligned(out) && at + kChunk <= n_)
                write_lines(out + at, targets);
            else
                write_elements(out, row, at);
        }
    }
    __device__ void finish() const {}

  private:
    static constexpr int kUnits = kLineBytes / 16, kStep = 128 / kUnits;  // of a line; lines at a time

    // Where this thread's units of a chunk go, loaded before they are needed.
    struct Targets {
        u32 row[kLines / kStep];

        __device__ explicit Targets(const int* rows) {
#pragma unroll
            for (int i = 0; i < kLines / kStep; i++) row[i] = rows[line(i)];
        }
        __device__ static int line(int i) { return i * kStep + threadIdx.x % 128 / kUnits; }
    };

    __device__ static void sync() { group_sync(1 + threadIdx.x / 128, 128); }

    // Of every 8-column block a thread has rows g and g + 8, columns 2 t and 2 t + 1: four 8x8 matrices are
    // 16 rows by 16 columns.
    __device__ void arrange(const Sum (&x)[kChunk / 2]) const {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
        const int row = 16 * warp + lane % 16, column = lane / 16 * 8;
#pragma unroll
        for (int j = 0; j < kChunk / 2; j += 8)
            store_matrices(staging_ + staged(row, 2 * j + column), pair(x + j), pair(x + j + 2), pair(x + j + 4), pair(x + j + 6));
    }
    __device__ static u32 pair(const float* x) { return pair_of<Kind::OUTPUT>(x[0], x[1]); }

    __device__ bool aligned(const Out::type* out) const {
        return out_.column == 1 && ((u64)out | out_.row * kOutBytes) % 16 == 0;
    }
    __device__ void write_lines(Out::type* out, const Targets& targets) const {
        const int column = threadIdx.x % kUnits * (16 / kOutBytes);
#pragma unroll
        for (int i = 0; i < kLines / kStep; i++) {
            const uint4 unit = load_shared4(staging_ + staged(Targets::line(i), column));
            auto* to = out + (u64)targets.row[i] * (u64)out_.row + column;
            if (targets.row[i] < (u32)m_) put(to, unit);
        }
    }
    // In PTX, because the compiler would make four instructions of an assignment.
    __device__ static void put(void* to, const uint4& x) {
        asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
                     ::"l"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
    }
    __device__ void write_elements(Out::type* out, int row, int column) const {
        for (int i = threadIdx.x % 128; i < kLines * kChunk; i += 128) {
            const int line = i / kChunk, c = i % kChunk, target = rows_[row + line];
            if (target < m_ && column + c < n_)
                out[target * out_.row + (column + c) * out_.column] =
                    *static_cast<const Out::type*>(__cvta_shared_to_generic(staging_ + staged(line, c)));
        }
    }

    const OutView& out_;
    const int* rows_;
    int m_, n_;
    u32 staging_;
};
