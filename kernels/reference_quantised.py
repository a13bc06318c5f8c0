"""Reference in NumPy for quantised 2:4 matrices: integers of few bits times factors."""

from __future__ import annotations

import numpy as np

from sparse24.kernels.bricks import STORED


def quantise(values: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Integers (int8) of stored elements (m, at least k / 2), and factors (m, K atoms).

    The element of the largest magnitude of each 64 stored ones becomes the least integer, which has
    no counterpart: the others have more integers to choose from than with a symmetric range.
    """
    groups = _in_groups(np.asarray(values, np.float32))
    largest = np.take_along_axis(groups, np.abs(groups).argmax(-1)[..., None], -1)
    factors = largest / np.float32(-(1 << bits - 1))
    return rounded(values, factors[..., 0], bits), factors[..., 0]


def rounded(values: np.ndarray, factors: np.ndarray, bits: int) -> np.ndarray:
    """The nearest integers of stored elements for given factors; zeros where a factor is zero."""
    groups = _in_groups(np.asarray(values, np.float32))
    with np.errstate(divide="ignore"):
        inverse = np.where(factors == 0, np.float32(0), np.float32(1) / factors)
    least = -(1 << bits - 1)
    integers = np.clip(np.rint(groups * inverse[..., None]), least, -1 - least).astype(np.int8)
    return _in_rows(integers)[:, : values.shape[1]]


def dequantise(integers: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Stored elements, exactly, in float64."""
    groups = (
        _in_groups(np.asarray(integers, np.float64)) * np.asarray(factors, np.float64)[..., None]
    )
    return _in_rows(groups)[:, : integers.shape[1]]


def _in_groups(x: np.ndarray) -> np.ndarray:
    """Rows cut into groups with a factor each, zeros behind their ends."""
    m, stored = x.shape
    groups = -(-stored // STORED)
    padded = np.zeros((m, groups * STORED), x.dtype)
    padded[:, :stored] = x
    return padded.reshape(m, groups, STORED)


def _in_rows(groups: np.ndarray) -> np.ndarray:
    """The inverse of `_in_groups`, but for the zeros behind the ends."""
    m, count, stored = groups.shape
    return groups.reshape(m, count * stored)
