// piece: the part of a matrix that one thread compresses, and where it lies.
//
//   16-bit and wider   rows g and g + 8, 16 columns: four groups in each row
//   8-bit              one row, 32 columns: eight groups
//
// So a piece has 32 bits of metadata, which are one 32-bit word of the packed order, and no
// thread needs its neighbours (order: sparse24/_spec.py).  A warp holds 16 rows by 8 pieces.
//
// A step is what Lanes<ITEM> takes in at once: groups c of both rows (16-bit), every second
// group of the row (8-bit), one group (wider).
#pragma once
#include "lanes.cuh"

template <int BYTES> struct Chunk;
template <> struct Chunk<16> { using type = uint4; };
template <> struct Chunk<8> { using type = uint2; };
template <> struct Chunk<4> { using type = unsigned; };
template <> struct Chunk<2> { using type = unsigned short; };
template <> struct Chunk<1> { using type = unsigned char; };

// Reads COUNT 32-bit words from an address that is a multiple of ALIGN bytes.
template <int ALIGN, int COUNT> void load_words(const char* at, unsigned (&words)[COUNT]) {
    using T = typename Chunk<ALIGN>::type;
    const T* source = reinterpret_cast<const T*>(at);
    if constexpr (ALIGN >= 4) {
        for (int i = 0; i < COUNT * 4 / ALIGN; i++) {
            const T chunk = __ldg(source + i);
            for (int j = 0; j < ALIGN / 4; j++)
                words[i * ALIGN / 4 + j] = reinterpret_cast<const unsigned*>(&chunk)[j];
        }
    } else {
        for (int i = 0; i < COUNT; i++) {
            words[i] = 0;
            for (int j = 0; j < 4 / ALIGN; j++)
                words[i] |= (unsigned)__ldg(source + i * 4 / ALIGN + j) << 8 * ALIGN * j;
        }
    }
}

// Reads COUNT words of elements of ITEM bytes, `stride` bytes apart, of which the first `valid`
// exist; the others are zero.  ALIGN 0 says nothing about stride or address.
template <int ITEM, int ALIGN, int COUNT>
void load_elements(const char* at, long long stride, int valid, unsigned (&words)[COUNT]) {
    constexpr int elements = COUNT * 4 / ITEM;
    if constexpr (ALIGN > 0) {
        if (valid >= elements) return load_words<ALIGN>(at, words);
    }
    for (int i = 0; i < COUNT; i++) words[i] = 0;
    for (int e = 0; e < elements; e++) {
        if (e >= valid) continue;
        const char* place = at + e * stride;
        if constexpr (ITEM <= 2) {
            using T = typename Chunk<ITEM>::type;
            words[e * ITEM / 4] |= (unsigned)__ldg((const T*)place) << 8 * (e * ITEM % 4);
        } else {
            for (int j = 0; j < ITEM / 4; j++)
                words[e * ITEM / 4 + j] = __ldg((const unsigned*)place + j);
        }
    }
}

// Writes COUNT words of elements, of which the first `valid` exist.
template <int ITEM, int ALIGN, int COUNT>
void store_elements(char* at, long long stride, int valid, const unsigned (&words)[COUNT]) {
    constexpr int elements = COUNT * 4 / ITEM;
    if (ALIGN == 16 && valid >= elements) {
        if constexpr (COUNT % 4 == 0)
            for (int i = 0; i < COUNT / 4; i++)
                ((uint4*)at)[i] = make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]);
        else
            for (int i = 0; i < COUNT; i++) ((unsigned*)at)[i] = words[i];
        return;
    }
    for (int e = 0; e < elements; e++) {
        if (e >= valid) continue;
        char* place = at + e * stride;
        if constexpr (ITEM == 1) *place = (char)(words[e / 4] >> e % 4 * 8);
        else if constexpr (ITEM == 2) *(unsigned short*)place = (unsigned short)(words[e / 2] >> e % 2 * 16);
        else for (int w = 0; w < ITEM / 4; w++) ((unsigned*)place)[w] = words[e * ITEM / 4 + w];
    }
}

