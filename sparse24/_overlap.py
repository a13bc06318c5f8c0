"""Whether arrays share memory: the bytes that they span."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparse24 import _arrays


def shares_memory(x: Any, y: Any) -> bool:
    """True if the bytes from first to last of two arrays overlap, as in `numpy.may_share_memory`.

    So it is true also of interleaved views, such as even and odd columns.
    """
    if _arrays.is_cupy(x) != _arrays.is_cupy(y):
        return False
    if isinstance(x, np.ndarray):
        return np.may_share_memory(x, y)
    return overlaps(x, y)


def overlaps(x: Any, y: Any) -> bool:
    """`shares_memory` of two arrays of CuPy or torch on a GPU."""
    low_x, high_x = _byte_bounds(x)
    low_y, high_y = _byte_bounds(y)
    return low_x < high_y and low_y < high_x


def same_view(x: Any, y: Any) -> bool:
    """True if two arrays of one library hold the same elements in the same order."""
    address = lambda a: a.data.ptr if _arrays.is_cupy(a) else a.ctypes.data  # noqa: E731
    return (address(x), x.shape, x.strides) == (address(y), y.shape, y.strides)


def _byte_bounds(x: Any) -> tuple[int, int]:
    """First byte of an array, and the one after its last; an empty array has none."""
    if _arrays.is_torch(x):
        reach = sum(step * (n - 1) for step, n in zip(x.stride(), x.shape, strict=True))
        first = x.data_ptr()  # strides of torch are not negative
        return (first, first + (reach + 1) * x.element_size()) if x.numel() else (0, 0)
    if not x.size:
        return 0, 0
    low, high = extent(x)
    return x.data.ptr + low, x.data.ptr + high


def extent(x: Any) -> tuple[int, int]:
    """Bytes from the first element of an array that has some to its first byte and past its last.

    The former is negative where an axis runs backwards.
    """
    spans = [stride * (size - 1) for stride, size in zip(x.strides, x.shape, strict=True)]
    low = sum(span for span in spans if span < 0)
    return low, sum(span for span in spans if span > 0) + x.dtype.itemsize
