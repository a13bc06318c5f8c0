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

_LANES = 64  # tiles that pass the steps together; their sums stay in L1
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
def _best_masks(x, first, size, masks):
    """Numbers of the best masks of the tiles of four rows; `x` (4, 4 * tiles), `size` scratch."""
    pair = np.empty((4, 6, _LANES), np.float32)
    half = np.empty((2, 36, _LANES), np.float32)
    best = np.empty(_LANES, np.float32)
    number = np.empty(_LANES, np.int32)
    for start in range(0, masks.size, _LANES):
        count = min(_LANES, masks.size - start)
        for row in range(4):
            for column in range(4):
                for t in range(count):
                    value = np.float32(abs(x[first + row, 4 * (start + t) + column]))
                    size[column, t] = value if value == value else _NAN
            for p in range(6):
                i, j = _PAIRS[p]
                for t in range(count):
                    pair[row, p, t] = size[i, t] + size[j, t]
        for h in range(2):
            for p in range(36):
                for t in range(count):
                    half[h, p, t] = pair[2 * h, p // 6, t] + pair[2 * h + 1, p % 6, t]
        best[:] = -1
        for p in range(_UPPER.size):
            upper, lower = half[0, _UPPER[p]], half[1, _LOWER[p]]
            for t in range(count):
                total = upper[t] + lower[t]
                better = total > best[t]  # ascending masks: a tie keeps the smaller
                best[t] = total if better else best[t]
                number[t] = p if better else number[t]
        for t in range(count):
            masks[start + t] = _MASKS[number[t]]


@njit
def _spread(masks, out):
    """Write the masks of the tiles of four rows as booleans."""
    for row in range(4):
        for tile in range(masks.size):
            bits = masks[tile] >> (4 * row)
            for column in range(4):
                out[row, 4 * tile + column] = bits >> column & 1


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
        masks = np.empty(tiles, np.uint16)
        whole = np.empty((4, 4 * tiles), bool)
        scratch = np.empty((4, _LANES), np.float32)
        for top in range(0, rows.stop - rows.start, 4):
            _best_masks(sizes, top, scratch, masks)
            _spread(masks, whole)
            part = out[rows.start + top : rows.stop][:4]
            part[...] = whole[: len(part), :k]

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
    for place in np.ndindex(*x.shape[:-2]):
        _mask_of_matrix(x[place], dtype, out[place])
    return out
