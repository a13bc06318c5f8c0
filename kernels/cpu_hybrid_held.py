"""The non-zeros of block-hybrid matrices row by row, on the CPU, straight from the tiles.

Nothing becomes dense but one 2:4 tile at a time, whose overflow lies apart.  The kinds of tiles and
the arrays are those of ``formats/hybrid_tiles.py``; elements are bits.
"""

from __future__ import annotations

import numpy as np

from sparse24.kernels._numba import njit, parallel, slices
from sparse24.kernels.cpu_hybrid import (
    TILE,
    _arrays_of,
    _bit_index,
    _tile_row,
    magnitude_mask,
)
from sparse24.kernels.hybrid_kinds import BITMAP, DENSE, EMPTY, SCATTERED, TWO_FOUR

# Of every signed index Numba asks whether it counts from the end, which takes longer than all else.
_1, _TILE = np.uint64(1), np.uint64(TILE)
_OF_ELEMENT, _OF_TILE = 64, 256  # bytes that are copied in the time for one of them, about


@njit
def _put(ends, row, column, value, columns, bits):
    """Append an element to its row; where there are no places yet, only count it."""
    if columns.size:
        columns[ends[row]] = column
        bits[ends[row]] = value
    ends[row] += _1


@njit
def _put_bitmap(words, at, values, row0, column0, ends, columns, bits):
    for r in range(TILE):
        word = words[r]
        while word:
            low = word & (~word + _1)
            if values[at]:
                column = column0 + np.uint64(_bit_index(low))
                _put(ends, row0 + np.uint64(r), column, values[at], columns, bits)
            at += _1
            word ^= low


@njit
def _put_dense(tile, row0, column0, ends, columns, bits):
    for r in range(_TILE):
        for c in range(_TILE):
            if tile[r * _TILE + c]:
                _put(ends, row0 + r, column0 + c, tile[r * _TILE + c], columns, bits)


