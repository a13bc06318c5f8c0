"""Stored elements rounded to integers of few bits times factors, on the CPU.

Of 64 elements, which share a factor, all shares of the largest factor are tried while they are in
cache.  Their errors are added up in NumPy's order, so that the same share wins as by operations on
whole arrays.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparse24 import _dtypes
from sparse24.kernels._numba import njit, parallel, slices
from sparse24.kernels.bricks import STORED
from sparse24.kernels.cpu_decode import decode_into

_RUN_STORED = 1 << 15  # stored elements of a task: in float32 they stay in L2
_LANES = 8  # sums that NumPy adds up side by side


@njit
def _largest(x):
    """The first element of the largest magnitude; of elements that are not finite, one of those."""
    words = x.view(np.int32)
    top = np.int32(0)
    for i in range(STORED):
        top = max(top, np.int32(words[i] & 0x7FFFFFFF))
    at = 0
    while words[at] & 0x7FFFFFFF != top:
        at += 1
    return x[at]


@njit
def _round(x, factor, least, rounded, errors):
    """The nearest integers, as floats, of 64 elements, and the sum of their squared errors."""
    for i in range(STORED):
        scaled = x[i] / factor
        nearest = min(max(np.rint(scaled), least), np.float32(-1) - least)
        rounded[i] = nearest
        errors[i] = (nearest - scaled) * (nearest - scaled)
    for start in range(_LANES, STORED, _LANES):
        for lane in range(_LANES):
            errors[lane] += errors[start + lane]
    low = (errors[0] + errors[1]) + (errors[2] + errors[3])
    return low + ((errors[4] + errors[5]) + (errors[6] + errors[7]))


@njit
def _quantise(values, shares, squares, least, tiny, integers, factors):
    """Fill `integers` and `factors`; `squares` are those of `shares`; numbers are float32."""
    m, stored = values.shape
    x, rounded = np.empty(STORED, np.float32), np.empty(STORED, np.float32)
    errors, kept = np.empty(STORED, np.float32), np.empty(STORED, np.int8)
    for row in range(m):
        for group in range(factors.shape[1]):
            start = group * STORED
            count = min(STORED, stored - start)
            for i in range(STORED):
                x[i] = values[row, start + i] if i < count else np.float32(0)
                kept[i] = 0
            largest = _largest(x) / least
            factors[row, group] = np.float32(0) if abs(largest) < tiny else largest
            best = np.float32(np.inf)
            for i in range(len(shares) if tiny <= abs(largest) < np.inf else 0):
                tried = largest * shares[i]
                error = _round(x, tried, least, rounded, errors) * squares[i]
                if error < best:
                    best = error
                    factors[row, group] = tried
                    for j in range(STORED):
                        kept[j] = np.int8(rounded[j])
            for i in range(count):
                integers[row, start + i] = kept[i]


def quantise(
    values: np.ndarray, dtype: _dtypes.DType, bits: int, shares: Sequence[float], tiny: np.float32
) -> tuple[np.ndarray, np.ndarray]:
    """Integers of stored elements, and the factors of every 64 of a row.

    Of the factors that are these shares of the largest, those with the least square error.

    Parameters
    ----------
    values : ndarray, shape (m, stored)
        Of the float type `dtype`; rounded to float32 first.
    dtype : DType
    bits : int
    shares : sequence of float
    tiny : float32
        Factors below are zero.

    Returns
    -------
    integers : ndarray of int8, shape (m, stored)
    factors : ndarray of float32, shape (m, ceil(stored / 64))
        Infinite or NaN where an element is.
    """
    m, stored = values.shape
    integers = np.empty((m, stored), np.int8)
    factors = np.empty((m, -(-stored // STORED)), np.float32)
    each = np.array(shares, np.float32)
    squares = np.array([share**2 for share in each], np.float32)
    least = np.float32(-(1 << bits - 1))
    work = len(each) * integers.size
    parts = slices(m, 1, max(1, _RUN_STORED // max(1, stored)), work=work)

    def run(number: int):
        rows = parts[number]
        source = np.require(values[rows], requirements="CA")
        wide = np.empty(source.shape, np.float32)
        with np.errstate(over="ignore"):  # the factors tell
            decode_into(source, dtype, wide)
        _quantise(wide, each, squares, least, tiny, integers[rows], factors[rows])

    parallel(run, len(parts), work)
    return integers, factors
