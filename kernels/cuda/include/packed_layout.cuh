// packed_layout: where the 4-bit code of a group lies in packed metadata.
//
// Metadata comes in atoms of 64 rows by 128 columns, 1024 bytes each.  Atoms follow one another along M, then along K.
// Inside an atom, with row and column counted from its corner, w = row / 16, r8 = row / 8 % 2, g = row % 8, and k the
// first column of the group:
//
//   elements of 2, 4, 8 bytes   bit = (k & 15) + 16 r8 + 32 (k >> 5) + 128 g
//                                     + 1024 ((k >> 4) & 1) + 2048 w
//   elements of 1 byte          bit = 128 row + k
//
// So a 32-bit word holds 16 columns of rows g (low half) and g + 8 (high half), or 32 columns of one row.
// sparse24/_spec.py has the same numbers, and the atoms of TF32.
#pragma once

constexpr int kAtomM = 64, kAtomK = 128, kAtomBytes = 1024;

// Byte offset of the byte that holds the code of (row, column), column a multiple of 4.
template <int element_bytes>
__device__ __forceinline__ long long packed_byte(long long row, int column, long long m_atoms, int& shift) {
    const int r = int(row % kAtomM), k = column % kAtomK;
    const int bit = element_bytes == 1
        ? 128 * r + k
        : (k & 15) + 16 * ((r >> 3) & 1) + 32 * (k >> 5) + 128 * (r & 7) + 1024 * ((k >> 4) & 1) + 2048 * (r >> 4);
    shift = bit & 7;
    return ((column / kAtomK) * m_atoms + row / kAtomM) * kAtomBytes + (bit >> 3);
}

// The code of the group that starts at (row, column).
template <int element_bytes>
__device__ __forceinline__ int packed_code(const unsigned char* packed, long long row, int column, long long m_atoms) {
    int shift;
    const long long at = packed_byte<element_bytes>(row, column, m_atoms, shift);
    return (packed[at] >> shift) & 15;
}
