// codes: read the metadata of a piece, and put stored elements back in their places.
//
// Compiled with -DCODES=0 for canonical metadata, 1 for packed.
#pragma once
#include "piece.cuh"

constexpr unsigned kEmptyCodes = 0x44444444u;

// One row's share of a piece's metadata word from the canonical order.
template <int ITEM> unsigned load_canonical(const unsigned char* row, long long bytes, int column) {
    constexpr int width = Piece<ITEM>::columns / 8;
    const int start = column / 8;
    if (start + width <= bytes && bytes % width == 0) {
        if constexpr (width == 2) return __ldg((const unsigned short*)(row + start));
        else return __ldg((const unsigned*)(row + start));
    }
    unsigned codes = 0;
    for (int i = 0; i < width; i++)
        codes |= (start + i < bytes ? (unsigned)__ldg(row + start + i) : 0x44u) << 8 * i;
    return codes;
}

// The inverse.
template <int ITEM>
void store_canonical(unsigned char* row, long long bytes, int column, unsigned codes) {
    constexpr int width = Piece<ITEM>::columns / 8;
    const int start = column / 8;
    if (start + width <= bytes && bytes % width == 0) {
        if constexpr (width == 2) *(unsigned short*)(row + start) = (unsigned short)codes;
        else *(unsigned*)(row + start) = codes;
        return;
    }
    for (int i = 0; i < width; i++)
        if (start + i < bytes) row[start + i] = (unsigned char)(codes >> 8 * i);
}

// The metadata word of piece p from canonical metadata (batch, m, bytes).
template <int ITEM>
unsigned canonical_word(const unsigned char* metadata, const Place<ITEM>& place, int p, int m, int k) {
    const long long bytes = (k + 7) / 8;
    unsigned word = kEmptyCodes;
    for (int r = 0; r < Piece<ITEM>::rows; r++) {
        const int row = place.row + 4 * p + 8 * r;
        if (row >= m || place.column >= k) continue;
        const unsigned codes = load_canonical<ITEM>(metadata + (place.batch * m + row) * bytes, bytes, place.column);
        word = ITEM == 1 ? codes : r ? (word & 0xffffu) | codes << 16 : (word & 0xffff0000u) | codes;
    }
    return word;
}

#ifdef CODES
template <int ITEM>
unsigned piece_codes(const void* codes, const Place<ITEM>& place, int p, int m, int k) {
    if (CODES == 0) return canonical_word<ITEM>((const unsigned char*)codes, place, p, m, k);
    return place.inside ? __ldg((const unsigned*)codes + place.packed_word(p)) : kEmptyCodes;
}
#endif

// For each code, the selectors of `permute` that turn a stored pair into a group of four: they number the bytes of
// the pair 0 to 2 ITEM - 1, and byte 4 is zero.  In shared memory; all threads call `fill`, then __syncthreads.
template <int ITEM> struct Places {
    static constexpr int words = ITEM == 2 ? 2 : 1;  // of a group
    unsigned selector[16][words];

    void fill() {
        if constexpr (ITEM > 2) return;
        constexpr int per_word = ITEM == 2 ? 2 : 4;
        for (int i = threadIdx.x; i < 16 * words; i += blockDim.x) {
            const int code = i / words;
            unsigned made = 0;
            for (int e = 0; e < per_word; e++) {
                const int place = i % words * per_word + e;
                const int slot = place == code >> 2 ? 1 : place == (code & 3) ? 0 : -1;
                for (int b = 0; b < ITEM; b++)
                    made |= (slot < 0 ? 4u : (unsigned)(slot * ITEM + b)) << 4 * (e * ITEM + b);
            }
            selector[code][i % words] = made;
        }
    }

    // Words of group c of a row, from the row's stored elements.
    void expand(const unsigned* stored, int c, unsigned code, unsigned (&out)[ITEM]) const {
        if constexpr (ITEM == 1) {
            out[0] = permute(stored[c / 2] >> 16 * (c % 2), 0, selector[code][0]);
        } else if constexpr (ITEM == 2) {
            for (int i = 0; i < 2; i++) out[i] = permute(stored[c], 0, selector[code][i]);
        } else {
            constexpr int width = ITEM / 4;
            for (int i = 0; i < 4; i++)
                for (int w = 0; w < width; w++) {
                    const unsigned first = stored[2 * c * width + w], second = stored[(2 * c + 1) * width + w];
                    out[i * width + w] = i == code >> 2 ? second : i == (code & 3) ? first : 0;
                }
        }
    }
};

// How kernels that write dense rows divide them among threads.  A thread takes 16 bytes of a row (8-byte elements: 32),
// so that every store instruction fills whole sectors of 32 bytes; with pieces it would fill halves.  A block covers
// the same rows and columns as with Place.
template <int ITEM> struct Line {
    static constexpr int columns = ITEM == 1 ? 16 : ITEM == 2 ? 8 : 4, groups = columns / 4;
    static constexpr int across = Place<ITEM>::columns / columns;  // threads on a row
    static constexpr int rows = ITEM == 1 ? 1 : 2;                 // g, and g + 8
    static constexpr int step = 32 / across;                       // rows of an access of a warp
    static constexpr int count = (ITEM == 1 ? 16 : 8) / step;      // accesses, for its 16 rows
    static constexpr int words = columns * ITEM / 4;

    Place<ITEM> piece;  // whose row, column and word are those of access 0
    int row, column, word, shift;

    Line(int m, int k) : piece(m, k) {
        const int lane = threadIdx.x & 31, quarter = threadIdx.x >> 5;
        const int segment = lane % across * columns / Piece<ITEM>::columns;  // a piece's column
        const int group = lane / across;
        row = piece.row - (lane >> 3) + group;
        column = piece.column - (lane & 7) * Piece<ITEM>::columns + lane % across * columns;
        shift = column % Piece<ITEM>::columns;
        word = quarter * 64 + 4 * group + (ITEM == 1 ? segment & 3 : (segment >> 1) + 32 * (segment & 1));
        const int k_atoms = (k + 127) / 128, m_atom = row / 64;
        piece.inside = column / 128 < k_atoms;
        piece.atom = ((int)piece.batch * k_atoms + column / 128) * piece.m_atoms + m_atom;
    }
    int row_of(int access, int r) const { return row + step * access + 8 * r; }

    // The codes of this thread's groups in row_of(access, r), the first group in the lowest bits.
    template <int PACKED_ORDER> unsigned codes(const void* in, int access, int r, int m, int k) const {
        if (PACKED_ORDER) {
            if (!piece.inside) return 0x4444u;
            const unsigned all = __ldg((const unsigned*)in + piece.atom * 256ll + word + 4 * step * access);
            return all >> (16 * r + shift);
        }
        const long long bytes = (k + 7) / 8;
        if (row_of(access, r) >= m || column >= k) return 0x4444u;
        const unsigned char* at = (const unsigned char*)in + (piece.batch * m + row_of(access, r)) * bytes;
        unsigned all = __ldg(at + column / 8);
        if (ITEM == 1 && column / 8 + 1 < bytes) all |= (unsigned)__ldg(at + column / 8 + 1) << 8;
        return all >> column % 8;
    }
};
