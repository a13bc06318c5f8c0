// decompress: from stored elements and codes back to the dense matrix, or to its mask.
//
//   values [batch, m, 2 ceil(k/4)]  rows on 16-byte boundaries                       (read)
//   codes  canonical metadata [batch, m, ceil(k/8)] (CODES 0) or packed (CODES 1)    (read)
//   out    [batch, m, k]  elements, or bool where they are not zero (MASK 1)         (written)
//
//   decompress_rows     any strides of `out`; OUT_ALIGNMENT 16 says that rows are contiguous
//                       and start on 16-byte boundaries, 0 says nothing.  A thread takes elements
//                       of 16 bytes of a row at a time, of 8-byte elements 32 (`Line` in codes.cuh).
//   decompress_columns  m is the contiguous axis of `out`, 4-byte aligned (8-byte elements: 8).  The
//                       stored elements are transposed in shared memory; see tile.cuh.
//   pack, unpack        canonical metadata to packed and back, bit for bit; pieces of piece.cuh.
//
// Macros: ELEMENT CODES MASK OUT_ALIGNMENT.
// Reference: reference.decompress, pack_metadata, unpack_metadata.  Launcher: kernels/decompress.py.
#include "codes.cuh"
#include "tile.cuh"

constexpr Kind kind = Kind::ELEMENT;
constexpr int ITEM = bytes_of(kind);
constexpr int OUT_ITEM = MASK ? 1 : ITEM;
using P = Piece<ITEM>;
using L = Line<ITEM>;
using T = Tile<ITEM>;
using Word = Lanes<ITEM>::word;

// Four bytes, each 1 where an element of the group is not zero, otherwise 0.
unsigned group_mask(const unsigned (&group)[ITEM]) {
    Word flag[ITEM == 8 ? 4 : ITEM];
    for (int i = 0; i < (ITEM == 8 ? 4 : ITEM); i++) {
        Word x;
        if constexpr (ITEM == 8) x = group[2 * i] | (Word)group[2 * i + 1] << 32;
        else x = group[i];
        flag[i] = nonzero<kind>(kind == Kind::int8 ? x : x & ~Lanes<ITEM>::top);
    }
    if constexpr (ITEM == 1) return flag[0] >> 7 & 0x01010101u;
    else if constexpr (ITEM == 2) return permute(flag[0], flag[1], 0x7531) >> 7 & 0x01010101u;
    else {
        unsigned mask = 0;
        for (int i = 0; i < 4; i++) mask |= (unsigned)(flag[i] >> (8 * ITEM - 1)) << 8 * i;
        return mask;
    }
}

struct Source {
    const char* values;
    long long batch, row;  // strides in bytes
    const void* codes;
};
struct Target {
    char* out;
    long long batch, row, column;
};

// A thread's share; WHOLE says that all of it is inside the matrix.
template <bool WHOLE>
void decompress_lines(const Source& source, const Target& target, const Places<ITEM>& places, const L& line,
                      int m, int k) {
    const int start = line.column / 2, stored = (k + 3) / 4 * 2;
    constexpr int ahead = L::count < 4 ? L::count : 4;  // accesses whose loads are in flight together
    const char* values = source.values + line.piece.batch * source.batch + (long long)start * ITEM;
    char* out = target.out + line.piece.batch * target.batch + line.column * target.column;

#pragma unroll 1
    for (int done = 0; done < L::count; done += ahead) {
        unsigned in[ahead][L::rows][L::words / 2], codes_of[ahead][L::rows];
#pragma unroll
        for (int i = 0; i < ahead; i++)
            for (int r = 0; r < L::rows; r++) {
                const int row = line.row_of(done + i, r);
                codes_of[i][r] = line.template codes<CODES>(source.codes, done + i, r, m, k);
                load_elements<ITEM, 8>(values + row * source.row, ITEM,
                                       WHOLE ? L::columns / 2 : row < m ? stored - start : 0, in[i][r]);
            }
#pragma unroll
        for (int i = 0; i < ahead; i++)
            for (int r = 0; r < L::rows; r++) {
                const int row = line.row_of(done + i, r);
                unsigned dense[L::words * OUT_ITEM / ITEM];
                for (int c = 0; c < L::groups; c++) {
                    unsigned group[ITEM];
                    places.expand(in[i][r], c, codes_of[i][r] >> 4 * c & 15, group);
                    if constexpr (MASK) dense[c] = group_mask(group);
                    else for (int w = 0; w < ITEM; w++) dense[c * ITEM + w] = group[w];
                }
                store_elements<OUT_ITEM, OUT_ALIGNMENT>(
                    out + row * target.row, target.column,
                    WHOLE ? L::columns : row < m ? k - line.column : 0, dense);
            }
    }
}

