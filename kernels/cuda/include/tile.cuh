// tile: a block's part of a matrix that is stored by columns, in shared memory.
//
//   8-bit              128 rows, 256 columns: four metadata atoms
//   16-bit and wider   64 rows, 128 columns: one atom
//
// A thread takes `lanes` neighbouring rows, which fill a 32-bit word (8-byte elements: a 64-bit one; see lanes.cuh),
// and `span` columns of them.  So no elements are shuffled among threads or lanes, and 32 threads take 128 contiguous
// bytes of a column (8-byte elements: 256).  Stored elements go through shared memory in chunks of 16 bytes, placed
// such that neither the threads of neighbouring rows nor those of one row meet in a bank.
#pragma once
#include "piece.cuh"

// The elements of all lanes in one column, of which `valid` exist; the others are zero.
template <int ITEM, int ALIGN> typename Lanes<ITEM>::word load_lanes(const char* at, long long row_stride, int valid) {
    if constexpr (ITEM == 8) return valid > 0 ? __ldg((const unsigned long long*)at) : 0;
    else {
        if (ALIGN >= 4 && valid >= Lanes<ITEM>::count) return __ldg((const unsigned*)at);
        unsigned word[1];
        load_elements<ITEM, 0>(at, row_stride, valid, word);
        return word[0];
    }
}

// The same for COUNT columns, of which `columns` exist, with `rows` rows.
template <int ITEM, int ALIGN, int COUNT>
void load_columns(const char* at, long long row_stride, long long column_stride, int rows, int columns,
                  typename Lanes<ITEM>::word (&out)[COUNT]) {
    using Word = typename Lanes<ITEM>::word;
    if (ALIGN >= 4 && rows >= Lanes<ITEM>::count && columns >= COUNT) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) out[i] = __ldg((const Word*)(at + i * column_stride));
    } else {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            out[i] = load_lanes<ITEM, 0>(at + i * column_stride, row_stride, i < columns ? rows : 0);
    }
}

// A group of every row as words of columns: lane j of out[i] is element i of row j.
template <int BYTES, class W>
void lanes_of_rows(const unsigned (&group)[Lanes<BYTES>::count][BYTES], W (&out)[4]) {
    if constexpr (BYTES == 1) {
        const unsigned in[4] = {group[0][0], group[1][0], group[2][0], group[3][0]};
        transpose_bytes(in, out);
    } else if constexpr (BYTES == 2) {
        for (int i = 0; i < 4; i++)
            out[i] = permute(group[0][i / 2], group[1][i / 2], i % 2 ? 0x7632 : 0x5410);
    } else {
        for (int i = 0; i < 4; i++) {
            if constexpr (BYTES == 4) out[i] = group[0][i];
            else out[i] = group[0][2 * i] | (W)group[0][2 * i + 1] << 32;
        }
    }
}

// The inverse, for row j.
template <int BYTES, class W> void row_of_lanes(const W* column, int j, unsigned* out) {
    if constexpr (BYTES == 1) {
        const unsigned low = permute(column[0], column[1], 0x0040 + 0x11 * j);
        const unsigned high = permute(column[2], column[3], 0x0040 + 0x11 * j);
        out[0] = permute(low, high, 0x5410);
    } else if constexpr (BYTES == 2) {
        for (int i = 0; i < 2; i++) out[i] = permute(column[2 * i], column[2 * i + 1], j ? 0x7632 : 0x5410);
    } else {
        for (int i = 0; i < 4; i++) {
            out[i * BYTES / 4] = (unsigned)column[i];
            if constexpr (BYTES == 8) out[2 * i + 1] = (unsigned)(column[i] >> 32);
        }
    }
}

