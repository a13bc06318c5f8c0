// band_store: writes a block's share of the result of a band, from the fragments of a warpgroup through shared memory.
//
// If the sums were stored directly from the registers, they would be requests of 16 bytes to the L2 cache, eight times
// as many as with whole lines, by 64 separate pieces of code that must be fetched.  That took 2 µs longer.
//
// Register 2 i + c of thread 32 w + 4 g + t in piece j of the sums (cluster_shares.cuh), with 128 or 256 threads, is
// element
//
//   columns first   row 8 j + 2 t + c                      column 16 w + 8 i + g
//   rows first      row 64 (j / tiles) + 16 w + 8 i + g    column 8 (j % tiles) + 2 t + c
// Source: PTX ISA, stmatrix.
#pragma once
#include "pair.cuh"

// Two 8x8 matrices of 16-bit elements; lane i gives the address of row i % 8 of matrix i / 8, for i < 16.
__device__ inline void store_two_matrices(u32 to, u32 a, u32 b) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(to), "r"(a), "r"(b) : "memory");
}
__device__ inline void store_two_matrices_transposed(u32 to, u32 a, u32 b) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(to), "r"(a), "r"(b) : "memory");
}

class BandStore {
    static constexpr int kAcross = kColumnsFirst ? kColumns / 8 : Shares::kShare < kSumTiles ? Shares::kShare : kSumTiles;
    static constexpr int kPieceRows = 64 * kGroups;  // or columns
    static constexpr u32 kPitch = kLine | 16;  // of a row, an odd multiple of 16: eight begin in different banks

  public:
    // `staging`: 128 * kPitch bytes of shared memory, 34 KB at most.
    __device__ BandStore(u32 staging, const Shares& shares)
        : staging_(staging), row_(kColumnsFirst ? 8 * shares.first() : shares.first() / kSumTiles * 64),
          column_(kColumnsFirst ? 0 : shares.first() % kSumTiles * 8) {}

    // A piece of the share: two 8x8 matrices of a warp.
    __device__ void put(int piece, const float4& x) const {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const int row = kColumnsFirst ? 8 * piece + lane % 8 : piece / kAcross * 64 + 16 * warp + lane % 16;
        const int octet = kColumnsFirst ? 2 * warp + lane / 8 % 2 : piece % kAcross;
        const u32 to = staging_ + row * kPitch + octet * 16;
        const u32 a = pair_of<Kind::ELEMENT>(x.x, x.y), b = pair_of<Kind::ELEMENT>(x.z, x.w);
        if (kColumnsFirst)
            store_two_matrices_transposed(to, a, b);
        else
            store_two_matrices(to, a, b);
    }
    // Write what has been put, 16 bytes at a time where the result's lines allow; all threads of the block.
    __device__ void copy(const Rows& band, const Product& out) const {
        const bool wide = out.column == 1 && out.row % 8 == 0 && reinterpret_cast<Count>(out.to) % 16 == 0;
        for (int i = threadIdx.x; i < Shares::kShare * kPieceRows; i += kThreads) {
            const int line = i / kAcross, octet = i % kAcross, row = band.first + row_ + line;
            if (row >= band.end) continue;
            const uint4 x = load_shared4(staging_ + line * kPitch + octet * 16);
            write(x, reinterpret_cast<Element*>(out.to) + row * out.row, column_ + 8 * octet, out, wide);
        }
    }

  private:
    __device__ static void write(const uint4& x, Element* row, int column, const Product& out, bool wide) {
        if (wide && column + 8 <= out.n) {
            *reinterpret_cast<uint4*>(row + column) = x;
            return;
        }
        const u32 words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (column + i < out.n) row[(column + i) * out.column] = Element(words[i / 2] >> i % 2 * 16);
    }

    u32 staging_;
    int row_, column_;  // of the share in the band
};