template <int ITEM> struct Piece {
    using Word = typename Lanes<ITEM>::word;
    static constexpr int rows = ITEM == 1 ? 1 : 2;
    static constexpr int columns = ITEM == 1 ? 32 : 16;
    static constexpr int groups = columns / 4;
    static constexpr int steps = rows * groups / Lanes<ITEM>::count;
    static constexpr int words = columns * ITEM / 4;  // 32-bit words of a row

    // The four words of a step, from the rows.
    static void spread(const unsigned (&x)[rows][words], int step, Word (&out)[4]) {
        if constexpr (ITEM == 1) {
            const unsigned in[4] = {x[0][step], x[0][2 + step], x[0][4 + step], x[0][6 + step]};
            transpose_bytes(in, out);
        } else if constexpr (ITEM == 2) {
            for (int i = 0; i < 4; i++)
                out[i] = permute(x[0][2 * step + i / 2], x[1][2 * step + i / 2],
                                     i % 2 ? 0x7632 : 0x5410);
        } else {
            const int row = step / groups, at = step % groups * ITEM;
            for (int i = 0; i < 4; i++) {
                if constexpr (ITEM == 4) out[i] = x[row][at + i];
                else out[i] = x[row][at + 2 * i] | (Word)x[row][at + 2 * i + 1] << 32;
            }
        }
    }

    // Flags of a step from a word per group, whose byte i has its top bit set for element i.
    static void spread_flags(const unsigned (&x)[rows][groups], int step, Word (&out)[4]) {
        if constexpr (ITEM == 1) {
            spread(x, step, out);
        } else {
            for (int i = 0; i < 4; i++) {
                if constexpr (ITEM == 2)
                    out[i] = permute(x[0][step], x[1][step], 0x4400 + 0x1111 * i);
                else
                    out[i] = (Word)x[step / groups][step % groups] << 8 * (ITEM - 1 - i);
            }
        }
    }

    // The inverse of spread, for the stored pairs of all steps: words of the rows.
    static void gather(const Word (&first)[steps], const Word (&second)[steps],
                       unsigned (&out)[rows][words / 2]) {
        if constexpr (ITEM == 1) {
            const unsigned in[4] = {first[0], second[0], first[1], second[1]};
            transpose_bytes(in, out[0]);
        } else if constexpr (ITEM == 2) {
            for (int c = 0; c < steps; c++) {
                out[0][c] = permute(first[c], second[c], 0x5410);
                out[1][c] = permute(first[c], second[c], 0x7632);
            }
        } else {
            for (int s = 0; s < steps; s++) {
                const int row = s / groups, at = s % groups * ITEM / 2;
                out[row][at] = (unsigned)first[s], out[row][at + ITEM / 4] = (unsigned)second[s];
                if constexpr (ITEM == 8) {
                    out[row][at + 1] = (unsigned)(first[s] >> 32);
                    out[row][at + 3] = (unsigned)(second[s] >> 32);
                }
            }
        }
    }

    // The metadata word: row g low and row g + 8 high, or the eight groups of the row.
    static unsigned code_word(const Word (&bits)[ITEM > 2 ? rows : 1]) {
        if constexpr (ITEM <= 2) return bits[0];
        else return (unsigned)(bits[0] >> (8 * ITEM - 16)) | (unsigned)(bits[1] >> (8 * ITEM - 32)) & 0xffff0000u;
    }
};

// Which pieces a thread has.  A block of four warps covers the 64 rows of an atom and eight pieces across; blocks go
// along k first, then along m, then through the batch.
template <int ITEM> struct Place {
    static constexpr int pieces = ITEM == 1 ? 4 : 2;
    static constexpr int columns = 8 * Piece<ITEM>::columns;  // of a block

    long long batch;
    int row, column;  // of piece 0; piece i is 4 i rows below
    int atom, m_atoms;  // the piece's atom, counted through the batch; atoms along m
    int word;           // of piece 0 in the atom; piece i is 16 i further
    bool inside;        // columns belong to an atom that exists

    Place(int m, int k) {
        const int lane = threadIdx.x & 31, quarter = threadIdx.x >> 5;
        const int segment = lane & 7, group = lane >> 3;
        const int k_atoms = (k + 127) / 128, k_blocks = (k + columns - 1) / columns;
        m_atoms = (m + 63) / 64;
        const unsigned m_block = blockIdx.x / k_blocks;
        batch = m_block / m_atoms;
        const int m_atom = m_block % m_atoms;
        column = (blockIdx.x % k_blocks) * columns + segment * Piece<ITEM>::columns;
        row = m_atom * 64 + quarter * 16 + group;
        const int k_atom = column / 128;
        inside = k_atom < k_atoms;
        atom = k_atom * m_atoms + m_atom;
        word = quarter * 64 + (ITEM == 1 ? 4 * group + (segment & 3)
                                         : 4 * group + (segment >> 1) + 32 * (segment & 1));
        atom += (int)batch * k_atoms * m_atoms;
    }
    long long packed_word(int piece) const { return (long long)atom * 256 + word + 16 * piece; }
};

// Writes a piece's stored elements into their row, whose storage is `pitch` bytes wide.
template <int ITEM, int COUNT>
void store_values(char* row, long long pitch, int column, const unsigned (&words)[COUNT]) {
    const long long start = (long long)column / 2 * ITEM;
    for (int i = 0; i < COUNT / 4; i++)
        if (start + 16 * i < pitch)
            *(uint4*)(row + start + 16 * i) =
                make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]);
}
