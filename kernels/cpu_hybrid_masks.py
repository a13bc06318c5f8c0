"""Products of block-hybrid matrices by few columns on the CPU, where many elements are stored.

As for patterns such as 5:8 (``cpu_n_m_few.py``), each row has a *mask*, a bit for every column of
the matrix.  Its elements are spread over their columns, a vector at a time, and multiply `b` as it
lies.  That takes its time for columns, however many elements they have, and reads their places as
bits; the product row by row (``cpu_hybrid_rows.py``) takes it for elements, each with a place of
four bytes.
"""

from __future__ import annotations

import numpy as np

from sparse24 import _dtypes
from sparse24._dtypes import DType
from sparse24.kernels._numba import njit, parallel, slices
from sparse24.kernels._simd_expand import AVAILABLE, lanes_of
from sparse24.kernels.cpu_decode import decoded
from sparse24.kernels.cpu_epilogue import store
from sparse24.kernels.cpu_n_m_few import WORD, multiply_rows, shapes_of, work_of, work_type
from sparse24.kernels.cpu_operand import Operand
from sparse24.kernels.cpu_prepared import ColumnsRoom

_LEAST_ROWS = 16  # of a task
_BLOCK_BYTES = 1 << 18  # of stored elements, which stay in the L2 cache for all columns


def is_available(dtype: DType) -> bool:
    """Whether this machine has the vector code."""
    return work_type(dtype).name in AVAILABLE


def filled_up(dtype: DType, k: int) -> int:
    """The columns of whole vectors that cover k of them."""
    lanes = lanes_of(work_type(dtype).itemsize)
    return -(-k // lanes) * lanes


class Masked:
    """The non-zeros of a matrix row by row, and a bit for each of its columns."""

    def __init__(
        self, starts: np.ndarray, columns: np.ndarray, bits: np.ndarray, dtype: DType, k: int
    ):
        """A matrix of k columns, whose elements are given as by `cpu_hybrid_held.held`."""
        self.work, self.dtype = work_type(dtype), dtype
        self.masks = np.zeros((starts.size - 1, -(-k // WORD) * (WORD // 8)), np.uint8)
        _set_masks(starts, columns, self.masks)
        elements = Operand(bits.view(dtype.logical), self.masks, k, dtype, self.work)
        read = elements.as_read(elements.values)
        behind = np.zeros(lanes_of(self.work.itemsize), read.dtype)  # where the last vector ends
        self.starts, self.values = starts, np.concatenate([read, behind])

    @property
    def nbytes(self) -> int:
        return self.starts.nbytes + self.values.nbytes + self.masks.nbytes


@njit
def _set_masks(starts, columns, masks):
    for row in range(starts.size - 1):
        for e in range(starts[row], starts[row + 1]):
            masks[row, columns[e] >> 3] |= 1 << (columns[e] & 7)


@njit
def _multiply(values, starts, masks, begin, end, high, count, b, sums, shape, rest):
    """``sums[begin:end] = rows @ b.T``, `high` rows at a time; `b` holds columns."""
    n, wide = sums.shape[1], len(shape[1])
    whole = n // wide * wide
    for first in range(begin, end, high):
        last = min(first + high, end)
        for column in range(0, whole, wide):
            multiply_rows(values, starts, masks, 0, first, last, count, b, column, sums, shape)
        if whole < n:
            multiply_rows(values, starts, masks, 0, first, last, count, b, whole, sums, rest)


class FewColumns:
    """``out = held @ b`` for many `b` (k, n) and `out` of the matrix's own types, in any order."""

    def __init__(self, held: Masked, k: int, n: int):
        m, high = len(held.masks), filled_up(held.dtype, k)
        self._held, self._count = held, high // lanes_of(held.work.itemsize)
        self._columns = ColumnsRoom((k, n), high, held.work)
        self._shapes = shapes_of(n)
        self._high = max(_LEAST_ROWS, _BLOCK_BYTES * m // held.values.nbytes)
        self._work = work_of(m, k, n, held.dtype)
        self._blocks = slices(m, _LEAST_ROWS, work=self._work)

    def __call__(self, b: np.ndarray, out: np.ndarray) -> None:
        held, room = self._held, self._columns.take()
        columns, target = room
        is_narrow = b.dtype != held.work and b.dtype.kind != "i"
        target[...] = decoded(b, _dtypes.lookup(b.dtype), held.work) if is_narrow else b
        direct = out.dtype == held.dtype.accumulator and out.flags.carray
        sums = out if direct else np.empty(out.shape, held.dtype.accumulator)
        arrays = held.values, held.starts, held.masks

        def task(number: int) -> None:
            rows = self._blocks[number]
            _multiply(
                *arrays, rows.start, rows.stop, self._high, self._count, columns, sums,
                *self._shapes,
            )  # fmt: skip

        parallel(task, len(self._blocks), self._work)
        self._columns.give(room)
        if not direct:
            store(sums, out)
