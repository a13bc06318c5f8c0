"""Launch ``cuda/transpose.cu``: a row-major operand stored by columns, at copy speed."""

from __future__ import annotations

import numpy as np

from sparse24 import _arrays
from sparse24.kernels import loader

NAME = "transpose"
THREADS = 256
VECTORS = 8  # 16-byte vectors of a line of a tile

COMPILE_CHECKS = [((("BYTES", size),), "sm_90a", None) for size in (1, 2, 4)]


def takes(b) -> bool:
    """True for CuPy arrays (k, n) or (batch, k, n) of elements of 1, 2 or 4 bytes, n contiguous."""
    return b.dtype.itemsize in (1, 2, 4) and b.ndim in (2, 3) and b.strides[-1] == b.dtype.itemsize


def launch(b):
    """Return a copy of b (..., k, n) whose columns are contiguous and begin on lines of memory.

    Parameters
    ----------
    b : cupy.ndarray that `takes` admits

    Returns
    -------
    cupy.ndarray of the shape of `b`
        A transposed view of its storage.  Enqueued on the current stream; does not wait.
    """
    xp, size = _arrays.namespace(b), b.dtype.itemsize
    turned = _arrays.empty_rows(xp, b.swapaxes(-1, -2).shape, b.dtype, _arrays.LINE)
    if b.size:
        *batch, k, n = b.shape
        tile = VECTORS * 16 // size
        blocks = -(-k // tile) * -(-n // tile) * (batch[0] if batch else 1)
        strides = [stride // size for stride in (b.strides[-2], b.strides[0] if batch else 0)]
        turned_strides = [turned.strides[-2] // size, turned.strides[0] // size if batch else 0]
        aligned = all(x % 16 == 0 for x in (b.data.ptr, *b.strides[:-1]))
        arguments = (
            b, *map(np.int64, strides), turned, *map(np.int64, turned_strides),
            np.int32(k), np.int32(n), np.int32(aligned),
        )  # fmt: skip
        kernel = loader.function(NAME, NAME, (("BYTES", size),))
        kernel((blocks,), (THREADS,), arguments)
    return turned.swapaxes(-1, -2)
