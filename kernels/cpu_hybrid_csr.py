"""Tiles of block-hybrid matrices from the rows of a CSR matrix, on the CPU: survey and fill.

As ``kernels/cpu_hybrid.py`` does it from dense rows, but in time for the non-zeros alone.  The
columns of a row ascend, so its elements reach each tile, and each group of four, in their order.
Elements are bits; stored zeros, -0.0 among them, are passed over.
"""

from __future__ import annotations

import numpy as np

from sparse24._dtypes import DType
from sparse24.kernels._numba import njit, parallel, slices
from sparse24.kernels.cpu_hybrid import (
    TILE,
    _arrays_of,
    _pair_code,
    magnitude_mask,
)
from sparse24.kernels.csr import CsrRows
from sparse24.kernels.hybrid_kinds import BITMAP, DENSE, TWO_FOUR

GROUP = 4
# Of every signed index Numba asks whether it counts from the end, which takes longer than all else.
_GROUP, _TILE, _NO_GROUP = np.uint64(GROUP), np.uint64(TILE), np.uint64(1 << 63)
_1 = np.uint64(1)
_OF_ELEMENT = 64  # bytes that are copied in the time for one of them, about
_NO_ELEMENTS = np.uint64(0x4444_4444_4444_4444)  # the 2:4 codes of 16 groups that hold none


@njit
def _survey(starts, columns, bits, mask, nonzeros, overflow, first, last):
    for row in range(first * TILE, min(starts.size - 1, last * TILE)):
        band = row // TILE
        group, held = _NO_GROUP, 0
        for e in range(np.uint64(starts[row]), np.uint64(starts[row + 1])):
            if not bits[e] & mask:
                continue
            column = np.uint64(columns[e])
            if column // _GROUP != group:
                group, held = column // _GROUP, 0
            held += 1
            nonzeros[band, column // _TILE] += 1
            overflow[band, column // _TILE] += held > 2


def survey(rows: CsrRows, dtype: DType, nonzeros, overflow) -> None:
    """Count the non-zeros of every tile, and those that break 2:4; the counts start as zeros."""
    mask, work = magnitude_mask(dtype), _OF_ELEMENT * rows.bits.size
    parts = slices(nonzeros.shape[0], at_least=1, work=work)

    def task(i: int) -> None:
        _survey(*rows, mask, nonzeros, overflow, parts[i].start, parts[i].stop)

    parallel(task, len(parts), work)


@njit
def _put_pair(value, r, group, c, held, first, pairs, words):
    """Store element `c` of a group of tile row `r`, which holds one element, `first`, or none.

    A lone last element takes the second slot, as in 2:4 matrices.
    """
    slot = 1 if held or c == GROUP - 1 else 0
    pairs[r * (TILE // 2) + 2 * group + slot] = value
    code = _pair_code(2, first, c) if held else _pair_code(1, c, 0)
    shift = np.uint64(4 * group)
    words[r] = words[r] & ~(np.uint64(15) << shift) | np.uint64(code) << shift


@njit
def _fill_row(
    row, begin, end, columns, bits, mask, kinds, starts, values, slots, codes, spill, places,
    band, across, places_left, spill_left,
):  # fmt: skip
    """Write one row; the places that are left in bitmap tiles, and in overflow, count up."""
    r = np.uint64(row - band * TILE)
    group, held, first = _NO_GROUP, 0, 0
    for e in range(np.uint64(begin), np.uint64(end)):
        value = bits[e]
        if not value & mask:
            continue
        column = np.uint64(columns[e])
        j, c = column // _TILE, column % _TILE
        if column // _GROUP != group:
            group, held, first = column // _GROUP, 0, np.int64(column % _GROUP)
        tile = np.uint64(band * across) + j
        if kinds[tile] == DENSE:
            values[np.uint64(starts[tile]) + r * _TILE + c] = value
        elif kinds[tile] == BITMAP:
            values[places_left[j]] = value
            places_left[j] += _1
            codes[np.uint64(slots[tile]), r] |= _1 << c
        elif kinds[tile] == TWO_FOUR and held < 2:
            pairs = values[starts[tile] : starts[tile + 1]]
            of_tile = row - band * TILE, np.int64(c) // GROUP, np.int64(c) % GROUP
            _put_pair(value, *of_tile, held, first, pairs, codes[slots[tile]])
        else:
            spill[spill_left[j]] = value
            places[spill_left[j]] = r * _TILE + c
            spill_left[j] += _1
        held += 1


@njit
def _fill(
    row_starts, columns, bits, mask,
    kinds, starts, values, slots, codes, spill_starts, spill, places, first, last, across,
):  # fmt: skip
    for band in range(first, last):
        here = slice(band * across, band * across + across)
        for tile in range(here.start, here.stop):
            if kinds[tile] == TWO_FOUR:
                codes[slots[tile]] = _NO_ELEMENTS
        places_left = starts[here].astype(np.uint64)
        spill_left = spill_starts[here].astype(np.uint64)
        for row in range(band * TILE, min(row_starts.size - 1, band * TILE + TILE)):
            _fill_row(row, row_starts[row], row_starts[row + 1], columns, bits, mask,
                      kinds, starts, values, slots, codes, spill, places, band, across,
                      places_left, spill_left)  # fmt: skip


def fill(rows: CsrRows, dtype: DType, tiles) -> None:
    """Write values, codes and overflow of `tiles`; the arrays start as zeros."""
    bands, across = tiles.grid
    arguments = (*rows, magnitude_mask(dtype), *_arrays_of(tiles))
    work = _OF_ELEMENT * rows.bits.size
    parts = slices(bands, at_least=1, work=work)

    def task(i: int) -> None:
        _fill(*arguments, parts[i].start, parts[i].stop, across)

    parallel(task, len(parts), work)
