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
from sparse24.kernels._simd_bricks import AVAILABLE, HALF_ROWS, brick_dots
from sparse24.kernels.cpu_decode import decoded
from sparse24.kernels.cpu_epilogue import finish
from sparse24.kernels.cpu_few import work_of_few
from sparse24.kernels.cpu_operand import pack_columns

# Columns up to which this wins over the product of a dequantised matrix, by the bits.  Measured by
# one thread with AVX-512, 4096 x 4096 in float16, in and out of cache: of 4 bits 0.5 of its time
# with one column, 0.8 to 0.9 with four, 1.1 to 1.3 with eight; of 8 bits 0.8 with one, then 1.1.
_MOST = {4: 4, 8: 1}
_ROWS = {1: 4, 2: 2, 3: 1, 4: 1}  # pairs of rows at a time by the columns, so that sums fit
_KINDS = {
    np.dtype(np.float32): np.empty(0, np.float32),
    np.dtype(np.float16): np.empty(0, np.int16),
    np.dtype(ml_dtypes.bfloat16): np.empty(0, np.uint16),
}  # what `brick_dots` takes for the types to which elements are rounded


def bricks_pay(bits: int, dtype: _dtypes.DType, b: np.ndarray) -> bool:
    """Whether bricks of so many bits, as elements of `dtype`, are multiplied as they are by `b`."""
    if not AVAILABLE or dtype.logical not in _KINDS or b.ndim > 2:
        return False
    sums = _arrays.logical_dtype(b, argument="b").accumulator
    return b.shape[1] <= _MOST[bits] and sums == dtype.accumulator


@njit
def _multiply(bricks, b, kind, sums, shape):
    rows = len(shape[1])
    for block in range(len(bricks)):
        for row in range(0, HALF_ROWS, rows):
            brick_dots(bricks, block, row, b, kind, sums, shape)


def multiply_bricks(
    bricks: np.ndarray, bits: int, dtype: _dtypes.DType, b, out, epilogue: Fused
) -> None:
    """Write ``epilogue(A @ b)`` into `out`, where `bricks_pay`.

    Parameters
    ----------
    bricks : ndarray of uint8, shape (row blocks, K atoms, bytes)
    bits : int
    dtype : DType
        float16, bfloat16 or float32, to which integers times factors are rounded.
    b : ndarray, shape (k, n), any strides
    out : ndarray, shape (m, n), any strides and result type
    epilogue : Fused
    """
    m, n = out.shape
    blocks, atoms, _ = bricks.shape
    wide = decoded(b, _arrays.logical_dtype(b, argument="b"), np.float32)
    columns = pack_columns(wide, atoms * layout.COLUMNS)
    shape = (0,) * bits, (0,) * _ROWS[n], (0,) * n
    whole, kind = np.require(bricks, requirements="C"), _KINDS[dtype.logical]
    work = work_of_few(m, n, atoms * layout.STORED)
    parts = slices(blocks, 1, work=work)

    def task(number: int):
        part = parts[number]
        sums = np.empty(((part.stop - part.start) * layout.ROWS, n), np.float32)
        _multiply(whole[part], columns, kind, sums, shape)
        rows = slice(part.start * layout.ROWS, min(part.stop * layout.ROWS, m))
        finish(sums[: rows.stop - rows.start], out, epilogue, rows, slice(0, n))

    parallel(task, len(parts), work)
