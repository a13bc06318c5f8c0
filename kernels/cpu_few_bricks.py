"""The CPU product of a quantised 2:4 matrix with very few columns, which reads its bricks.

Nothing has to be dequantised before, or kept.  Elements are rounded in registers as those of a
dequantised matrix are.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from sparse24 import _arrays, _dtypes
from sparse24._records import Fused
from sparse24.kernels import bricks as layout
from sparse24.kernels._numba import njit, parallel, slices
from sparse24.kernels._simd import VECTOR_BYTES
from sparse24.kernels._simd_bricks import AVAILABLE, HALF_ROWS, brick_dots
from sparse24.kernels.cpu_batch import at_place
from sparse24.kernels.cpu_decode import decoded
from sparse24.kernels.cpu_epilogue import finish
from sparse24.kernels.cpu_few import work_of_few
from sparse24.kernels.cpu_prepared import ColumnsRoom

# Columns up to which this wins over the product of a dequantised matrix, by the bits.  Measured by
# one thread, 4096 x 4096 from out of the L2 cache.  With AVX-512 it takes these shares of the time
# in float16 and float32: of 4 bits 0.5 and 0.3 with one column, 0.8 and 0.6 with four, 1.3 and 0.9
# with eight; of 8 bits 0.9 and 0.5 with one, 1.2 and 0.7 with two.  With AVX2 of 4 bits 1.1 and 0.6
# with one, 0.9 and 0.8 with four, but it reads a third of the bytes that others may read from
# memory; of 8 bits 1.3 and 0.8 with one.
_MOST = {4: 4, 8: 1}
_WIDE = VECTOR_BYTES == 64
# Pairs of rows at a time by the columns, so that sums fit; with AVX2 so that they are enough.
_ROWS = {1: 4, 2: 2, 3: 1, 4: 1} if _WIDE else {1: 2, 2: 2, 3: 2, 4: 4}
_KINDS = {
    np.dtype(np.float32): np.empty(0, np.float32),
    np.dtype(np.float16): np.empty(0, np.int16),
    np.dtype(ml_dtypes.bfloat16): np.empty(0, np.uint16),
}  # what `brick_dots` takes for the types to which elements are rounded


def bricks_pay(bits: int, dtype: _dtypes.DType, b: np.ndarray) -> bool:
    """Whether bricks of so many bits, as elements of `dtype`, are multiplied as they are by `b`."""
    if not AVAILABLE or dtype.logical not in _KINDS:
        return False
    if bits == 8 and not _WIDE and dtype.logical != np.float32:
        return False
    sums = _arrays.logical_dtype(b, argument="b").accumulator
    return b.shape[-1] <= _MOST[bits] and sums == dtype.accumulator


@njit
def _multiply(bricks, b, kind, sums, shape):
    rows = len(shape[1])
    for block in range(len(bricks)):
        for row in range(0, HALF_ROWS, rows):
            brick_dots(bricks, block, row, b, kind, sums, shape)


class FewBricks:
    """``out = epilogue(A @ b)``, where `bricks_pay`, for operands like those that it is made for.

    Parameters
    ----------
    bricks : ndarray of uint8, shape (row blocks, K atoms, bytes)
    bits : int
    dtype : DType
        float16, bfloat16 or float32, to which integers times factors are rounded.
    b : ndarray, shape (k, n), any strides
    """

    def __init__(self, bricks: np.ndarray, bits: int, dtype: _dtypes.DType, b: np.ndarray):
        n, (blocks, atoms, _) = b.shape[1], bricks.shape
        self._bricks = np.require(bricks, requirements="C")
        self._b_dtype, self._kind = _arrays.logical_dtype(b, argument="b"), _KINDS[dtype.logical]
        self._columns = ColumnsRoom(b.shape, atoms * layout.COLUMNS, np.dtype(np.float32))
        self._shape = (0,) * bits, (0,) * _ROWS[n], (0,) * n
        self._work = work_of_few(blocks * layout.ROWS, n, atoms * layout.STORED)
        self._parts = slices(blocks, 1, work=self._work)

    def __call__(self, b: np.ndarray, out: np.ndarray, epilogue: Fused) -> None:
        """`out` has the shape (m, n), any strides and result type."""
        room = self._columns.take()
        columns, target = room
        target[...] = decoded(b, self._b_dtype, np.float32)
        m, n = out.shape

        def task(number: int):
            part = self._parts[number]
            rows = slice(part.start * layout.ROWS, min(part.stop * layout.ROWS, m))
            sums = np.empty(((part.stop - part.start) * layout.ROWS, n), np.float32)
            _multiply(self._bricks[part], columns, self._kind, sums, self._shape)
            finish(sums[: rows.stop - rows.start], out, epilogue, rows, slice(0, n))

        parallel(task, len(self._parts), self._work)
        self._columns.give(room)


def multiply_bricks(
    bricks: np.ndarray, bits: int, dtype: _dtypes.DType, b, out, epilogue: Fused
) -> None:
    """Write ``epilogue(A @ b)`` into `out`; parameters as for `FewBricks`, or those of a stack."""
    lead = out.shape[:-2]
    b = np.broadcast_to(b, (*lead, *b.shape[-2:]))
    for at in np.ndindex(*lead):
        FewBricks(bricks[at], bits, dtype, b[at])(b[at], out[at], at_place(epilogue, at))
