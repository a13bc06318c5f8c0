"""From scores to masks: the best of every group, the best of every tile, whole channels.

Scores are arrays in which more is better; a NaN ranks above infinity, except in tiles, whose
sums are compared (see `best_of_tiles`).  The meaning is that of `kernels.reference`, on NumPy and
CuPy arrays alike; nothing here waits.
"""

from __future__ import annotations

import numpy as np

from sparse24 import _arrays, _dtypes, _spec
from sparse24._arrays import namespace


def best_of_groups(scores, n: int, m: int):
    """Mask of the `n` best of every `m` along the last axis; ties keep the lower index.

    A last, shorter group is filled up with elements that rank below all others.
    """
    if namespace(scores) is np:
        return _prune_on_cpu(np.ones(scores.shape, np.int8), n, m, scores).view(bool)
    from sparse24.kernels import n_m

    scored, dtype = _as_matrix(scores), _dtypes.TABLE["int8"]
    return n_m.mask_n_m(scored, dtype, n, m, scores=scored).reshape(scores.shape)


def mask_by_magnitude(x, dtype: _dtypes.DType, n: int, m: int):
    """Mask of the `n` largest magnitudes of every `m` of an array, in one kernel."""
    if namespace(x) is np:
        from sparse24.kernels import cpu

        return cpu.mask_n_m(x, n, m)
    from sparse24.kernels import n_m

    return n_m.mask_n_m(_as_matrix(x), dtype, n, m).reshape(x.shape)


def best_elements(x, dtype: _dtypes.DType, n: int, m: int, scores=None):
    """`x` (..., k), as its kernels take it, zero but for the `n` best of every `m`.

    The best are the largest, or those of the best `scores` (CuPy only).
    """
    if namespace(x) is np:
        return _prune_on_cpu(x, n, m)
    from sparse24.kernels import n_m

    scores = None if scores is None else _as_matrix(scores)
    return n_m.prune_n_m(_as_matrix(x), dtype, n, m, scores=scores).reshape(x.shape)


def _as_matrix(x):
    """A CuPy array as its kernels take it, with one batch axis at most; may be a copy."""
    if x.ndim > 3:
        return _arrays.one_batch(x)
    return x if x.ndim > 1 else x[None]


def _prune_on_cpu(x, n: int, m: int, scores=None):
    from sparse24.kernels import cpu

    is_24 = (n, m) == (_spec.KEPT, _spec.GROUP)
    return cpu.prune(x, scores) if is_24 else cpu.prune_n_m(x, n, m, scores)


def in_groups(x, m: int):
    """(..., k) -> (..., ceil(k / m), m), the last group filled up with zeros."""
    x = _padded(x, -1, m)
    return x.reshape(*x.shape[:-1], x.shape[-1] // m, m)


def best_of_tiles(scores, dtype: _dtypes.DType | None = None):
    """Mask of the largest sum among the 90 that keep 2 of 4 in each row and column of a tile.

    Tiles are 4x4 over the last two axes of scores that are not negative, or of a CuPy array
    in storage dtype of `dtype`, whose magnitudes count; ragged edges are filled up with
    zeros.  Sums are float32, as `reference.transposable_mask` says.  NaN counts as a sixteenth of
    the largest number, so an infinity ranks above it, and ordinary scores vanish beside both.
    """
    if dtype is None:
        with np.errstate(over="ignore"):
            scores = scores.astype(np.float32, copy=False)
    if namespace(scores) is np:
        from sparse24.kernels import cpu

        return cpu.transposable_mask(scores)
    from sparse24.kernels import transposable

    return transposable.mask(scores, dtype or _dtypes.TABLE["float32"])


def raised_tiles(scores):
    """Scores that are not negative and order the masks of every tile in the same way.

    Every mask keeps eight elements, so adding a number to a tile favours none.
    """
    xp, g = namespace(scores), _spec.GROUP
    *batch, rows, columns = scores.shape
    if not scores.size:
        return scores
    largest = np.finfo(np.float32).max / 16
    with np.errstate(over="ignore"):  # what float32 does not hold is the largest there
        scores = scores.astype(np.float32)
    scores = xp.nan_to_num(scores, True, largest, np.inf, -largest)
    padded = _padded(_padded(scores, -1, g), -2, g)
    tiles = padded.reshape(*batch, padded.shape[-2] // g, g, padded.shape[-1] // g, g)
    tiles = tiles - xp.minimum(tiles.min((-3, -1), keepdims=True), 0)
    return tiles.reshape(padded.shape)[..., :rows, :columns]


def tile_masks() -> np.ndarray:
    """The 90 transposable masks, bool (90, 4, 4), in ascending order of their bits."""
    bits = _spec.TILE_MASKS[:, None] >> np.arange(_spec.GROUP**2) & 1
    return bits.astype(bool).reshape(-1, _spec.GROUP, _spec.GROUP)


def without_channels(keep, scores, fraction: float):
    """`keep` (rows, k) with whole rows cleared: those whose kept scores sum to least.

    The worst ``floor(fraction * rows)`` go, of equals the later one; NaN ranks highest.
    """
    xp = namespace(keep)
    totals = xp.where(keep, scores, 0).sum(-1, dtype=np.float64)
    order = xp.argsort(-xp.where(xp.isnan(totals), np.inf, totals), kind="stable")
    gone = int(round(fraction * len(keep), 6))  # 0.29 * 100 is a little less than 29
    alive = xp.ones(len(keep), bool)
    alive[order[len(keep) - gone :]] = False
    return keep & alive[:, None]


def _padded(x, axis: int, multiple: int):
    missing = -x.shape[axis] % multiple
    if not missing:
        return x
    width = [(0, 0)] * x.ndim
    width[axis] = (0, missing)
    return namespace(x).pad(x, width)
