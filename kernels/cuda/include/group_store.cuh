// group_store: from the accumulators of a warpgroup to the columns of a result that belong to one group.
//
// Columns of the result are contiguous.  As in hopper_store.cuh, 64 rows by kChunk columns at a time become lines in
// shared memory.  Threads then write the lines, 16 bytes each, up to the end of the group: the copy engine could not
// stop there.  One buffer is enough, as nothing reads it after the threads have.
//
// Compiled as hopper_store.cuh is, with OUT_ROW_MAJOR 0, and with -DBIAS (1: a vector for each group is added).
#pragma once
#include "hopper_store.cuh"

struct GroupOut {
    void* data;
    long long pitch;     // from one column to the next, in elements
    const float* bias;   // [groups, m]
    int m;
};

class GroupStore {
    static_assert(!OUT_ROW_MAJOR);

  public:
    // `staging`: kStagingBytes for this warpgroup alone.
    __device__ GroupStore(const GroupOut& out, u32 staging) : out_(out), staging_(staging) {}

    // Store d, whose corner is (row, first) and of which columns before `end` belong to the group.
    __device__ void store(const Sum (&d)[BLOCK_N / 2], int row, int first, int end, int group) const {
        const int g = threadIdx.x % 32 / 4, warp = threadIdx.x / 32 % 4, top = row + 16 * warp + g;
        const float bias[2] = {bias_of(group, top), bias_of(group, top + 8)};
#pragma unroll
        for (int chunk = 0; chunk < BLOCK_N / kChunk; chunk++) {
            const int column = first + chunk * kChunk;
            if (column >= end) continue;
            sync();  // all have read the last chunk
            arrange(d, chunk * kChunk / 2, bias);
            sync();
            write_lines(row, column, end);
        }
    }

  private:
    static constexpr int kUnits = kLineBytes / 16, kStep = 128 / kUnits;  // of a line; lines at a time

    __device__ static void sync() { group_sync(1 + threadIdx.x / 128, 128); }

    __device__ float bias_of(int group, int row) const {
        return BIAS && row < out_.m ? out_.bias[(long long)group * out_.m + row] : 0.f;
    }
    __device__ static auto value(Sum sum, float bias) {
        if constexpr (BIAS) return Out::real(sum) + bias;
        else return sum;
    }

    // Of every 8-column block a thread has four elements: rows g and g + 8, columns 2 t and 2 t + 1.
    __device__ void arrange(const Sum (&d)[BLOCK_N / 2], int first, const float (&bias)[2]) const {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, g = lane / 4, t = lane % 4;
#pragma unroll
        for (int j = 0; j < kChunk / 8; j++) {
            const Sum* x = d + first + 4 * j;
            if constexpr (kOutBytes == 2) {
                if (j % 2) continue;  // two blocks at a time: 16 rows by 16 columns, as four 8x8 matrices
                const int row = 16 * warp + 8 * (lane / 8 % 2), column = 8 * (j + lane / 16) + lane % 8;
                store_matrices_transposed(staging_ + staged(row, column), pair(x, bias[0]), pair(x + 2, bias[1]),
                                          pair(x + 4, bias[0]), pair(x + 6, bias[1]));
            } else {
#pragma unroll
                for (int i = 0; i < 4; i++)
                    put(staged(16 * warp + g + 8 * (i / 2), 8 * j + 2 * t + i % 2), Out::store(value(x[i], bias[i / 2])));
            }
        }
    }
    __device__ static u32 pair(const Sum* x, float bias) {
        return pair_of<Kind::OUTPUT>(float(value(x[0], bias)), float(value(x[1], bias)));
    }
    __device__ void put(u32 at, Out::type x) const {
        *static_cast<Out::type*>(__cvta_shared_to_generic(staging_ + at)) = x;
    }
    __device__ void write_lines(int row, int column, int end) const {
        const int within = threadIdx.x % kUnits * (16 / kOutBytes);
        auto* out = static_cast<Out::type*>(out_.data) + row + within;
#pragma unroll
        for (int i = 0; i < kLines; i += kStep) {
            const int line = i + threadIdx.x % 128 / kUnits;
            const uint4 unit = load_shared4(staging_ + staged(within, line));
            if (column + line < end && row + within < out_.m)
                *reinterpret_cast<uint4*>(out + (column + line) * out_.pitch) = unit;
        }
    }

    const GroupOut& out_;
    u32 staging_;
};
