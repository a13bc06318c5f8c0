// mixed_bricks: a slice of a quantised A, for mixed_tile.cuh: the bricks of its rows (bricks.cuh), one after the other.
// In memory the bricks of the next 16 rows are atoms_k further, so each comes by a bulk copy of its own.
//
// Integers become elements of the type of b, rounded as those of a dequantised matrix are (dequantise.cu).
#pragma once
#include "bricks.cuh"
#include "pair.cuh"

constexpr u32 kSlotBytes = (BLOCK_M / kBrickRows * kBrick + 1023) / 1024 * 1024;  // a swizzle may begin behind it

// Where slices come from.
class Weight {
  public:
    __device__ Weight(const TensorMaps&, const unsigned char* bricks, const Shape& shape) : bricks_(bricks), shape_(shape) {}

    // That arrive of such rows of a slice.
    __device__ u32 bytes(const RowsOfA& rows) const { return bricks(rows) * kBrick; }
    __device__ void fetch(const RowsOfA& rows, int slice, u32 slot, u32 barrier) const {
        const long long first = (long long)(rows.first / kBrickRows) * shape_.atoms_k + slice;
        const u32 further = shape_.atoms_k * kBrick;  // all multiples are kept, and of 64 bits they would spill
        const unsigned char* from = bricks_ + rows.batch * shape_.packed_batch + first * kBrick;
        const u32 to = slot + rows.at / kBrickRows * kBrick;
        const int count = bricks(rows);
#pragma unroll
        for (int i = 0; i < kTileM / kBrickRows; i++, from += further)
            if (i < count) load_bytes(to + i * kBrick, from, kBrick, barrier);
    }

  private:
    __device__ static int bricks(const RowsOfA& rows) { return (rows.count + kBrickRows - 1) / kBrickRows; }

    const unsigned char* bricks_;
    const Shape& shape_;
};

// What a lane loads of a slot for rows g and g + 8 of the 16 rows that its warp has of each 64.
class Slice {
  public:
    __device__ explicit Slice(int first_row) {
        const u32 lane = threadIdx.x % 32;
        brick_ = (first_row / kBrickRows + threadIdx.x / 32 % 4) * kBrick;
        g_ = lane / 4, t_ = lane % 4;
    }
    template <int part> __device__ void load(Fragments& to, u32 slot) const {
#pragma unroll
        for (int r = 0; r < kRowBlocks; r++) {
            const u32 brick = slot + brick_ + r * (64 / kBrickRows) * kBrick;
            const uint2 codes = load_shared2(brick + kCodesAt + 16 * g_ + 128 * (t_ % 2) + part * 8);
            to.codes[r][0] = codes.x, to.codes[r][1] = codes.y;
            load_row<part, 0>(to.a[r], brick);
            load_row<part, 1>(to.a[r], brick);
        }
    }

  private:
    // Row g, or g + 8 if `half` is 1, of the steps of a stage.  With BITS 4 one word has both steps.
    template <int part, int half> __device__ void load_row(u32 (&a)[kSteps][4], u32 brick) const {
        const u32 row = g_ + 8 * half;
        const float factor = __uint_as_float(load_shared(brick + kFactorsAt + 4 * row));
        const auto word_of = [&](int step) {
            return load_shared(brick + (part * kSteps + step) / kChunkSteps * kChunkBytes + 16 * row + 4 * t_);
        };
        const u32 first = word_of(0), second = kChunkSteps == 1 ? word_of(1) : first;
        scale<0, half>(a[0], first, factor);
        scale<kChunkSteps - 1, half>(a[1], second, factor);
    }
    template <int step, int half> __device__ static void scale(u32 (&a)[4], u32 word, float factor) {
        a[half] = scaled(widen_word<Kind::float16, step, 0>(word), factor);
        a[half + 2] = scaled(widen_word<Kind::float16, step, 1>(word), factor);
    }
    __device__ static u32 scaled(u32 pair, float factor) {
        const float2 x = __half22float2(reinterpret_cast<const __half2&>(pair));
        return pair_of<Kind::ELEMENT>(x.x * factor, x.y * factor);
    }

    u32 brick_, g_, t_;
};