@njit
def _put_scattered(spill, places, begin, end, row0, column0, ends, columns, bits):
    for e in range(np.uint64(begin), np.uint64(end)):
        if spill[e]:
            place = np.uint64(places[e])
            _put(ends, row0 + place // _TILE, column0 + place % _TILE, spill[e], columns, bits)


@njit
def _spread(kind, words, start, values, spill, spill_places, places, columns, tile):
    """A 2:4 tile, and its overflow, as a dense one."""
    tile[:] = 0
    for r in range(TILE):
        held = _tile_row(kind, start, words[r], r, columns, places)
        for e in range(held):
            if values[places[e]]:
                tile[r * TILE + columns[e]] = values[places[e]]
    for e in range(spill.size):
        tile[np.int64(spill_places[e])] = spill[e]


@njit
def _put_bands(
    kinds, starts, values, slots, codes, spill_starts, spill, spill_places, first, last, across,
    ends, columns, bits,
):  # fmt: skip
    """The elements of bands of tiles, by rising columns in each row; `ends` move on."""
    tile = np.empty(TILE * TILE, values.dtype)
    within, places = np.empty(TILE, np.int64), np.empty(TILE, np.int64)
    for number in range(first * across, last * across):
        row0 = np.uint64(number // across * TILE)
        column0 = np.uint64(number % across * TILE)
        kind, start, slot = kinds[number], starts[number], slots[number]
        begin, end = spill_starts[number], spill_starts[number + 1]
        if kind == SCATTERED:
            _put_scattered(spill, spill_places, begin, end, row0, column0, ends, columns, bits)
        elif kind == BITMAP:
            _put_bitmap(codes[slot], np.uint64(start), values, row0, column0, ends, columns, bits)
        elif kind == DENSE:
            whole = values[start : start + TILE * TILE]
            _put_dense(whole, row0, column0, ends, columns, bits)
        elif kind == TWO_FOUR:
            _spread(kind, codes[slot], start, values, spill[begin:end], spill_places[begin:end],
                    places, within, tile)  # fmt: skip
            _put_dense(tile, row0, column0, ends, columns, bits)


def held(tiles) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where the rows start (m + 1), and the columns and bits of their elements.

    Parameters
    ----------
    tiles : Tiles
        NumPy arrays, of which the elements are bits.
    """
    (m, k), (bands, across) = tiles.shape, tiles.grid
    number = np.uint32 if k <= 1 << 32 else np.int64  # of a column
    work = (
        _OF_ELEMENT * (tiles.values.size + tiles.overflow_values.size) + _OF_TILE * bands * across
    )
    parts = slices(bands, at_least=1, work=work)
    columns, bits = np.empty(0, number), np.empty(0, tiles.values.dtype)
    arrays = _arrays_of(tiles)

    def walk(ends, columns, bits) -> None:
        def task(i: int) -> None:
            _put_bands(*arrays, parts[i].start, parts[i].stop, across, ends, columns, bits)

        parallel(task, len(parts), work)

    counts = np.zeros(m, np.uint64)
    walk(counts, columns, bits)
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts.view(np.int64))])
    if starts[-1]:
        columns, bits = np.empty(starts[-1], number), np.empty(starts[-1], bits.dtype)
        walk(starts[:-1].astype(np.uint64), columns, bits)
    return starts, columns, bits


@njit
def _turn(starts, columns, bits, ends, turned_columns, turned_bits):
    for row in range(starts.size - 1):
        for e in range(np.uint64(starts[row]), np.uint64(starts[row + 1])):
            column = np.uint64(columns[e])
            at = ends[column]
            turned_columns[at] = row
            turned_bits[at] = bits[e]
            ends[column] = at + _1


def turned(
    starts: np.ndarray, columns: np.ndarray, bits: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What `held` returns, of the transposed matrix, whose rows are the `k` columns."""
    counts = np.bincount(columns, minlength=k)
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
    turned_columns, turned_bits = np.empty_like(columns), np.empty_like(bits)
    _turn(starts, columns, bits, ends[:-1].astype(np.uint64), turned_columns, turned_bits)
    return ends, turned_columns, turned_bits


@njit
def _copy_rows(starts, columns, bits, rows, first, last, ends, taken_columns, taken_bits):
    for i in range(np.uint64(first), np.uint64(last)):
        at = np.uint64(ends[i])
        row = np.uint64(rows[i])
        for e in range(np.uint64(starts[row]), np.uint64(starts[row + _1])):
            taken_columns[at] = columns[e]
            taken_bits[at] = bits[e]
            at += _1


def rows_at(
    starts: np.ndarray, columns: np.ndarray, bits: np.ndarray, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What `held` returns, of the rows of these numbers, from 0 on, in time for these alone."""
    ends = np.zeros(rows.size + 1, np.int64)
    np.cumsum(starts[rows + 1] - starts[rows], out=ends[1:])
    taken = np.empty(ends[-1], columns.dtype), np.empty(ends[-1], bits.dtype)
    work = _OF_ELEMENT * (taken[0].size + rows.size)
    parts = slices(rows.size, at_least=64, work=work)

    def task(i: int) -> None:
        here = parts[i].start, parts[i].stop
        _copy_rows(starts, columns, bits, rows, *here, ends, *taken)

    parallel(task, len(parts), work)
    return ends, *taken


@njit
def _put_factors(
    kinds, starts, values, slots, codes, spill_starts, spill, spill_places, first, last, across,
    mask, factors, by_row, of_values, of_spill,
):  # fmt: skip
    columns, places = np.empty(TILE, np.int64), np.empty(TILE, np.int64)
    for number in range(first * across, last * across):
        line0 = np.uint64((number // across if by_row else number % across) * TILE)
        kind, at = kinds[number], starts[number]
        for r in range(0 if kind in (EMPTY, SCATTERED) else TILE):
            word = codes[slots[number], r] if slots[number] >= 0 else np.uint64(0)
            held = _tile_row(kind, at, word, r, columns, places)
            at += held if kind == BITMAP else 0
            for e in range(np.uint64(held)):
                place = np.uint64(places[e])
                if values[place] & mask:
                    of_values[place] = factors[line0 + np.uint64(r if by_row else columns[e])]
        for e in range(np.uint64(spill_starts[number]), np.uint64(spill_starts[number + 1])):
            if spill[e] & mask:
                place = np.uint64(spill_places[e])
                of_spill[e] = factors[line0 + (place // _TILE if by_row else place % _TILE)]


def factors_of(tiles, factors: np.ndarray, *, by_row: bool) -> tuple[np.ndarray, np.ndarray]:
    """The factors of stored values and of overflow, 1 for zeros among them.

    Parameters
    ----------
    tiles : Tiles
        NumPy arrays, of which the elements are bits.
    factors : array
        One for each row, or for each column.
    """
    made = tuple(np.ones(x.size, factors.dtype) for x in tiles.elements)
    bits, mask = [x.view(f"u{x.itemsize}") for x in (factors, *made)], magnitude_mask(tiles.dtype)
    bands, across = tiles.grid
    work = _OF_ELEMENT * sum(x.size for x in made) + _OF_TILE * bands * across
    parts, arrays = slices(bands, at_least=1, work=work), _arrays_of(tiles)

    def task(i: int) -> None:
        here = parts[i].start, parts[i].stop, across
        _put_factors(*arrays, *here, mask, bits[0], by_row, *bits[1:])

    parallel(task, len(parts), work)
    return made
