"""From scores to masks: the best of every group, the best of every tile, whole channels.

Scores are arrays in which more is better; a NaN ranks above infinity.  The meaning
is that of `kernels.reference`, on NumPy and CuPy arrays alike; nothing here waits.
"""

from __future__ import annotations

import numpy as np

from sparse24 import _dtypes, _spec
from sparse24._arrays import namespace


def best_of_groups(scores, n: int, m: int):
    """Mask of the `n` best of every `m` along the last axis; ties keep the lower index.

    A last, shorter group is filled up with elements that rank below all others.
    """
    xp = namespace(scores)
    ones, row = xp.ones(scores.shape, np.int8), _dtypes.TABLE["int8"]
    pruned = kept_by_kernel(ones, row, n, m, scores)
    if pruned is not None:
        return pruned.view(bool)
    if not scores.size:
        return ones.astype(bool)
    order_of = in_groups(_order_keys(xp, scores), m, np.iinfo(np.int64).min)
    order = xp.argsort(~order_of, axis=-1, kind="stable")  # ~ turns the order without overflow
    keep = xp.zeros(order.shape, bool)
    xp.put_along_axis(keep, order[..., :n], True, axis=-1)
    return keep.reshape(*scores.shape[:-1], order.shape[-2] * m)[..., : scores.shape[-1]]


def kept_by_kernel(x, row: _dtypes.DType, n: int, m: int, scores=None):
    """`x` (..., k) pruned by `scores` or magnitude, or None where no kernel does that."""
    is_24 = (n, m) == (_spec.KEPT, _spec.GROUP)
    if namespace(x) is np:
        from sparse24.kernels import cpu

        return cpu.prune(x, scores) if is_24 else cpu.prune_n_m(x, n, m, scores)
    if not is_24:
        return None
    from sparse24.kernels import compress, decompress

    matrices = [y if y is None or y.ndim > 1 else y[None] for y in (x, scores)]
    rule = "magnitude" if scores is None else "scores"
    record, _ = compress.launch(matrices[0], row, rule=rule, scores=matrices[1])
    return decompress.launch(record).reshape(x.shape)


def in_groups(x, m: int, fill=0):
    """(..., k) -> (..., ceil(k / m), m), the last group filled up."""
    x = _padded(x, -1, m, fill)
    return x.reshape(*x.shape[:-1], x.shape[-1] // m, m)


def best_of_tiles(scores):
    """Mask of the largest sum among the 90 that keep 2 of 4 in each row and column of a tile.

    Tiles are 4x4 over the last two axes of scores that are not negative; ragged edges
    are filled up with zeros.  Sums are float32, as `reference.transposable_mask` says.
    """
    scores = scores.astype(np.float32, copy=False)
    if namespace(scores) is np:
        from sparse24.kernels import cpu

        return cpu.transposable_mask(scores)
    from sparse24.kernels import transposable

    return transposable.mask(scores, _dtypes.TABLE["float32"])


def raised_tiles(scores):
    """Scores that are not negative and order the masks of every tile in the same way.

    Every mask keeps eight elements, so adding a number to a tile favours none.
    """
    xp, g = namespace(scores), _spec.GROUP
    *batch, rows, columns = scores.shape
    if not scores.size:
        return scores
    largest = np.finfo(np.float32).max / 16
    scores = xp.nan_to_num(scores.astype(np.float32), True, largest, np.inf, -largest)
    padded = _padded(_padded(scores, -1, g, 0), -2, g, 0)
    tiles = padded.reshape(*batch, padded.shape[-2] // g, g, padded.shape[-1] // g, g)
    tiles = tiles - xp.minimum(tiles.min((-3, -1), keepdims=True), 0)
    return tiles.reshape(padded.shape)[..., :rows, :columns]


def tile_masks() -> np.ndarray:
    """The 90 transposable masks, bool (90, 4, 4), in ascending order of their bits."""
    bits = _spec.TILE_MASKS[:, None] >> np.arange(_spec.GROUP**2) & 1
    return bits.astype(bool).reshape(-1, _spec.GROUP, _spec.GROUP)


def without_channels(keep, scores, fraction: float):
    """`keep` (rows, k) with whole rows cleared: those whose kept scores sum to least.

    The worst ``int(fraction * rows)`` go, of equals the later one.
    """
    xp = namespace(keep)
    totals = xp.where(keep, scores, 0).sum(-1, dtype=np.float64)
    order = xp.argsort(-totals, kind="stable")
    alive = xp.ones(len(keep), bool)
    alive[order[len(keep) - int(fraction * len(keep)) :]] = False
    return keep & alive[:, None]


def _order_keys(xp, scores):
    """int64 keys in the order of the scores, NaN on top."""
    if scores.dtype.kind in "iub":
        return scores.astype(np.int64)
    scores = scores.astype(np.float64) + 0.0  # -0.0 becomes 0.0
    bits = scores.view(np.int64)
    top = np.iinfo(np.int64).max
    return xp.where(xp.isnan(scores), top, xp.where(bits < 0, bits ^ top, bits))


def _padded(x, axis: int, multiple: int, fill):
    missing = -x.shape[axis] % multiple
    if not missing:
        return x
    width = [(0, 0)] * x.ndim
    width[axis] = (0, missing)
    return namespace(x).pad(x, width, constant_values=fill)
