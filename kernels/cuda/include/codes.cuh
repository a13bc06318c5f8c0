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

// The way back.
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

// For each code, the selectors of `permute` that turn a stored pair into a group: the bytes of
// the pair are 0 to 2 ITEM - 1, byte 4 is zero.  In shared memory; every thread calls `fill`.
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
