"""The largest scores, exactly so many of them: ties go to the lower index, in every library."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from sparse24 import _arrays
from sparse24._schedule.arrays import Array, namespace, split_groups


def on_host(choose: Callable[[Array], Array], x: Array) -> Array:
    """``choose(x)``; what it makes of an array on the CPU it makes of NumPy's view of its memory.

    That takes a third to a hundredth of the time that torch and JAX take.
    """
    if _arrays.is_torch(x) and x.device.type == "cpu":
        import torch

        from sparse24 import _gradients, _host_tensors

        if torch.compiler.is_compiling() or _gradients.is_traced(x):  # which record operations
            return choose(x)
        try:
            view = _host_tensors.view(x)
        except (RuntimeError, TypeError):  # it has no memory, as within transforms
            return choose(x)
        return namespace(x).asarray(choose(view), device=x.device)
    if _is_jax_on_cpu(x) and len(x.devices()) == 1:
        from sparse24._jax import arrays as jax_arrays

        return jax_arrays.back(choose(np.asarray(x)), x)
    return choose(x)


def _kth_largest(scores: Array, k: int) -> Array:
    """The k-th largest element of each row (..., size)."""
    xp = namespace(scores)
    if isinstance(scores, np.ndarray) and scores.size == scores.shape[-1]:
        return _kth_largest_of_all(scores, k)
    if _is_jax_on_cpu(scores):
        return xp.asarray(_kth_largest(np.asarray(scores), k))
    place = scores.shape[-1] - k
    if hasattr(xp, "kthvalue"):  # torch
        return xp.kthvalue(scores, place + 1)[0]
    if hasattr(xp, "partition"):  # NumPy, CuPy, JAX
        return xp.partition(scores, place)[..., place]
    return xp.sort(scores, axis=-1)[..., place]


def _is_jax_on_cpu(x: Array) -> bool:
    """XLA's partition on a CPU takes 60 times as long as NumPy's."""
    if not _arrays.is_jax(x):
        return False
    from sparse24._jax import arrays as jax_arrays

    return jax_arrays.is_on_cpu(x)


def _kth_largest_of_all(scores: np.ndarray, k: int) -> np.ndarray:
    """The k-th largest element of the only row (..., size), found among those that are not -inf.

    NumPy takes 20 times as long to partition an array in which most elements are equal.
    """
    held, largest = scores[scores > -math.inf], -math.inf  # the former a copy
    if k <= held.size:
        held.partition(held.size - k)
        largest = held[held.size - k]
    return np.full(scores.shape[:-1], largest, scores.dtype)


def top_in_rows(scores: Array, keep: int) -> Array:
    """Boolean mask of exactly `keep` largest in each row (..., size); ties to the lower index."""
    xp = namespace(scores)
    if keep <= 0:
        return xp.zeros_like(scores, dtype=xp.bool)
    if keep >= scores.shape[-1]:
        return xp.ones_like(scores, dtype=xp.bool)
    threshold = _kth_largest(scores, keep)[..., None]
    if isinstance(scores, np.ndarray):  # on other devices this would wait
        reached = scores >= threshold
        excess = np.count_nonzero(reached, axis=-1) - keep
        if not excess.any():
            return reached
        if scores.size == scores.shape[-1]:  # the last of the ties lose
            ties = np.flatnonzero(scores == threshold)
            reached.flat[ties[ties.size - int(excess.max()) :]] = False
            return reached
    above, ties = scores > threshold, scores == threshold
    room = keep - xp.sum(xp.astype(above, xp.int32), axis=-1, keepdims=True)
    earlier = xp.cumulative_sum(xp.astype(ties, xp.int32), axis=-1)
    return above | (ties & (earlier <= room))


def top(scores: Array, keep: int) -> Array:
    """Boolean mask of the `keep` largest elements of an array of any shape; see `top_in_rows`."""
    xp = namespace(scores)
    best = on_host(lambda row: top_in_rows(row, keep), xp.reshape(scores, (-1,)))
    return xp.reshape(best, scores.shape)


# Pairs of places which, exchanged where they are out of order one after another, sort four.
_EXCHANGES = ((0, 1), (2, 3), (0, 2), (1, 3), (1, 2))


def fours_from_the_largest(x: Array) -> list[Array]:
    """The largest elements of groups of four (..., 4), then the second largest, and so on.

    None may be NaN.  NumPy takes seven times as long to sort rows of four.
    """
    xp = namespace(x)
    column = [x[..., i] for i in range(4)]
    for i, j in _EXCHANGES:
        larger = xp.maximum(column[i], column[j])
        column[i], column[j] = larger, xp.minimum(column[i], column[j])
    return column


def ranks_in_groups(scores: Array, group: int) -> Array:
    """Rank, 0 is best, of each element in its group along the last axis: (..., groups, group).

    Every pair is compared once; no sort, so the result is the same everywhere.
    A last, shorter group is filled up with elements that lose to all others.
    """
    xp = namespace(scores)
    grouped = split_groups(scores, group, -math.inf)
    column = [grouped[..., i] for i in range(group)]
    rank = [xp.zeros_like(column[0], dtype=xp.int8) for _ in range(group)]
    for i in range(group):
        for j in range(i + 1, group):
            first = column[i] >= column[j]  # a tie goes to the lower index
            rank[j] = rank[j] + xp.astype(first, xp.int8)
            rank[i] = rank[i] + xp.astype(~first, xp.int8)
    return xp.stack(rank, axis=-1)
