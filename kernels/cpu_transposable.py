"""Masks that are 2:4 along both axes, on the CPU: the exact optimum of every 4x4 tile.

The sum of a legal mask is the sum of a half of rows 0 and 1 and one of rows 2 and 3.  There
are 36 halves of each kind and 90 legal masks, so a tile costs 72 + 90 additions.  A run of
tiles passes every step together, one tile a vector lane.
"""

from __future__ import annotations

import numpy as np

from sparse24 import _arrays, _check, _dtypes, _spec
from sparse24.kernels._numba import njit, parallel, slices
from sparse24.kernels._simd_tiles import JUDGED, NAN, RUN, best_masks, take_run
from sparse24.kernels.cpu_decode import decoded

_LANES = 64  # tiles that pass the steps together; their sums stay in L1
_BAND = 1 << 17  # elements of a task, at least
_PAIRS = np.array(_spec.PAIRS)
_PAIR_OF_BITS = {1 << i | 1 << j: p for p, (i, j) in enumerate(_spec.PAIRS)}
_MASKS = _spec.TILE_MASKS.astype(np.int64)
# The pair of every row of every mask, and from it the numbers of its two halves.
_ROW_PAIRS = np.array([[_PAIR_OF_BITS[mask >> 4 * r & 15] for r in range(4)] for mask in _MASKS])
_UPPER = 6 * _ROW_PAIRS[:, 0] + _ROW_PAIRS[:, 1]
_LOWER = 36 + 6 * _ROW_PAIRS[:, 2] + _ROW_PAIRS[:, 3]
_CHOICES = np.stack([_UPPER, _LOWER, _MASKS], axis=1).astype(np.int32)
# Four bits times the first have bit i at place 8 * i, too; the second leaves these, a byte each.
_EVERY_SEVENTH, _BOOLEANS = np.uint32(0x00204081), np.uint32(0x01010101)


@njit
def _take_tile(x, row, column, size, t):
    """Magnitudes of one tile, ``size[row, column, t]``."""
    for i in range(4):
        for j in range(4):
            value = abs(x[row + i, column + j])
            size[i, j, t] = value if value == value else NAN


@njit
def _take_tiles(x, start, count, size):
    """Magnitudes of `count` tiles from number `start` on."""
    across = x.shape[1] // 4
    band, j = start // across, start % across
    t = 0
    while t < count:
        if j + RUN <= across and t + RUN <= count:
            take_run(x, 4 * band, 4 * j, size, t)
            taken = RUN
        else:
            _take_tile(x, 4 * band, 4 * j, size, t)
            taken = 1
        t, j = t + taken, j + taken
        if j == across:
            band, j = band + 1, 0


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
                half[36 * h + p, t] = pair[2 * h, p // 6, t] + pair[2 * h + 1, p % 6, t]


@njit
def _best_masks(x, masks):
    """The best masks of all tiles of `x`, which consists of whole tiles."""
    size = np.zeros((4, 4, _LANES), np.float32)
    pair = np.empty((4, 6, _LANES), np.float32)
    half = np.empty((72, _LANES), np.float32)
    best = np.empty(_LANES, np.int32)
    for start in range(0, masks.size, _LANES):
        count = min(_LANES, masks.size - start)
        _take_tiles(x, start, count, size)
        _add_halves(size, pair, half)
        for t in range(0, count, JUDGED):
            best_masks(half, t, _CHOICES, best)
        for t in range(count):
            masks[start + t] = best[t]


@njit
def _spread(masks, words):
    """Write the masks of all tiles as booleans, a row of a tile in each word."""
    for row in range(words.shape[0]):
        first = row // 4 * words.shape[1]
        here = masks[first : first + words.shape[1]]
        for tile in range(here.size):
            bits = np.uint32(here[tile]) >> np.uint32(4 * (row % 4)) & np.uint32(15)
            words[row, tile] = bits * _EVERY_SEVENTH & _BOOLEANS


def _whole_tiles(x: np.ndarray, dtype: _dtypes.DType) -> np.ndarray:
    """The matrix in float32 and C order, filled up with zeros; itself if it is so."""
    m, k = x.shape
    shape = 4 * _spec.groups(m), 4 * _spec.groups(k)
    with np.errstate(over="ignore"):
        values = decoded(x, dtype)
        if values.shape == shape:
            return np.require(values, np.float32, "CA")
        whole = np.zeros(shape, np.float32)
        whole[:m, :k] = values
    return whole


def _mask_of_matrix(x: np.ndarray, dtype: _dtypes.DType, out: np.ndarray) -> None:
    m, k = x.shape
    tiles = _spec.groups(k)
    bands = slices(_spec.groups(m), max(1, _BAND // (4 * k)), max(1, _BAND // (2 * k)))

    def task(number: int):
        band = bands[number]
        here = out[4 * band.start : 4 * band.stop]
        masks = np.empty((band.stop - band.start) * tiles, np.uint16)
        _best_masks(_whole_tiles(x[4 * band.start : 4 * band.stop], dtype), masks)
        if k == 4 * tiles:
            _spread(masks, here.view(np.uint32))
        else:
            words = np.empty((len(here), tiles), np.uint32)
            _spread(masks, words)
            here[...] = words.view(bool)[:, :k]

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
    if x.ndim > 2 and m * k < _BAND:  # a copy is cheaper than a pass for each small matrix
        filled = np.zeros((*x.shape[:-2], 4 * _spec.groups(m), k), x.dtype)
        filled[..., :m, :] = x
        out[...] = transposable_mask(filled)[..., :m, :]
        return out
    for place in np.ndindex(*x.shape[:-2]):
        _mask_of_matrix(x[place], dtype, out[place])
    return out
