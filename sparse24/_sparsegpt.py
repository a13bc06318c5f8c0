"""Second-order pruning: the weights that stay make up for those that go.

With inputs X and H = X.T X, zeroing the set S of a weight row w costs, once all
other weights have moved to their best,

    w[S] inv(G[S, S]) w[S],   G = inv(H),

and moves them by -G[:, S] inv(G[S, S]) w[S] (optimal brain surgeon).  As in
SparseGPT (Frantar, Alistarh, 2023), columns are settled from left to right, and
those already settled stay put: then one G serves all rows.  Unlike there, a whole
group is settled at once: every way to prune it is priced exactly, and its own kept
weights move as well.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from sparse24 import _scales, _spec
from sparse24._arrays import namespace
from sparse24._errors import ArgumentError
from sparse24._select import tile_masks

BLOCK = 128  # columns whose effect on the columns after them is applied in one product
ASYMMETRY = 1e-3  # of the largest element, which sums in float32 stay below
EXHAUSTIVE = 128  # most ways to prune a group that are all priced; beyond, one by one


def sparsegpt(weights, hessian, n: int, m: int, *, transposable: bool = False, damping=0.01):
    """Prune to n:m and update what is kept.

    Parameters
    ----------
    weights : array of float64, shape (rows, k)
    hessian : array, shape (k, k)
        ``X.T @ X`` of the inputs, up to a factor.
    damping : float
        Part of the mean of the Hessian's diagonal that is added to the diagonal.

    Returns
    -------
    weights : array of float64, shape (rows, k)
        Zero where pruned.
    mask : array of bool, shape (rows, k)
    """
    xp = namespace(weights)
    rows, k = weights.shape
    factor = inverse_factor(xp, xp.asarray(hessian), k + -k % m, damping)
    w = xp.zeros((rows + (-rows % _spec.GROUP if transposable else 0), len(factor)))
    scale = _scales.of(weights)  # ways to prune are priced by squares
    w[:rows, :k] = weights * scale
    kept = xp.zeros(w.shape, bool)
    settle = _settle_tiles if transposable else _settle_groups
    step = m * math.ceil(BLOCK / m)
    for start in range(0, w.shape[1], step):
        block = slice(start, min(start + step, w.shape[1]))
        errors = xp.zeros((len(w), block.stop - start))
        for first in range(start, block.stop, m):
            group = slice(first, first + m)
            own = factor[group, group]
            kept[:, group], pull = settle(xp, w[:, group], own.T @ own, n, m)
            error = pull @ own.T  # what later columns must make up for
            w[:, first : block.stop] -= error @ factor[group, first : block.stop]
            errors[:, first - start : first - start + m] = error
        w[:, block.stop :] -= errors @ factor[block, block.stop :]
    kept = kept[:rows, :k]
    return xp.where(kept, w[:rows, :k], 0.0) / scale, kept


def damped(hessian, damping: float):
    """The Hessian over its mean diagonal, plus `damping` on the diagonal; and that mean.

    Without inputs, or where they are all zero, the identity: weights are worth their square.
    """
    xp = namespace(hessian)
    identity = xp.eye(len(hessian))
    scale = float(hessian.diagonal().mean()) if len(hessian) else 0.0
    if not 0 <= scale < math.inf:
        raise ArgumentError(
            "the inputs, or the hessian, hold NaN or inf, or are not a second moment: the mean of "
            f"its diagonal is {scale}; leave out what is not finite"
        )
    if scale == 0:
        return identity, 1.0
    return hessian / scale + damping * identity, scale


def narrowed(x, dtype: np.dtype):
    """`x` of float64 in another type: integers round to even and saturate, fp8 saturates."""
    if isinstance(x, np.ndarray):
        from sparse24.kernels import reference

        return reference.to_dtype(x, dtype)
    if dtype == np.int8:  # fp8 is carried as bits on a GPU, and does not come here
        xp = namespace(x)
        x = xp.clip(xp.rint(x), -128, 127)
    return x.astype(dtype)


def _is_symmetric(h):
    """Whether a matrix is symmetric, but for the rounding of sums in float32."""
    return not h.size or abs(h - h.T).max() <= ASYMMETRY * abs(h).max()


def inverse_factor(xp, hessian, size: int, damping: float):
    """Upper U with U.T @ U = inv(H), H damped and padded with an identity to `size`."""
    h = xp.eye(size)
    h[: len(hessian), : len(hessian)] = damped(hessian, damping)[0]
    try:  # of which one triangle is read
        upper = xp.linalg.cholesky(h[::-1, ::-1])[::-1, ::-1]  # upper @ upper.T = h
    except np.linalg.LinAlgError:
        upper = None
    if upper is None or not bool(xp.isfinite(upper).all() & _is_symmetric(h)):  # CuPy gives NaN
        raise ArgumentError(
            "hessian must be a second moment X.T @ X, symmetric and positive semidefinite; pass "
            f"the inputs as calibration=, or more damping than {damping}"
        )
    if xp is not np or not size:
        return xp.linalg.inv(upper)
    from scipy.linalg import lapack

    inverse, _ = lapack.dtrtri(upper)  # info is 0: Cholesky left a positive diagonal
    return inverse


def _prices(xp, w, inverse, n: int, m: int):
    """Cost (rows, ways) of each way to prune m - n of m, the ways (ways, m), and their pulls.

    Pulls (ways, m, m) hold inv(G[S, S]) in place, so w @ pull is what is to be undone.
    """
    ways = np.zeros((math.comb(m, n), m), bool)
    for way, chosen in zip(ways, itertools.combinations(range(m), n), strict=True):
        way[list(chosen)] = True
    gone = xp.asarray(~ways, dtype=np.float64)
    inside = gone[:, :, None] * gone[:, None, :]
    # Outside S the matrix is the identity, so one batched inverse does them all.
    pulls = xp.linalg.inv(inside * inverse + xp.eye(m) * (1 - inside)) * inside
    cost = xp.stack([((w @ pull) * w).sum(-1) for pull in pulls], axis=-1)
    return cost, ways, pulls


def _settle_groups(xp, w, inverse, n: int, m: int):
    """Mask and pull (both (rows, m)) of the best way to prune each row of one group."""
    if math.comb(m, n) > EXHAUSTIVE:
        return _settle_one_by_one(xp, w, inverse, m - n)
    cost, ways, pulls = _prices(xp, w, inverse, n, m)
    best = xp.argmin(cost, axis=-1)
    return xp.asarray(ways)[best], _pull(xp, w, pulls, best)


def _settle_tiles(xp, w, inverse, n: int, m: int):
    """As `_settle_groups`, for 4x4 tiles: the cheapest of the 90 masks for every four rows."""
    cost, ways, pulls = _prices(xp, w, inverse, n, m)
    place = {tuple(way): i for i, way in enumerate(ways.tolist())}
    table = [[place[tuple(row)] for row in mask] for mask in tile_masks().tolist()]
    table = xp.asarray(np.array(table))
    cost = cost.reshape(-1, _spec.GROUP, len(ways))
    total = sum(cost[:, i][:, table[:, i]] for i in range(_spec.GROUP))
    best = table[xp.argmin(total, axis=-1)].reshape(-1)
    return xp.asarray(ways)[best], _pull(xp, w, pulls, best)


def _pull(xp, w, pulls, best):
    pull = xp.zeros_like(w)
    for i, matrix in enumerate(pulls):
        pull += xp.where((best == i)[:, None], w @ matrix, 0.0)
    return pull


def _settle_one_by_one(xp, w, inverse, count: int):
    """Prune `count` of a large group greedily, each time the cheapest that is left."""
    rows, m = w.shape
    g = xp.broadcast_to(inverse, (rows, m, m)).copy()
    left, kept, everyone = w.copy(), xp.ones((rows, m), bool), xp.arange(rows)
    for _ in range(count):
        variance = xp.where(kept, xp.einsum("rii->ri", g), 1.0)
        worst = xp.argmin(xp.where(kept, left**2 / variance, np.inf), axis=-1)
        column = g[everyone, :, worst]
        scale = column[everyone, worst]
        left -= column * (left[everyone, worst] / scale)[:, None]
        g -= column[:, :, None] * (column / scale[:, None])[:, None, :]
        kept[everyone, worst] = False
    # What was taken from w in all, seen through inv(G), lies on the pruned elements.
    return kept, xp.where(kept, 0.0, (w - left) @ xp.linalg.inv(inverse))
