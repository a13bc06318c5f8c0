"""Lay out ``cuda/transpose.cu`` for addresses that are moved from call to call."""

from __future__ import annotations

import numpy as np

from sparse24 import _arrays
from sparse24._views import View
from sparse24.kernels import loader
from sparse24.kernels.chip import chip
from sparse24.kernels.launch import Launch, pointer
from sparse24.kernels.transpose import NAME, THREADS, VECTORS


def rows_of(b) -> tuple[View, int]:
    """Where a matrix b (k, n) that lies by columns can lie by rows, and how many bytes that takes.

    The rows begin on lines of memory, if the memory itself does.
    """
    (k, n), size = b.shape, b.dtype.itemsize
    pitch = size * _arrays.row_pitch(n, size, _arrays.LINE)
    return View.of(0, (k, n), (pitch, size), b.dtype), k * pitch


def bind(b, rows: View) -> Launch:
    """The launch that copies b to `rows`, as `rows_of` has them, at their addresses."""
    (k, n), size = b.shape, b.dtype.itemsize
    tile = VECTORS * 16 // size
    aligned = (b.data.ptr | b.strides[1]) % 16 == 0
    arguments = (
        pointer(b), *np.array([[b.strides[1] // size], [0]], np.int64),
        pointer(rows), *np.array([[rows.strides[0] // size], [0]], np.int64),
        *np.array([[n], [k], [aligned]], np.int32),
    )  # fmt: skip
    grid = -(-k // tile) * -(-n // tile)
    kernel = loader.function(NAME, NAME, (("BYTES", size),))
    return Launch(kernel, grid, THREADS, 0, arguments, early=chip().launches_early)
