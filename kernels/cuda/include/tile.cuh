// tile: a block's part of a matrix whose rows are the contiguous axis, in shared memory.
//
//   8-bit              128 rows, 256 columns: four metadata atoms
//   16-bit and wider   64 rows, 128 columns: one atom
//
// A thread takes the lanes of one 32-bit word, `lanes` neighbouring rows, and `span` columns of
// them, so it needs no shuffling; 32 threads take 128 contiguous bytes of a column.  Stored
// elements go through shared memory in chunks of 16 bytes, placed so that neither the threads of
// neighbouring rows nor those of one row meet in a bank.
#pragma once
#include "lanes.cuh"

template <int ITEM> struct Tile {
    using Word = typename Lanes<ITEM>::word;
    static constexpr int lanes = Lanes<ITEM>::count;
    static constexpr int rows = ITEM == 1 ? 128 : 64, row_threads = rows / lanes;
    static constexpr int span = ITEM == 2 ? 16 : 32, columns = span * 256 / row_threads;
    static constexpr int chunks = columns * ITEM / 32;   // of a row's stored elements
    static constexpr int my_chunks = span * ITEM / 32;   // of those, one thread's
    static constexpr int code_pitch = columns / 8 + 4;   // bytes; padded against bank conflicts
    static constexpr int words = rows * columns / 32;    // of packed metadata

    uint4 values[rows * chunks];
    alignas(16) unsigned char codes[rows * code_pitch];

    static int my_row() { return threadIdx.x % row_threads * lanes; }
    static int my_column() { return threadIdx.x / row_threads * span; }

    static int chunk_at(int row, int chunk) { return row * chunks + (chunk ^ (row / lanes & 7 & (chunks - 1))); }

    // The stored pairs of this thread, group by group, each lane into its row.
    void put_pairs(const Word (&first)[span / 4], const Word (&second)[span / 4]) {
        const int chunk = my_column() * ITEM / 32;
        for (int j = 0; j < lanes; j++)
            for (int c = 0; c < my_chunks; c++) {
                unsigned word[4];
                for (int i = 0; i < 4; i++) word[i] = pair_word(first, second, j, 4 * c + i);
                values[chunk_at(my_row() + j, chunk + c)] = make_uint4(word[0], word[1], word[2], word[3]);
            }
    }
    // 32-bit word `at` of the stored elements of lane j.
    static unsigned pair_word(const Word (&first)[span / 4], const Word (&second)[span / 4], int j, int at) {
        if constexpr (ITEM == 1) {
            const unsigned low = permute(first[2 * at], second[2 * at], 0x0040 + 0x11 * j);
            const unsigned high = permute(first[2 * at + 1], second[2 * at + 1], 0x0040 + 0x11 * j);
            return permute(low, high, 0x5410);
        } else if constexpr (ITEM == 2) {
            return permute(first[at], second[at], j ? 0x7632 : 0x5410);
        } else if constexpr (ITEM == 4) {
            return at % 2 ? second[at / 2] : first[at / 2];
        } else {
            return (unsigned)((at % 4 < 2 ? first[at / 4] : second[at / 4]) >> 32 * (at % 2));
        }
    }

    // The codes of this thread's groups as append_code leaves them; 8-bit: a word for every two.
    void put_codes(const Word* bits) {
        unsigned char* at = codes + my_row() * code_pitch + my_column() / 8;
        if constexpr (ITEM == 1) {
            const unsigned in[4] = {bits[0], bits[1], bits[2], bits[3]};
            unsigned out[4];
            transpose_bytes(in, out);
            for (int j = 0; j < 4; j++) *(unsigned*)(at + j * code_pitch) = out[j];
        } else if constexpr (ITEM == 2) {
            *(unsigned short*)at = (unsigned short)bits[0];
            *(unsigned short*)(at + code_pitch) = (unsigned short)(bits[0] >> 16);
        } else {
            *(unsigned*)at = (unsigned)(bits[0] >> (8 * ITEM - 32));
        }
    }

    // Word `index` of the packed atom at row 64 i, column 128 j of the tile.
    unsigned packed_word(int i, int j, int index) const {
        const unsigned char* atom = codes + 64 * i * code_pitch + 16 * j;
        if constexpr (ITEM == 1) return *(const unsigned*)(atom + index / 4 * code_pitch + index % 4 * 4);
        const int row = index / 64 * 16 + index / 4 % 8, at = index % 4 * 4 + index / 32 % 2 * 2;
        return *(const unsigned short*)(atom + row * code_pitch + at)
             | *(const unsigned short*)(atom + (row + 8) * code_pitch + at) << 16;
    }

    // Copies the first `count` rows to rows `pitch` bytes apart; `start` is the tile's first byte.
    void store_values(char* out, long long pitch, long long start, int count) const {
        for (int i = threadIdx.x; i < rows * chunks; i += 256) {
            const int row = i / chunks, chunk = i % chunks;
            if (row < count && start + 16 * chunk < pitch)
                *(uint4*)(out + row * pitch + start + 16 * chunk) = values[chunk_at(row, chunk)];
        }
    }
    void store_canonical(unsigned char* out, long long pitch, int start, int count) const {
        constexpr int bytes = columns / 8;
        for (int i = threadIdx.x; i < rows * bytes; i += 256) {
            const int row = i / bytes, at = i % bytes;
            if (row < count && start + at < pitch) out[row * pitch + start + at] = codes[row * code_pitch + at];
        }
    }
};