template <int ITEM> struct TilePlace;

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

    // The codes of this thread's groups as append_code leaves them; 8-bit elements: a word for every two groups.
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

    // The inverse of store_values: rows have `bytes` bytes of stored elements, and the tile begins at byte `start`.
    void load_values(const char* in, long long pitch, long long start, long long bytes, int count) {
        for (int i = threadIdx.x; i < rows * chunks; i += 256) {
            const int row = i / chunks, chunk = i % chunks;
            const char* at = in + row * pitch + start + 16 * chunk;
            const long long left = row < count ? bytes - start - 16 * chunk : 0;
            unsigned word[4];
            load_elements<ITEM, 16>(at, ITEM, left > 0 ? (int)(left / ITEM) : 0, word);
            values[chunk_at(row, chunk)] = make_uint4(word[0], word[1], word[2], word[3]);
        }
    }
    void load_canonical(const unsigned char* in, long long pitch, int start, int count) {
        constexpr int bytes = columns / 8;
        for (int i = threadIdx.x; i < rows * bytes; i += 256) {
            const int row = i / bytes, at = i % bytes;
            if (row < count && start + at < pitch) codes[row * code_pitch + at] = in[row * pitch + start + at];
        }
    }
    // Calls visit(i, j, index, place in `packed`) for this thread's words of the tile's atoms.
    template <class Visit>
    static void each_packed(const TilePlace<ITEM>& place, int m, int k, Visit visit) {
        const int m_atoms = (m + 63) / 64, k_atoms = (k + 127) / 128;
        for (int n = threadIdx.x; n < words; n += 256) {
            const int i = n / 256 % (rows / 64), j = n / 256 / (rows / 64);
            const int m_atom = place.row / 64 + i, k_atom = place.column / 128 + j;
            if (m_atom < m_atoms && k_atom < k_atoms)
                visit(i, j, n % 256, ((place.batch * k_atoms + k_atom) * m_atoms + m_atom) * 256 + n % 256);
        }
    }
    void store_packed(unsigned* out, const TilePlace<ITEM>& place, int m, int k) const {
        each_packed(place, m, k, [&](int i, int j, int index, long long at) { out[at] = packed_word(i, j, index); });
    }
    // Reads canonical metadata or, if PACKED_ORDER, packed.
    template <int PACKED_ORDER> void load_codes(const void* in, const TilePlace<ITEM>& place, int m, int k) {
        const long long bytes = (k + 7) / 8;
        if (PACKED_ORDER)
            each_packed(place, m, k, [&](int i, int j, int index, long long at) {
                put_packed_word(i, j, index, __ldg((const unsigned*)in + at));
            });
        else
            load_canonical((const unsigned char*)in + (place.batch * m + place.row) * bytes, bytes,
                           place.column / 8, m - place.row);
    }
    void put_packed_word(int i, int j, int index, unsigned word) {
        unsigned char* atom = codes + 64 * i * code_pitch + 16 * j;
        if constexpr (ITEM == 1) {
            *(unsigned*)(atom + index / 4 * code_pitch + index % 4 * 4) = word;
        } else {
            const int row = index / 64 * 16 + index / 4 % 8, at = index % 4 * 4 + index / 32 % 2 * 2;
            *(unsigned short*)(atom + row * code_pitch + at) = (unsigned short)word;
            *(unsigned short*)(atom + (row + 8) * code_pitch + at) = (unsigned short)(word >> 16);
        }
    }

    // This thread's stored elements, and codes, of its row j.
    void get_row(int j, unsigned (&stored)[span * ITEM / 8]) const {
        for (int c = 0; c < my_chunks; c++) {
            const uint4 four = values[chunk_at(my_row() + j, my_column() * ITEM / 32 + c)];
            stored[4 * c] = four.x, stored[4 * c + 1] = four.y;
            stored[4 * c + 2] = four.z, stored[4 * c + 3] = four.w;
        }
    }
    void put_row(int j, const unsigned (&stored)[span * ITEM / 8]) {
        for (int c = 0; c < my_chunks; c++)
            values[chunk_at(my_row() + j, my_column() * ITEM / 32 + c)] =
                make_uint4(stored[4 * c], stored[4 * c + 1], stored[4 * c + 2], stored[4 * c + 3]);
    }
    unsigned get_codes(int j) const {
        const unsigned char* at = codes + (my_row() + j) * code_pitch + my_column() / 8;
        if constexpr (ITEM == 2) return *(const unsigned short*)at;
        else return *(const unsigned*)at;
    }
};

// Which tile a block has; blocks go along m first, then along k, then through the batch.
template <int ITEM> struct TilePlace {
    long long batch;
    int row, column;

    TilePlace(int m, int k) {
        const int m_tiles = (m + Tile<ITEM>::rows - 1) / Tile<ITEM>::rows;
        const int k_tiles = (k + Tile<ITEM>::columns - 1) / Tile<ITEM>::columns;
        row = blockIdx.x % m_tiles * Tile<ITEM>::rows;
        column = blockIdx.x / m_tiles % k_tiles * Tile<ITEM>::columns;
        batch = blockIdx.x / m_tiles / k_tiles;
    }
};
