"""Block-hybrid matrices on the CPU: survey, fill and decode, in Numba.

Building looks at bits only: an element is a non-zero if a bit of its magnitude is
set, so -0.0 is a zero and every dtype of one width shares a kernel.
The tile kinds and arrays are those of ``formats/hybrid_tiles.py``.
"""

from __future__ import annotations

import numpy as np

from sparse24._dtypes import DType
from sparse24.kernels._numba import njit, parallel
from sparse24.kernels.hybrid_kinds import BITMAP, DENSE, EMPTY, SCATTERED, TWO_FOUR

TILE = 64


def magnitude_mask(dtype: DType):
    """The bits that decide whether an element is a non-zero."""
    bits = 8 * dtype.itemsize
    return dtype.storage.type((1 << bits) - 1 if dtype.name == "int8" else (1 << (bits - 1)) - 1)


@njit
def _survey(bits, mask, nonzeros, overflow, band):
    m, k = bits.shape
    for j in range(nonzeros.shape[1]):
        count = 0
        excess = 0
        for row in range(band * TILE, min(m, band * TILE + TILE)):
            for group in range(j * TILE, min(k, j * TILE + TILE), 4):
                held = 0
                for c in range(group, min(k, group + 4)):
                    held += (bits[row, c] & mask) != 0
                count += held
                excess += max(0, held - 2)
        nonzeros[band, j] = count
        overflow[band, j] = excess


def survey(bits, dtype: DType, nonzeros, overflow) -> None:
    """Count the non-zeros of every tile, and those that break 2:4."""
    mask = magnitude_mask(dtype)
    parallel(lambda band: _survey(bits, mask, nonzeros, overflow, band), nonzeros.shape[0])


@njit
def _pair_code(held, first, second):
    if held == 0:
        return 0x4
    if held == 1:
        return 0xC if first == 3 else first | 0xC
    return first | second << 2


