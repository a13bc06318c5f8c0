"""Products with few columns on the CPU that add up across the groups of an n:m matrix.

``A.T @ b`` adds up rows of A, each times elements of b.  Four rows at a time are spread over their
columns (``_simd_expand.py``) and added to sums that stay in the L1 cache: those of a *strip*, some
columns that begin with a group, so that it is known where the elements of a row begin in it.
"""

from __future__ import annotations

import math

import numpy as np

from sparse24 import _spec
from sparse24._dtypes import DType
from sparse24._records import PLAIN, Fused
from sparse24.kernels import _simd_expand
from sparse24.kernels._numba import njit, parallel, threads
from sparse24.kernels._simd_expand import add_expanded, is_half, lanes_of
from sparse24.kernels.cpu_batch import types_of
from sparse24.kernels.cpu_decode import decoded
from sparse24.kernels.cpu_epilogue import finish
from sparse24.kernels.cpu_n_m_few import end_of_safe, shapes_of, with_room
from sparse24.kernels.cpu_operand import STEP, Operand

PATTERN = (_spec.KEPT, _spec.GROUP)
_FEW_COLUMNS = 16  # of b, up to which this is used
# The same of one thread with AVX2, where each run of four spreads A anew for longer than BLAS takes
# for what is expanded once (measured; of two threads those of BLAS and these wait for each other).
_FEW_OF_AVX2 = {"int8": 12}
_FEW_OF_AVX2_OTHERS = 7
_FEW_IN_FOURS = 8  # of float64 with AVX2, which spreads four columns at a time, but for halves
_STRIP = 512  # columns, or some more


@njit
def _last_rows(values, lanes):
    """The first row behind which a vector may end beyond the array; it and what follows, moved."""
    safe = end_of_safe(values, lanes)
    return safe, with_room(values, safe, lanes)


@njit
def _add_rows(flat, first_row, stored, masks, begin, end, start, first, count, x, column, sums,
              shape, one):  # fmt: skip
    """Rows `begin` to `end` of a strip; `flat` holds those from `first_row` on."""
    rows = len(shape[0])
    whole = begin + (end - begin) // rows * rows
    for row in range(begin, whole, rows):
        at = (row - first_row) * stored + start
        add_expanded(flat, at, stored, masks, row, first, count, x, column, sums, shape)
    for row in range(whole, end):
        at = (row - first_row) * stored + start
        add_expanded(flat, at, stored, masks, row, first, count, x, column, sums, one)


@njit
def _add_both(flat, last, safe, stored, masks, top, bottom, start, first, count, x, column, sums,
              shape, one):  # fmt: skip
    """Rows `top` to `bottom`; those from `safe` on have room behind them in `last`."""
    middle = min(max(top, safe), bottom)
    _add_rows(flat, 0, stored, masks, top, middle, start, first, count, x, column, sums, shape,
              one)  # fmt: skip
    _add_rows(last, safe, stored, masks, middle, bottom, start, first, count, x, column, sums,
              shape, one)  # fmt: skip


# Loops, because Numba takes long to compile expressions of whole arrays.


@njit
def _clear(part):
    for i in range(part.shape[0]):
        for t in range(part.shape[1]):
            part[i, t] = 0


@njit
def _add_to(total, first, part):
    for i in range(min(part.shape[0], total.shape[0] - first)):
        for t in range(part.shape[1]):
            total[first + i, t] += part[i, t]


@njit
def _store(total, sums, left):
    for i in range(total.shape[0]):
        for t in range(min(total.shape[1], sums.shape[1] - left)):
            sums[i, left + t] = total[i, t]


@njit
def _is_finite(x):
    """Whether zeros times all elements are zeros."""
    finite = True
    for i in range(x.shape[0]):
        for t in range(x.shape[1]):
            finite &= x[i, t] - x[i, t] == 0
    return finite


