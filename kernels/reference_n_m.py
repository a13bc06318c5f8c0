"""Reference in NumPy for pruning to n:m, and for its compressed form."""

from __future__ import annotations

import numpy as np

from sparse24.kernels.reference_arrays import is_nonzero, joined, split
from sparse24.kernels.reference_prune import magnitude_rank, top_mask


def prune_n_m(x: np.ndarray, n: int, m: int, scores: np.ndarray | None = None) -> np.ndarray:
    """Zero all but the `n` best of every group of `m` along the last axis."""
    keep = top_mask(magnitude_rank(x) if scores is None else scores, n, m)
    return np.where(keep, x, np.zeros((), x.dtype))


def compress_n_m(x: np.ndarray, n: int, m: int) -> tuple[np.ndarray, np.ndarray]:
    """Values (..., rows, n * groups) and places (uint8, same shape) of an n:m matrix.

    Every group stores exactly `n` distinct ascending places: its non-zeros, then,
    where there are fewer, its first zeros, with value 0.
    """
    pad = -x.shape[-1] % m
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, pad)])
    groups = split(padded, m)
    order = np.argsort(~is_nonzero(groups), axis=-1, kind="stable")[..., :n]
    places = np.sort(order, axis=-1)
    values = np.take_along_axis(groups, places, axis=-1)
    values[values == 0] = 0  # -0.0 reads back as +0.0
    return joined(values), joined(places.astype(np.uint8))


def decompress_n_m(values: np.ndarray, places: np.ndarray, n: int, m: int, k: int) -> np.ndarray:
    """The dense matrix (..., rows, k) of values and places."""
    slots = split(values, n)
    out = np.zeros((*slots.shape[:-1], m), values.dtype)
    np.put_along_axis(out, places.reshape(slots.shape).astype(np.intp), slots, axis=-1)
    return joined(out)[..., :k]
