"""From scores to masks: the best of every group, the best of every tile, whole channels.

Scores are arrays in which more is better; NaN ranks lowest.  Everything here
works along the last axis of NumPy or CuPy arrays and waits for nothing.
"""

from __future__ import annotations

import functools

import numpy as np

from sparse24._arrays import namespace

TILE = 4  # a transposable mask keeps two of four in every row and column of a 4x4 tile


def best_of_groups(scores, n: int, m: int):
    """Mask of the `n` best of every `m` along the last axis; ties keep the lower index.

    A last, shorter group is filled up with elements that rank below all others.
    """
    xp = namespace(scores)
    k = scores.shape[-1]
    if not scores.size:
        return xp.zeros(scores.shape, bool)
    worst = in_groups(-_ranked(xp, scores), m, np.inf)
    order = xp.argsort(worst, axis=-1, kind="stable")
    keep = xp.zeros(worst.shape, bool)
    xp.put_along_axis(keep, order[..., :n], True, axis=-1)
    return keep.reshape(*scores.shape[:-1], -1)[..., :k]


def in_groups(x, m: int, fill=0):
    """(..., k) -> (..., ceil(k / m), m), the last group filled up."""
    x = _padded(x, -1, m, fill)
    return x.reshape(*x.shape[:-1], x.shape[-1] // m, m)


def best_of_tiles(scores):
    """Mask with the largest sum among the 90 that keep 2 of 4 in each row and column of a tile.

    Tiles are 4x4 over the last two axes; ragged edges count as zeros.  Equal sums
    keep the mask that comes first when rows are read as bits, low column first.
    """
    xp = namespace(scores)
    *batch, rows, columns = scores.shape
    if not scores.size:
        return xp.zeros(scores.shape, bool)
    scores = _ranked(xp, scores)
    # 16 of them must not overflow; a power of two keeps the order exact.
    scores = xp.clip(scores, *(np.finfo(np.float64).max * side for side in (-1, 1))) / 32
    padded = _padded(_padded(scores, -1, TILE, 0.0), -2, TILE, 0.0)
    shape = (*batch, padded.shape[-2] // TILE, TILE, padded.shape[-1] // TILE, TILE)
    tiles = xp.moveaxis(padded.reshape(shape), -2, -3)
    masks = xp.asarray(tile_masks())
    sums = tiles.reshape(-1, TILE * TILE) @ masks.reshape(len(masks), -1).T.astype(np.float64)
    best = masks[xp.argmax(sums, axis=-1)].reshape(tiles.shape)
    return xp.moveaxis(best, -2, -3).reshape(padded.shape)[..., :rows, :columns]


@functools.cache
def tile_masks() -> np.ndarray:
    """The 90 transposable masks, bool (90, 4, 4), in ascending order of their 16 bits.

    Bit ``4 * row + column``: the first is 0x33cc, the last 0xcc33.
    """
    bits = np.arange(1 << TILE * TILE)[:, None] >> np.arange(TILE * TILE) & 1
    tiles = bits.reshape(-1, TILE, TILE)
    legal = (tiles.sum(1) == 2).all(-1) & (tiles.sum(2) == 2).all(-1)
    return tiles[legal].astype(bool)


def without_channels(keep, scores, fraction: float):
    """`keep` with whole rows cleared: those whose kept scores sum to least.

    Rows run along the second-last axis; the worst ``int(fraction * rows)`` go, of
    equals the later one.
    """
    xp = namespace(keep)
    rows = keep.shape[-2]
    count = int(fraction * rows)
    if not count:
        return keep
    totals = xp.where(keep, _ranked(xp, scores), 0).sum(-1)
    order = xp.argsort(-totals, axis=-1, kind="stable")
    alive = xp.ones(totals.shape, bool)
    xp.put_along_axis(alive, order[..., rows - count :], False, axis=-1)
    return keep & alive[..., None]


def _ranked(xp, scores):
    scores = scores.astype(np.float64) if scores.dtype.kind != "f" else scores
    return xp.where(xp.isnan(scores), -np.inf, scores)


def _padded(x, axis: int, multiple: int, fill: float):
    missing = -x.shape[axis] % multiple
    if not missing:
        return x
    width = [(0, 0)] * x.ndim
    width[axis] = (0, missing)
    return namespace(x).pad(x, width, constant_values=fill)
