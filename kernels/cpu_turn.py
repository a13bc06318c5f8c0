"""Copies of matrices whose columns are contiguous, in C order.

NumPy copies such a matrix element by element: 2048 x 2048 of int8 in thirty times the time, where
the distance of columns is a power of two.  Here squares of 16 by 16 are turned in registers.
"""

from __future__ import annotations

import numpy as np

from sparse24.kernels._numba import njit, parallel, slices
from sparse24.kernels._simd_copy import RUN, turn_square

_PART_BYTES = 1 << 19  # of a task: what it writes stays in L2
_SMALL = 1 << 12  # elements that NumPy copies as soon


@njit
def _turn(x, first, last, out):
    """Rows `first` to `last` of `x` to the first columns of `out`."""
    n, pitch = x.shape[1], out.shape[1]
    flat = out.reshape(out.size)
    whole, wide = first + (last - first) // RUN * RUN, n // RUN * RUN
    for c in range(0, wide, RUN):
        for row in range(first, whole, RUN):
            turn_square(x, row, c, flat, (row - first) * pitch + c, pitch)
    for row in range(first, last):
        for c in range(0 if row >= whole else wide, n):
            out[row - first, c] = x[row, c]


def by_columns(x: np.ndarray) -> bool:
    """True for a matrix that is better copied by `copy_rows` than by NumPy."""
    return (
        x.ndim == 2
        and x.strides[0] == x.itemsize
        and x.size > _SMALL
        and min(x.shape) >= RUN
        and x.itemsize in (1, 2, 4, 8)
        and x.dtype.isnative
        and x.flags.aligned
    )


def copy_rows(x: np.ndarray, rows: slice, out: np.ndarray) -> None:
    """``out[:, : x.shape[1]] = x[rows]``; `out` is in C order and has the type of `x`."""
    if by_columns(x):
        bits = f"u{x.itemsize}"
        _turn(x.view(bits), rows.start, rows.stop, out.view(bits))
    else:
        out[:, : x.shape[1]] = x[rows]


def in_c_order(x: np.ndarray) -> np.ndarray:
    """`x`, or a copy of it, in C order."""
    if not by_columns(x):
        return np.ascontiguousarray(x)
    out = np.empty(x.shape, x.dtype)
    high = max(RUN, _PART_BYTES // out[:1].nbytes // RUN * RUN)
    parts = slices(len(x), RUN, high, RUN, out.nbytes)
    parallel(lambda i: copy_rows(x, parts[i], out[parts[i]]), len(parts), out.nbytes)
    return out
