"""Groups along the last axis, and conversions, for the other references in NumPy."""

from __future__ import annotations

import numpy as np

from sparse24 import _spec


def split(x: np.ndarray, size: int) -> np.ndarray:
    """(..., k) -> (..., k / size, size)."""
    return x.reshape(*x.shape[:-1], x.shape[-1] // size, size)


def joined(x: np.ndarray) -> np.ndarray:
    """(..., a, b) -> (..., a * b)."""
    return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])


def grouped(x: np.ndarray, fill=0) -> np.ndarray:
    """(..., k) -> (..., ceil(k/4), 4), the last group filled up."""
    pad = -x.shape[-1] % _spec.GROUP
    x = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, pad)], constant_values=fill)
    return split(x, _spec.GROUP)


def is_nonzero(x: np.ndarray) -> np.ndarray:
    return x != 0  # false for -0.0, true for NaN


def transpose(b: np.ndarray) -> np.ndarray:
    """b (..., k, n) stored by columns."""
    return np.ascontiguousarray(b.swapaxes(-1, -2)).swapaxes(-1, -2)


def to_dtype(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Convert as the kernels do: integers round half to even and saturate, fp8 saturates.

    NaN becomes the integer 0.
    """
    if dtype.kind == "i":
        return _to_whole(x, dtype)
    by_numpy = dtype.isbuiltin == 1  # others are made of float32
    if x.dtype == np.float64 and not by_numpy:
        x = to_odd(x)
    if dtype.name.startswith("float8"):
        import ml_dtypes

        limit = float(ml_dtypes.finfo(dtype).max)
        return np.clip(x.astype(np.float32), -limit, limit).astype(dtype)
    return x.astype(dtype)


def to_odd(x: np.ndarray) -> np.ndarray:
    """float64 as float32; what is inexact is rounded to odd, so that it can be rounded again.

    Rounding to a type with at least two bits less then gives what one rounding would give.

    Source: Boldo and Melquiond, "When double rounding is odd", 2004.
    """
    with np.errstate(over="ignore"):
        near = x.astype(np.float32)
    cut = near.view(np.uint32) - (np.abs(near) > np.abs(x))  # the next one towards zero
    inexact = (near < x) | (near > x)  # not so of NaN
    return (cut | inexact).view(np.float32)


def _to_whole(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    info = np.iinfo(dtype)
    if x.dtype.kind in "iu":
        return np.clip(x, info.min, info.max).astype(dtype)
    if dtype.itemsize >= x.dtype.itemsize:  # float32 has no 2147483647
        x = x.astype(np.float64)
    whole = np.clip(np.rint(x), info.min, info.max)
    return np.where(np.isnan(whole), whole.dtype.type(0), whole).astype(dtype)