extern "C" __global__ void __launch_bounds__(128) decompress_rows(
    const char* values, long long v_batch, long long v_row, const void* codes,
    char* out, long long o_batch, long long o_row, long long o_column, long long m_, long long k_) {
    __shared__ Places<ITEM> places;
    const int m = (int)m_, k = (int)k_;
    const L line(m, k);
    const Source source = {values, v_batch, v_row, codes};
    const Target target = {out, o_batch, o_row, o_column};
    places.fill();
    __syncthreads();
    if (line.row_of(L::count - 1, L::rows - 1) < m && line.column + L::columns <= k)
        decompress_lines<true>(source, target, places, line, m, k);
    else
        decompress_lines<false>(source, target, places, line, m, k);
}

extern "C" __global__ void __launch_bounds__(256) decompress_columns(
    const char* values, long long v_batch, long long v_row, const void* codes,
    char* out, long long o_batch, long long o_row, long long o_column, long long m_, long long k_) {
    __shared__ T tile;
    __shared__ Places<ITEM> places;
    const int m = (int)m_, k = (int)k_;
    const TilePlace<ITEM> place(m, k);
    places.fill();
    tile.load_values(values + place.batch * v_batch + place.row * v_row, v_row,
                     (long long)place.column / 2 * ITEM, (k + 3LL) / 4 * 2 * ITEM, m - place.row);
    tile.load_codes<CODES>(codes, place, m, k);
    __syncthreads();

    const int row = place.row + T::my_row(), column = place.column + T::my_column();
    char* at = out + place.batch * o_batch + row * o_row + column * o_column;
    unsigned stored[T::lanes][T::span * ITEM / 8], code_bits[T::lanes];
    for (int j = 0; j < T::lanes; j++) tile.get_row(j, stored[j]), code_bits[j] = tile.get_codes(j);
#pragma unroll
    for (int c = 0; c < T::span / 4; c++) {
        unsigned group[T::lanes][ITEM];
        for (int j = 0; j < T::lanes; j++) places.expand(stored[j], c, code_bits[j] >> 4 * c & 15, group[j]);
        Word lanes[4];
        lanes_of_rows<ITEM>(group, lanes);
        for (int i = 0; i < 4; i++, at += o_column) {
            if (column + 4 * c + i >= k) continue;
            if (row + T::lanes <= m) *(Word*)at = lanes[i];
            else
                for (int j = 0; j < T::lanes && row + j < m; j++) {
                    if constexpr (ITEM == 1) at[j] = (char)(lanes[i] >> 8 * j);
                    else ((unsigned short*)at)[j] = (unsigned short)(lanes[i] >> 16 * j);
                }
        }
    }
}

extern "C" __global__ void __launch_bounds__(128) pack(
    const unsigned char* metadata, unsigned* packed, long long m, long long k) {
    const Place<ITEM> place((int)m, (int)k);
    for (int p = 0; p < Place<ITEM>::pieces; p++)
        if (place.inside)
            packed[place.packed_word(p)] = canonical_word<ITEM>(metadata, place, p, (int)m, (int)k);
}

extern "C" __global__ void __launch_bounds__(128) unpack(
    const unsigned* packed, unsigned char* metadata, long long m, long long k) {
    const Place<ITEM> place((int)m, (int)k);
    const long long bytes = (k + 7) / 8;
    if (!place.inside) return;
    for (int p = 0; p < Place<ITEM>::pieces; p++) {
        const unsigned codes = __ldg(packed + place.packed_word(p));
        for (int r = 0; r < P::rows; r++) {
            const int row = place.row + 4 * p + 8 * r;
            if (row < m)
                store_canonical<ITEM>(metadata + (place.batch * m + row) * bytes, bytes, place.column,
                                      codes >> 16 * r);
        }
    }
}
