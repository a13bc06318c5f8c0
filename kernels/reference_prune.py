"""Reference in NumPy for pruning: which elements are kept."""

from __future__ import annotations

import numpy as np

from sparse24 import _spec
from sparse24.kernels.reference_arrays import grouped, is_nonzero, joined, split


def magnitude_rank(x: np.ndarray) -> np.ndarray:
    """Integer scores (int64) whose order is the order of magnitude; exact for every type.

    NaN ranks above infinity, all NaNs alike; -0.0 equals 0.0; int8 -128 ranks above 127.
    """
    if x.dtype.kind in "iu":
        return np.abs(x.astype(np.int64))
    signed = np.dtype(f"i{x.dtype.itemsize}")
    top = np.iinfo(signed).max  # the bits without the sign grow with the magnitude
    bits = (np.ascontiguousarray(x).view(signed) & signed.type(top)).astype(np.int64)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return np.where(np.isnan(x), top, bits)


def top_mask(scores: np.ndarray, keep: int, group: int) -> np.ndarray:
    """Boolean mask of the `keep` largest of every `group` along the last axis.

    Ties keep the lower index.  A NaN ranks above infinity.  A last, shorter group is
    filled up with elements that rank below all others.
    """
    k = scores.shape[-1]
    if scores.dtype.kind != "i":
        scores = scores.astype(np.result_type(scores, np.float32), copy=False)
    lowest = np.iinfo(scores.dtype).min + 1 if scores.dtype.kind == "i" else -np.inf
    pad = [(0, 0)] * (scores.ndim - 1) + [(0, -k % group)]
    grouped = split(np.pad(scores, pad, constant_values=lowest), group)
    nan = np.isnan(grouped)
    order = np.lexsort((-np.where(nan, 0, grouped), ~nan), axis=-1)  # stable
    mask = np.zeros(grouped.shape, bool)
    np.put_along_axis(mask, order[..., :keep], True, axis=-1)
    return joined(mask)[..., :k]


def excess_groups(x: np.ndarray) -> np.ndarray:
    """Boolean (..., ceil(k/4)): the groups with more than two non-zeros."""
    return is_nonzero(grouped(x)).sum(-1) > _spec.KEPT


def prune(x: np.ndarray, scores: np.ndarray | None = None) -> np.ndarray:
    """Zero all but the two best of every group of four."""
    keep = top_mask(magnitude_rank(x) if scores is None else scores, _spec.KEPT, _spec.GROUP)
    return np.where(keep, x, np.zeros((), x.dtype))


def transposable_mask(x: np.ndarray) -> np.ndarray:
    """Boolean mask, 2:4 along both of the last two axes, of the largest sum of magnitudes.

    Each 4x4 tile takes the best of the 90 legal masks.  The sum is defined to
    the bit: magnitudes as float32, NaN as a sixteenth of the largest float32;
    the kept pair of each row first, then rows 0 + 1 and rows 2 + 3, then both.
    Ties go to the smallest mask, read as bits 4 * row + column.  Edges are
    filled up with zeros.
    """
    m, k = x.shape[-2:]
    g = _spec.GROUP
    with np.errstate(over="ignore"):
        size = np.abs(x.astype(np.float32))
    size = np.where(np.isnan(size), np.finfo(np.float32).max / np.float32(16), size)
    pad = [(0, 0)] * (x.ndim - 2) + [(0, -m % g), (0, -k % g)]
    size = np.pad(size, pad)
    rows, columns = size.shape[-2] // g, size.shape[-1] // g
    tiles = size.reshape(*x.shape[:-2], rows, g, columns, g).swapaxes(-3, -2)
    legal = (_spec.TILE_MASKS[:, None] >> np.arange(g * g) & 1).astype(bool).reshape(-1, g, g)
    kept = np.nonzero(legal)[2].reshape(-1, g, _spec.KEPT)  # columns of (mask, row, slot)
    row = np.arange(g)[None, :]
    with np.errstate(over="ignore"):
        pairs = tiles[..., row, kept[..., 0]] + tiles[..., row, kept[..., 1]]
        sums = (pairs[..., 0] + pairs[..., 1]) + (pairs[..., 2] + pairs[..., 3])
    best = legal[np.argmax(sums, axis=-1)]  # (..., rows, columns, 4, 4); the first, smallest, wins
    return best.swapaxes(-3, -2).reshape(size.shape)[..., :m, :k]