@njit
def _fill_two_four(bits, mask, row0, column0, values, at, codes, spill, places, spill_at):
    m, k = bits.shape
    for r in range(TILE):
        word = np.uint64(0)
        for g in range(TILE // 4):
            held = 0
            first = 0
            second = 0
            for c in range(4):
                row = row0 + r
                column = column0 + 4 * g + c
                if row < m and column < k and (bits[row, column] & mask) != 0:
                    if held == 0:
                        first = c
                        values[at] = bits[row, column]
                    elif held == 1:
                        second = c
                        values[at + 1] = bits[row, column]
                    else:
                        spill[spill_at] = bits[row, column]
                        places[spill_at] = r * TILE + 4 * g + c
                        spill_at += 1
                    held += 1
            if held == 1 and first == 3:  # a lone last element takes the second slot
                values[at + 1] = values[at]
                values[at] = 0
            word |= np.uint64(_pair_code(held, first, second)) << np.uint64(4 * g)
            at += 2
        codes[r] = word


@njit
def _fill_bitmap(bits, mask, row0, column0, values, at, codes):
    m, k = bits.shape
    for r in range(min(TILE, m - row0)):
        word = np.uint64(0)
        for c in range(min(TILE, k - column0)):
            element = bits[row0 + r, column0 + c]
            if element & mask:
                values[at] = element
                at += 1
                word |= np.uint64(1) << np.uint64(c)
        codes[r] = word


@njit
def _fill_dense(bits, mask, row0, column0, values, at):
    m, k = bits.shape
    for r in range(min(TILE, m - row0)):
        for c in range(min(TILE, k - column0)):
            element = bits[row0 + r, column0 + c]
            if element & mask:
                values[at + r * TILE + c] = element


@njit
def _fill_scattered(bits, mask, row0, column0, spill, places, spill_at):
    m, k = bits.shape
    for r in range(min(TILE, m - row0)):
        for c in range(min(TILE, k - column0)):
            element = bits[row0 + r, column0 + c]
            if element & mask:
                spill[spill_at] = element
                places[spill_at] = r * TILE + c
                spill_at += 1


@njit
def _fill(
    bits, mask, kinds, starts, values, slots, codes, spill_starts, spill, places, band, across
):
    row0 = band * TILE
    for j in range(across):
        tile = band * across + j
        column0 = j * TILE
        if kinds[tile] == DENSE:
            _fill_dense(bits, mask, row0, column0, values, starts[tile])
        elif kinds[tile] == TWO_FOUR:
            _fill_two_four(bits, mask, row0, column0, values, starts[tile], codes[slots[tile]],
                           spill, places, spill_starts[tile])  # fmt: skip
        elif kinds[tile] == BITMAP:
            _fill_bitmap(bits, mask, row0, column0, values, starts[tile], codes[slots[tile]])
        elif kinds[tile] == SCATTERED:
            _fill_scattered(bits, mask, row0, column0, spill, places, spill_starts[tile])


def fill(bits, dtype: DType, tiles) -> None:
    """Write values, codes and overflow of `tiles` from `bits`; the arrays start as zeros.

    `bits` may be some bands of a matrix: the per-tile arrays then hold those tiles
    alone, and their numbers point into the arrays of the whole.
    """
    bands, across = tiles.grid
    arguments = (bits, magnitude_mask(dtype), *_arrays_of(tiles))
    parallel(lambda band: _fill(*arguments, band, across), bands)


def _arrays_of(tiles):
    return (
        tiles.kinds, tiles.starts, tiles.values, tiles.slots, tiles.codes,
        tiles.overflow_starts, tiles.overflow_values, tiles.overflow_places,
    )  # fmt: skip


@njit
def _tile_row(kind, start, word, r, columns, places):
    """Columns of the stored elements of one tile row, and their places in `values`."""
    held = 0
    if kind == DENSE:
        for c in range(TILE):
            columns[c] = c
            places[c] = start + r * TILE + c
        return TILE
    if kind == TWO_FOUR:
        for g in range(TILE // 4):
            code = (word >> np.uint64(4 * g)) & np.uint64(15)
            columns[held] = 4 * g + np.int64(code & np.uint64(3))
            columns[held + 1] = 4 * g + np.int64(code >> np.uint64(2))
            places[held] = start + r * (TILE // 2) + held
            places[held + 1] = places[held] + 1
            held += 2
        return held
    while word:
        low = word & (~word + np.uint64(1))
        columns[held] = _bit_index(low)
        places[held] = start + held
        held += 1
        word ^= low
    return held


@njit
def _bit_index(low):
    """Number of the only bit that is set."""
    index = 0
    for step in (32, 16, 8, 4, 2, 1):
        if low >> np.uint64(step):
            low >>= np.uint64(step)
            index += step
    return index


@njit
def _decode(
    out, kinds, starts, values, slots, codes, spill_starts, spill, spill_places, band, across
):
    m, k = out.shape
    columns = np.empty(TILE, np.int64)
    places = np.empty(TILE, np.int64)
    for tile in range(band * across, band * across + across):
        column0 = (tile - band * across) * TILE
        start = starts[tile]
        in_rows = kinds[tile] != EMPTY and kinds[tile] != SCATTERED
        for r in range(min(TILE, m - band * TILE) if in_rows else 0):
            word = codes[slots[tile], r] if slots[tile] >= 0 else np.uint64(0)
            held = _tile_row(kinds[tile], start, word, r, columns, places)
            if kinds[tile] == BITMAP:
                start += held
            for e in range(held):
                if column0 + columns[e] < k and values[places[e]]:
                    out[band * TILE + r, column0 + columns[e]] = values[places[e]]
        for e in range(spill_starts[tile], spill_starts[tile + 1]):
            place = np.int64(spill_places[e])
            row = band * TILE + place // TILE
            if row < m:  # of a part of the matrix, `out` may end within its tiles
                out[row, column0 + place % TILE] = spill[e]


def decode(tiles, out) -> None:
    """Write the dense matrix of bits; `out` starts as zeros."""
    bands, across = tiles.grid
    arguments = (out, *_arrays_of(tiles))
    parallel(lambda band: _decode(*arguments, band, across), bands)
