"""CPU products prepared for operands with the types and layouts of an earlier call.

What types and layouts decide is kept from the first call.  To check it again, and to find aligned
room for the columns of b, would take three times as long as the product of 384 x 384 and one
column.  The elements are read at every call, since those of A may have changed too.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sparse24._dtypes import DType
from sparse24._records import PLAIN, Fused, Multiply
from sparse24.kernels._numba import WAKING
from sparse24.kernels._simd import lanes_of_dots
from sparse24.kernels.cpu_batch import types_of
from sparse24.kernels.cpu_decode import decoded
from sparse24.kernels.cpu_epilogue import finish, store
from sparse24.kernels.cpu_few import (
    multiply_columns,
    multiply_few,
    runs_of_columns,
    work_of_few,
)
from sparse24.kernels.cpu_matmul import dense_matmul, few_columns, multiply, work_type
from sparse24.kernels.cpu_operand import Operand, columns_room
from sparse24.kernels.cpu_panels import Panels

# Bytes of room for columns that a product keeps, of each of the 256 calls that an array remembers.
# 16 columns of 384 float32 take 24 KB.
_MOST_KEPT = 1 << 15


class ColumnsRoom:
    """Room for the columns of b: whoever multiplies takes one, and gives it back."""

    def __init__(self, shape: tuple[int, int], high: int, dtype: np.dtype):
        self._shape, self._high, self._dtype = shape, high, dtype
        self._free: list[tuple[np.ndarray, np.ndarray]] = []

    def take(self) -> tuple[np.ndarray, np.ndarray]:
        """The columns as the kernel reads them, and the view of them to which b is written."""
        try:
            return self._free.pop()
        except IndexError:  # all are in use by other threads, or there is none yet
            columns = columns_room(*self._shape, self._high, self._dtype)
            return columns, columns[:, : self._shape[0]].T

    def give(self, room: tuple[np.ndarray, np.ndarray]) -> None:
        if room[0].nbytes <= _MOST_KEPT:
            self._free.append(room)


class _Few:
    """``out = epilogue(A @ b)`` with few columns, on the calling thread."""

    def __init__(self, a: Operand, b: np.ndarray, b_dtype: DType):
        self._a, self._b_dtype = a, b_dtype
        self._columns = ColumnsRoom(b.shape, a.high, a.work)
        # NumPy converts halves and 8-bit floats slowly; all else it converts as it copies.
        self._decodes = b.dtype != a.work and b.dtype.kind != "i"
        self._lanes = lanes_of_dots(a.work.itemsize)
        self._n = b.shape[1]
        self._runs = runs_of_columns(self._n)
        self._accumulator = np.dtype(a.dtype.accumulator)
        streams = self._streamed()
        self._pads = bool(streams[3].size)
        in_place = not streams[2].size and np.may_share_memory(streams[0], a.values)
        self._views = streams if in_place else None  # else decoded at each call

    def _streamed(self) -> tuple[np.ndarray, ...]:
        return self._a.streamed(slice(0, len(self._a.values)), self._lanes, self._n)

    def __call__(self, b: np.ndarray, out: np.ndarray, epilogue: Fused) -> None:
        room = self._columns.take()
        columns, target = room
        target[...] = decoded(b, self._b_dtype, self._a.work) if self._decodes else b
        streams = self._views or self._streamed()
        ends = self._a.ends(columns) if self._pads else columns
        plain = epilogue is PLAIN
        direct = plain and out.dtype == self._accumulator and out.flags.carray
        sums = out if direct else np.empty(out.shape, self._accumulator)
        for first, shape in self._runs:
            multiply_columns(*streams, columns, ends, first, self._lanes, sums, shape)
        self._columns.give(room)
        if not plain:
            finish(sums, out, epilogue, slice(None), slice(None))
        elif not direct:
            store(sums, out)


def sparse(values: Any, metadata: Any, b: np.ndarray, out: np.ndarray) -> Multiply | None:
    """What repeats the product of a 2:4 matrix, with any epilogue.

    Parameters
    ----------
    values, metadata : ndarray
        As for `cpu_matmul.matmul`, of one matrix.
    b, out : ndarray
        Of the call that was made; only how they lie counts.

    Returns
    -------
    callable or None
        ``product(b, out, epilogue)``; None where `cpu_matmul.matmul` has to look at the operands
        each time.
    """
    (m, n), stored = out.shape, values.shape[-1]
    if values.ndim > 2 or not (out.size and b.size):
        return None
    dtype, b_dtype = types_of(values, b)
    few = n <= few_columns(dtype, m)
    a = Operand(values, metadata, 2 * stored, dtype, work_type(dtype, few))
    if a.values is not values or a.metadata is not metadata:
        return None  # copies, which would not change with the matrix
    if few and work_of_few(m, n, stored) < WAKING:
        return _Few(a, b, b_dtype)
    if few:
        return lambda b, out, epilogue: multiply(a, b, b_dtype, out, epilogue, multiply_few)
    panels, decodes = Panels(a, n), b.dtype != a.work

    def product(b: np.ndarray, out: np.ndarray, epilogue: Fused) -> None:
        panels(decoded(b, b_dtype, a.work) if decodes else b, out, epilogue)

    return product


def dense(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> Multiply | None:
    """What repeats the product of a dense matrix; None unless BLAS takes all arrays as they are."""
    work = a.dtype
    if work not in (np.float32, np.float64) or not (b.dtype == out.dtype == work):
        return None

    def product(b: np.ndarray, out: np.ndarray, epilogue: Fused) -> None:
        if epilogue is PLAIN and out.flags.forc and out.flags.aligned:
            np.matmul(a, b, out=out)
        else:
            dense_matmul(a, b, out, epilogue)

    return product
