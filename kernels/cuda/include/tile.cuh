// tile: 64 rows and 128 columns of a matrix whose rows are the contiguous axis, in shared memory.
//
// One metadata atom's share.  A block of 256 threads works on it; a thread takes the lanes of
// one word, `lanes` neighbouring rows, and `span` columns of them, so it needs no shuffling.
// Rows are padded by a word against bank conflicts.
#pragma once
#include "lanes.cuh"

template <int ITEM> struct Tile {
    using Word = typename Lanes<ITEM>::word;
    static constexpr int lanes = Lanes<ITEM>::count;
    static constexpr int row_threads = 64 / lanes, span = row_threads / 2;
    static constexpr int value_words = 16 * ITEM;  // 32-bit words of 64 stored elements
    static constexpr int value_pitch = value_words + (ITEM == 8 ? 2 : 1);
    static constexpr int code_pitch = 20;

    alignas(16) unsigned values[64 * value_pitch];
    alignas(16) unsigned char codes[64 * code_pitch];

    static int my_row() { return threadIdx.x % row_threads * lanes; }
    static int my_column() { return threadIdx.x / row_threads * span; }

    char* pair(int row, int group) {
        return reinterpret_cast<char*>(values + row * value_pitch) + (my_column() / 2 + 2 * group) * ITEM;
    }
    unsigned char* code(int row) { return codes + row * code_pitch + my_column() / 8; }

    // The stored pairs of this thread's group `group` in each of its rows.
    void put_pairs(int group, Word first, Word second) {
        for (int j = 0; j < lanes; j++) {
            char* at = pair(my_row() + j, group);
            if constexpr (ITEM == 1)
                *(unsigned short*)at = (unsigned short)__byte_perm(first, second, 0x0040 + 0x11 * j);
            else if constexpr (ITEM == 2)
                *(unsigned*)at = __byte_perm(first, second, j ? 0x7632 : 0x5410);
            else
                ((Word*)at)[0] = first, ((Word*)at)[1] = second;
        }
    }

    // The codes of this thread's groups, as append_code left them in the lanes of `bits`.
    void put_codes(Word bits) {
        static_assert(ITEM > 2 ? span == 32 : span == 8 * ITEM, "a lane holds the codes of its row");
        for (int j = 0; j < lanes; j++) {
            unsigned char* at = code(my_row() + j);
            if constexpr (ITEM == 1) *at = (unsigned char)(bits >> 8 * j);
            else if constexpr (ITEM == 2) *(unsigned short*)at = (unsigned short)(bits >> 16 * j);
            else *(unsigned*)at = (unsigned)(bits >> (8 * ITEM - 32));
        }
    }

    // Word `index` of the packed atom.
    unsigned packed_word(int index) const {
        if constexpr (ITEM == 1) return *(const unsigned*)(codes + index / 4 * code_pitch + index % 4 * 4);
        const int row = index / 64 * 16 + index / 4 % 8, at = index % 4 * 4 + index / 32 % 2 * 2;
        return *(const unsigned short*)(codes + row * code_pitch + at)
             | *(const unsigned short*)(codes + (row + 8) * code_pitch + at) << 16;
    }

    // Copies `rows` rows into `out`, the first row of the tile's atom; rows are `pitch` bytes apart.
    void store_values(char* out, long long pitch, int rows, int k_atom) const {
        const long long start = (long long)k_atom * value_words * 4;
        for (int i = threadIdx.x; i < 64 * value_words; i += 256) {
            const int row = i / value_words, at = i % value_words;
            if (row < rows && start + 4 * at < pitch)
                *(unsigned*)(out + row * pitch + start + 4 * at) = values[row * value_pitch + at];
        }
    }
    void store_canonical(unsigned char* out, long long pitch, int rows, int k_atom) const {
        for (int i = threadIdx.x; i < 64 * 16; i += 256) {
            const int row = i / 16, at = k_atom * 16 + i % 16;
            if (row < rows && at < pitch) out[row * pitch + at] = codes[row * code_pitch + i % 16];
        }
    }
};