@njit
def add_strip(values, safe, last, masks, strip, lanes, x, sums, shape, rest):
    """``sums[:, left :] = x @ A``, in a strip of `count` steps from `first` on.

    `strip` is (start, first, count, left): its elements begin with number `start` of each row.
    Rows are added up `STEP` at a time; those from `safe` on have room behind them in `last`.  The
    shapes are those of `_simd_expand.add_expanded` for whole runs of columns, and for what is left.
    """
    start, first, count, left = strip
    one, rest_one = ((0,), shape[1], shape[2]), ((0,), rest[1], rest[2])
    (m, stored), n, wide = values.shape, len(x), len(shape[1])
    flat = values.reshape(values.size)
    total = np.zeros((n, count * lanes), x.dtype)
    part = np.empty((wide, count * lanes), x.dtype)
    for top in range(0, m, STEP):
        bottom = min(top + STEP, m)
        for column in range(0, n, wide):
            _clear(part)
            if n - column >= wide:
                _add_both(flat, last, safe, stored, masks, top, bottom, start, first, count, x,
                          column, part, shape, one)  # fmt: skip
            else:
                _add_both(flat, last, safe, stored, masks, top, bottom, start, first, count, x,
                          column, part, rest, rest_one)  # fmt: skip
            _add_to(total, column, part)
    _store(total, sums, left)


def pays(columns: int, dtype: DType, pattern: tuple[int, int] = PATTERN) -> bool:
    """Whether products with that many columns of b are faster here than by BLAS."""
    most = _FEW_COLUMNS
    if _simd_expand.VECTOR_BYTES == 32 and threads() == 1:
        most = _FEW_OF_AVX2.get(dtype.name, _FEW_OF_AVX2_OTHERS)
    work = work_type(dtype)
    if is_half(*pattern, work.itemsize):
        return columns <= most
    if _simd_expand.VECTOR_BYTES == 32 and work.itemsize == 8:
        most = min(most, _FEW_IN_FOURS)
    return columns <= most and work.name in _simd_expand.SPREAD


def work_type(dtype: DType) -> np.dtype:
    """What b is multiplied in."""
    return np.dtype(dtype.accumulator)


class FewRows:
    """``out = epilogue(A.T @ b)`` for one n:m matrix A (k, m) and many `b` like that of a call.

    Parameters
    ----------
    values : ndarray, shape (k, n * groups)
    masks : ndarray
        As `cpu_n_m_few.masks_of` returns them.
    pattern : tuple of int
    m : int
        Columns of A.
    b : ndarray, shape (k, n)
        Only its type and shape count.
    """

    def __init__(
        self, values: np.ndarray, masks: np.ndarray, pattern: tuple[int, int], m: int,
        b: np.ndarray,
    ):  # fmt: skip
        dtype, self._b_dtype = types_of(values, b)
        self._work = work_type(dtype)
        self._a = Operand(values, masks, m, dtype, self._work)
        self._lanes = lanes_of(self._work.itemsize)
        unit = math.lcm(pattern[1], self._lanes)
        wide = -(-_STRIP // unit) * unit
        self._strips = [
            (left // pattern[1] * pattern[0], left // self._lanes,
             -(-min(wide, m - left) // self._lanes), left)
            for left in range(0, m, wide)
        ]  # fmt: skip
        n = b.shape[1]
        self._half = is_half(*pattern, self._work.itemsize)
        self._shapes = shapes_of(n, half=(0,) if self._half else ())
        self._of_finite = shapes_of(n, half=(0, 0)) if self._half else self._shapes
        self._size = len(values) * m * (n + 1) // 2
        self._decodes = b.dtype != self._work
        read = self._a.as_read(self._a.values)
        self._values = read if np.may_share_memory(read, values) else None  # else at each call

    def __call__(self, b: np.ndarray, out: np.ndarray, epilogue: Fused) -> None:
        b = decoded(b, self._b_dtype, self._work) if self._decodes else b
        x, target = np.ascontiguousarray(b.T), out.T
        direct = epilogue is PLAIN and out.dtype == self._work and target.flags.carray
        sums = target if direct else np.empty(target.shape, self._work)
        values = self._a.as_read(self._a.values) if self._values is None else self._values
        shapes = self._of_finite if self._half and _is_finite(x) else self._shapes
        safe, last = _last_rows(values, self._lanes)

        def task(number: int) -> None:
            strip = self._strips[number]
            add_strip(values, safe, last, self._a.metadata, strip, self._lanes, x, sums, *shapes)

        parallel(task, len(self._strips), self._size)
        if not direct:
            every = slice(0, out.shape[0]), slice(0, out.shape[1])
            finish(sums.T, out, epilogue, *every)
