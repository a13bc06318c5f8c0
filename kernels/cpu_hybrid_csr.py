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
_NO_ELEMENTS = np.uint64(0x4444_4444_4444_4444)  # the 2:4 codes of 16 groups that hold none


@njit
def _survey(starts, columns, bits, mask, nonzeros, overflow, band):
    m = starts.size - 1
    for row in range(band * TILE, min(m, band * TILE + TILE)):
        group, held = -1, 0
        for e in range(starts[row], starts[row + 1]):
            if not bits[e] & mask:
                continue
            column = np.int64(columns[e])
            if column // GROUP != group:
                group, held = column // GROUP, 0
            held += 1
            nonzeros[band, column // TILE] += 1
            overflow[band, column // TILE] += held > 2


def survey(rows: CsrRows, dtype: DType, nonzeros, overflow) -> None:
    """Count the non-zeros of every tile, and those that break 2:4; the counts start as zeros."""
    mask = magnitude_mask(dtype)
    parallel(
        lambda band: _survey(*rows, mask, nonzeros, overflow, band),
        nonzeros.shape[0],
        work=rows.bits.size,
    )


@njit
def _put_pair(value, group, c, held, first, pairs, words, r):
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
    r = row - band * TILE
    group, held, first = -1, 0, 0
    for e in range(begin, end):
        value = bits[e]
        if not value & mask:
            continue
        column = np.int64(columns[e])
        j, c = column // TILE, column % TILE
        if column // GROUP != group:
            group, held, first = column // GROUP, 0, column % GROUP
        tile = band * across + j
        if kinds[tile] == DENSE:
            values[starts[tile] + r * TILE + c] = value
        elif kinds[tile] == BITMAP:
            values[places_left[j]] = value
            places_left[j] += 1
            codes[slots[tile], r] |= np.uint64(1) << np.uint64(c)
        elif kinds[tile] == TWO_FOUR and held < 2:
            pairs = values[starts[tile] : starts[tile + 1]]
            _put_pair(value, c // GROUP, c % GROUP, held, first, pairs, codes[slots[tile]], r)
        else:
            spill[spill_left[j]] = value
            places[spill_left[j]] = r * TILE + c
            spill_left[j] += 1
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
        places_left, spill_left = starts[here].copy(), spill_starts[here].copy()
        for row in range(band * TILE, min(row_starts.size - 1, band * TILE + TILE)):
            _fill_row(row, row_starts[row], row_starts[row + 1], columns, bits, mask,
                      kinds, starts, values, slots, codes, spill, places, band, across,
                      places_left, spill_left)  # fmt: skip


def fill(rows: CsrRows, dtype: DType, tiles) -> None:
    """Write values, codes and overflow of `tiles`; the arrays start as zeros."""
    bands, across = tiles.grid
    arguments = (*rows, magnitude_mask(dtype), *_arrays_of(tiles))
    parts = slices(bands, at_least=1, work=rows.bits.size)

    def task(i: int) -> None:
        _fill(*arguments, parts[i].start, parts[i].stop, across)

    parallel(task, len(parts), rows.bits.size)
