// mixed_values: a slice of A of 8-bit elements, for mixed_tile.cuh.
//
// A slot holds the elements, 64 bytes a row, whose 16-byte units are exchanged by the TMA's swizzle of 64 bytes, and
// behind them the codes, 16 bytes a row.  Each unit, and each word of codes, is a step: 32 columns of A.  Of a step,
// lane (g, t) of a warp takes rows g and g + 8:
//
//   elements   bytes 2 t, 2 t + 1 and those 8 further
//   codes      the first half of the word if t is even, else the second half (of lanes 2 and 3 none is taken)
#pragma once
#include "widen_bytes.cuh"

constexpr u32 kRowOfA = kAtomK / 2, kRowOfCodes = 16;  // bytes of a slice
constexpr u32 kABytes = BLOCK_M * kRowOfA;
constexpr u32 kSlotBytes = kABytes + BLOCK_M * kRowOfCodes;

// Where slices come from.
class Weight {
  public:
    __device__ Weight(const TensorMaps& values, const unsigned char* packed, const Shape& shape)
        : values_(values), packed_(packed), shape_(shape) {}

    // That arrive of such rows of a slice.
    __device__ u32 bytes(const RowsOfA& rows) const {
        constexpr int swizzled = 8;  // rows of a box come in groups of so many
        return (rows.count + swizzled - 1) / swizzled * swizzled * kRowOfA + code_bytes(rows);
    }
    __device__ void fetch(const RowsOfA& rows, int slice, u32 slot, u32 barrier) const {
        const TensorMap& values = values_.of[rows.count < kTileM];
        const long long atom = (long long)slice * shape_.atoms_m + rows.first / kAtomM;
        load_box(slot + rows.at * kRowOfA, values, slice * kRowOfA, rows.first, rows.batch, barrier);
        load_bytes(slot + kABytes + rows.at * kRowOfCodes,
                   packed_ + rows.batch * shape_.packed_batch + atom * kAtomBytes, code_bytes(rows), barrier);
    }

  private:
    __device__ static u32 code_bytes(const RowsOfA& rows) {
        return u32((rows.count + kAtomM - 1) / kAtomM * kAtomBytes);
    }

    const TensorMaps& values_;
    const unsigned char* packed_;
    const Shape& shape_;
};

// What a lane loads of a slot.  `first_row`: of the rows of a tile, the first of its warpgroup.
class Slice {
  public:
    __device__ explicit Slice(int first_row) {
        const u32 lane = threadIdx.x % 32, t = lane % 4;
        row_ = first_row + threadIdx.x / 32 % 4 * 16 + lane / 4;
        word_ = 4 * (t / 2);
        halves_ = t % 2 ? 0x7632 : 0x5410;
    }
    template <int part> __device__ void load(Fragments& to, u32 slot) const {
#pragma unroll
        for (int r = 0; r < kRowBlocks; r++) {
            const u32 row = row_ + 64 * r, codes = slot + kABytes + row * kRowOfCodes + part * 8;
            const uint2 upper = load_shared2(codes), lower = load_shared2(codes + 8 * kRowOfCodes);
            to.codes[r][0] = __byte_perm(upper.x, lower.x, halves_);
            to.codes[r][1] = __byte_perm(upper.y, lower.y, halves_);
#pragma unroll
            for (int i = 0; i < kSteps; i++) {
                const u32 unit = (part * kSteps + i) ^ (row / 2 % 4);  // rows 8 further have the same
                load_step(to.a[r][i], slot + row * kRowOfA + unit * 16 + word_);
            }
        }
    }

  private:
    __device__ void load_step(u32 (&a)[4], u32 from) const {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const u32 at = from + half * 8 * kRowOfA;
            const u32 bytes = __byte_perm(load_shared(at), load_shared(at + 8), halves_);
            a[half] = widen_pair<Kind::STORED, Kind::ELEMENT, false>(bytes);
            a[half + 2] = widen_pair<Kind::STORED, Kind::ELEMENT, true>(bytes);
        }
    }

    u32 row_, word_, halves_;
};
