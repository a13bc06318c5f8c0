"""Reference in NumPy for sampling two of every four elements, which is right on average."""

from __future__ import annotations

import math

import numpy as np

from sparse24 import _spec
from sparse24.kernels.reference_arrays import grouped, joined, to_dtype
from sparse24.kernels.reference_prune import prune


def uniform(shape: tuple[int, ...], key: int) -> np.ndarray:
    """Float32 numbers in [0, 1), 24 random bits each: Philox 4x64 with a key of 128 bits."""
    count = math.prod(shape)
    words = np.random.Philox(key=key).random_raw(-(-count // 2))
    words = words.astype("<u8", copy=False).view("<u4")[:count]
    return ((words >> 8).astype(np.float32) * np.float32(2.0**-24)).reshape(shape)


def sample(x: np.ndarray, key: int) -> np.ndarray:
    """Two of every four elements, each kept with p = min(1, 2 |x| / sum |x|) and divided by p.

    The expectation is `x`.  |x| / p is half the sum, so no division is needed: magnitudes are
    laid end to end, and one uniform number u a group points at u and 1 + u halves of their sum.
    If an element alone exceeds half, it is certain and stays as it is; the other comes from the
    rest in the same way.  A group whose sum is not finite keeps its two largest.  In float32.
    """
    groups = grouped(x).astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        size = np.abs(groups)
        total = (size[..., 0] + size[..., 2]) + (size[..., 1] + size[..., 3])
        half = total * np.float32(0.5)
        certain = np.arange(_spec.GROUP) == size.argmax(-1)[..., None]
        certain &= (size.max(-1) > half)[..., None]
        capped = certain.any(-1)
        length = np.where(certain, 0, size)
        others = (length[..., 0] + length[..., 2]) + (length[..., 1] + length[..., 3])
        rest = np.where(capped, others, half)
        end = np.cumsum(length, axis=-1, dtype=np.float32)
        begin = np.concatenate([np.zeros_like(end[..., :1]), end[..., :3]], axis=-1)
        end[..., 3] = np.inf
        first = (uniform(total.shape, key) * rest)[..., None]
        second = np.where(capped, -1, half + first[..., 0])[..., None]
        drawn = (begin <= first) & (first < end) | (begin <= second) & (second < end)
        value = np.where(drawn & (length > 0), np.copysign(rest[..., None], groups), 0)
        value = np.where(certain, groups, value)
        finite = (total < np.inf)[..., None]
        value = np.where(finite, value, grouped(prune(x)).astype(np.float32))
        return to_dtype(joined(value)[..., : x.shape[-1]], x.dtype)
