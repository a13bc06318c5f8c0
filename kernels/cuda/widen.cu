// widen: a 2:4 matrix of 8-bit elements as one of 16 bits: each element exactly, the codes in another order.
//
//   values    [rows, pitch]       ELEMENT, `stored` of each row; 8-byte boundaries          (read once)
//   packed    [atoms, 1024]       the codes, in the order for 8-bit elements                (read once)
//   wide      [rows, wide_pitch]  OUTPUT, a type of 16 bits; 16-byte boundaries             (written)
//   repacked  [atoms, 1024]       the codes, in the order for 16-bit elements               (written)
//
// A warp widens a segment of a row, of which it stores 512 bytes at a time, or turns an atom of codes.  In an atom
// (packed_layout.cuh) the 8-bit order has 16 bytes for each row, half-word h of them for columns 16 h to 16 h + 15.
// The 16-bit order has words, whose halves are those of rows g and g + 8 of 16: of even h four words one after another,
// of odd h four others 128 bytes behind.  So a lane takes such a pair of rows, and stores 16 bytes twice.
//
// Macros: ELEMENT, int8 or a type of fp8, and OUTPUT.
//
// Reference: reference.pack_metadata, and conversion by NumPy.  Launcher: kernels/widen.py.
#include "packed_layout.cuh"
#include "widen_bytes.cuh"

constexpr Kind kFrom = Kind::ELEMENT, kTo = Kind::OUTPUT;
constexpr int kThreads = 256, kWarpsOfBlock = kThreads / 32;
constexpr int kPiece = 8;                       // elements that a lane widens at a time, to 16 bytes
constexpr int kTurns = 4;                       // pieces of a lane, which are all loaded before the first is stored
constexpr int kSegment = 32 * kPiece * kTurns;  // elements
constexpr int kLinesOfAtom = kAtomBytes / 16;   // of 16 bytes

struct Sizes {
    long long rows, atoms, pitch, wide_pitch;  // pitches in elements
    int stored;
};

// A piece, of which `left` elements are in the row.
__device__ uint2 load_piece(const unsigned char* from, int left) {
    if (left >= kPiece) return *reinterpret_cast<const uint2*>(from);
    uint2 piece = {};
    for (int i = 0; i < left; ++i) (i < 4 ? piece.x : piece.y) |= (unsigned)from[i] << i % 4 * 8;
    return piece;
}

__device__ uint4 widened(uint2 piece) {
    return {widen_pair<kFrom, kTo, false>(piece.x), widen_pair<kFrom, kTo, true>(piece.x),
            widen_pair<kFrom, kTo, false>(piece.y), widen_pair<kFrom, kTo, true>(piece.y)};
}

__device__ void store_piece(unsigned short* to, const uint4& piece, int left) {
    if (left >= kPiece) {
        *reinterpret_cast<uint4*>(to) = piece;
        return;
    }
    const unsigned words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
    for (int i = 0; i < kPiece; ++i)
        if (i < left) to[i] = (unsigned short)(words[i / 2] >> i % 2 * 16);
}

__device__ void widen_segment(const unsigned char* from, unsigned short* to, int left, int lane) {
    uint2 pieces[kTurns];
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
        const int at = (turn * 32 + lane) * kPiece;
        pieces[turn] = load_piece(from + at, left - at);
    }
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
        const int at = (turn * 32 + lane) * kPiece;
        store_piece(to + at, widened(pieces[turn]), left - at);
    }
}

// Half-words of two rows as words: the lower ones of their words, or the upper ones.
__device__ uint4 halves(const uint4& row, const uint4& other, unsigned selector) {
    return {__byte_perm(row.x, other.x, selector), __byte_perm(row.y, other.y, selector),
            __byte_perm(row.z, other.z, selector), __byte_perm(row.w, other.w, selector)};
}

__device__ void repack_atom(const uint4* from, uint4* to, int lane) {
    const int g = lane % 8, block = lane / 8;  // a row, and the 16 rows that it belongs to
    const uint4 row = from[16 * block + g], other = from[16 * block + g + 8];
    to[16 * block + g] = halves(row, other, 0x5410);
    to[16 * block + g + 8] = halves(row, other, 0x7632);
}

extern "C" __global__ void __launch_bounds__(kThreads)
widen(const unsigned char* values, const uint4* packed, unsigned short* wide, uint4* repacked,
      const __grid_constant__ Sizes s) {
    const int lane = threadIdx.x % 32, segments = (s.stored + kSegment - 1) / kSegment;
    const long long first = (long long)blockIdx.x * kWarpsOfBlock + threadIdx.x / 32;
    const long long warps = (long long)gridDim.x * kWarpsOfBlock;
    for (long long atom = first; atom < s.atoms; atom += warps)
        repack_atom(packed + atom * kLinesOfAtom, repacked + atom * kLinesOfAtom, lane);
    for (long long number = first; number < s.rows * segments; number += warps) {
        const long long row = number / segments;
        const int at = int(number - row * segments) * kSegment;
        widen_segment(values + row * s.pitch + at, wide + row * s.wide_pitch + at, s.stored - at, lane);
    }
}
