"""Masks that are 2:4 along both axes, on the CPU: the exact optimum of every 4x4 tile.

The sum of a legal mask is the sum of a half of rows 0 and 1 and one of rows 2 and 3.  There
are 36 halves of each kind and 90 legal masks, so a tile costs 72 + 90 additions.  A run of
tiles passes every step together, one tile a vector lane.
"""

from __future__ import annotations

import numpy as np

from sparse24 import _arrays, _check, _dtypes, _spec
from sparse24.kernels._numba import njit, parallel, slices
from sparse24.kernels.cpu_decode import decoded

_LANES = 128  # tiles that pass the steps together; their sums stay in L1
_TILE = 16  # elements
_BAND = 1 << 17  # elements of a task, at least
_PAIRS = np.array(_spec.PAIRS)
_PAIR_OF_BITS = {1 << i | 1 << j: p for p, (i, j) in enumerate(_spec.PAIRS)}
_MASKS = _spec.TILE_MASKS.astype(np.int64)
# The pair of every row of every mask, and from it the numbers of its two halves.
_ROW_PAIRS = np.array([[_PAIR_OF_BITS[mask >> 4 * r & 15] for r in range(4)] for mask in _MASKS])
_UPPER = 6 * _ROW_PAIRS[:, 0] + _ROW_PAIRS[:, 1]
_LOWER = 6 * _ROW_PAIRS[:, 2] + _ROW_PAIRS[:, 3]
_NAN = np.float32(np.finfo(np.float32).max / np.float32(16))


@njit
def _take_tiles(x, start, count, size):
    """Magnitudes of tiles from number `start` on, row after row: ``size[row, column, tile]``."""
    across = x.shape[1] // 4
    band, j = start // across, start % across
    for t in range(count):
        for row in range(4):
            for column in range(4):
                size[row, column, t] = x[4 * band + row, 4 * j + column]
        j += 1
        if j == across:
            band, j = band + 1, 0
    for row in range(4):
        for column in range(4):
            for t in range(count):
                value = abs(size[row, column, t])
                size[row, column, t] = value if value == value else _NAN


@njit
def _add_halves(size, pair, half):
    """Sums of all pairs of a row's elements, and of these in rows 0 and 1, and 2 and 3."""
    for row in range(4):
        for p in range(6):
            i, j = _PAIRS[p]
            for t in range(_LANES):
                pair[row, p, t] = size[row, i, t] + size[row, j, t]
    for h in range(2):
        for p in range(36):
            for t in range(_LANES):
                half[h, p, t] = pair[2 * h, p // 6, t] + pair[2 * h + 1, p % 6, t]


@njit
def _best_of(half, best, number):
    """The number of the mask of the largest sum for each tile."""
    best[:] = -1
    for p in range(_UPPER.size):
        upper, lower = half[0, _UPPER[p]], half[1, _LOWER[p]]
        for t in range(_LANES):
            total = upper[t] + lower[t]
            better = total > best[t]  # ascending masks: a tie keeps the smaller
            best[t] = total if better else best[t]
            number[t] = p if better else number[t]


@njit
def _best_masks(x, masks):
    """The best masks of all tiles of `x`, which consists of whole tiles."""
    size = np.zeros((4, 4, _LANES), np.float32)
    pair = np.empty((4, 6, _LANES), np.float32)
    half = np.empty((2, 36, _LANES), np.float32)
    best = np.empty(_LANES, np.float32)
    number = np.empty(_LANES, np.int32)
    for start in range(0, masks.size, _LANES):
        count = min(_LANES, masks.size - start)
        _take_tiles(x, start, count, size)
        _add_halves(size, pair, half)
        _best_of(half, best, number)
        for t in range(count):
            masks[start + t] = _MASKS[number[t]]


@njit
def _spread(masks, across, out):
    """Write the masks of all tiles, `across` in four rows, as booleans."""
    for row in range(out.shape[0]):
        first, shift = row // 4 * across, 4 * (row % 4)
        for column in range(out.shape[1]):
            out[row, column] = masks[first + column // 4] >> (shift + column % 4) & 1


def _mask_of_matrix(x: np.ndarray, dtype: _dtypes.DType, out: np.ndarray) -> None:
    m, k = x.shape
    tiles = _spec.groups(k)
    bands = slices(_spec.groups(m), max(1, _BAND // (4 * k)), max(1, _BAND // (2 * k)))

    def task(number: int):
        band = bands[number]
        rows = slice(4 * band.start, min(4 * band.stop, m))
        sizes = np.zeros((4 * (band.stop - band.start), 4 * tiles), np.float32)
        with np.errstate(over="ignore"):
            sizes[: rows.stop - rows.start, :k] = decoded(x[rows], dtype)
        masks = np.empty(sizes.size // _TILE, np.uint16)
        _best_masks(sizes, masks)
        _spread(masks, tiles, out[rows])

    parallel(task, len(bands), 32 * x.size)


def transposable_mask(x: np.ndarray) -> np.ndarray:
    """The mask of the largest sum of magnitudes that is 2:4 along both of the last two axes.

    Parameters
    ----------
    x : ndarray, shape (..., m, k)
        Any element type of the library, any strides.

    Returns
    -------
    ndarray of bool, shape (..., m, k)
        To the bit that of `reference.transposable_mask`: the largest float32 sum,
        a tie to the smallest mask.
    """
    dtype = _arrays.logical_dtype(x)
    _check.at_least_2d(x.shape, argument="x")
    out = np.empty(x.shape, bool)
    if not x.size:
        return out
    m, k = x.shape[-2:]
    if m % _spec.GROUP == 0:  # of a stack no tile lies in two matrices
        _mask_of_matrix(x.reshape(-1, k), dtype, out.reshape(-1, k))
        return out
    for place in np.ndindex(*x.shape[:-2]):
        _mask_of_matrix(x[place], dtype, out[place])
    return out
