"""Products of n:m matrices with few columns on the CPU, and of what is expanded for BLAS.

The places of the stored elements become a *mask*, a bit for every column of A, once for all
products.  With it the stored elements, a vector at a time, are spread over their columns and
multiply b as it lies (``_simd_expand.py``): the fuller the pattern, the less is wasted.
"""

from __future__ import annotations

import numpy as np

from sparse24._dtypes import DType
from sparse24._records import PLAIN, Fused
from sparse24.kernels import _simd_expand
from sparse24.kernels._numba import njit, parallel, slices
from sparse24.kernels._simd_expand import expand_row, expanded_dots, lanes_of
from sparse24.kernels.cpu_batch import types_of
from sparse24.kernels.cpu_decode import decoded
from sparse24.kernels.cpu_epilogue import finish
from sparse24.kernels.cpu_operand import Operand
from sparse24.kernels.cpu_prepared import ColumnsRoom

_ROWS = 4  # that share what is read of b
_COLUMNS = 4  # that share what is spread of A
_LEAST_ROWS = 16  # of a task
_BLOCK_BYTES = 1 << 18  # of A, which stay in the L2 cache for all columns
WORD = 64  # columns to which masks are filled up, with zeros
# Runs of columns up to which this is faster than the kernel for many columns where every column of
# A is stored (measured with 3:32 to 7:8): this takes its time for columns, the other for elements.
# By the type of the sums.
_RUNS_OF_FULL = {64: {"int32": 19.0, "float64": 3.0}, 32: {"float64": 2.0}}.get(
    _simd_expand.VECTOR_BYTES, {}
)
_RUNS_OF_OTHERS = 7.0 if _simd_expand.VECTOR_BYTES == 64 else 3.0


def work_type(dtype: DType) -> np.dtype:
    """What b is multiplied in."""
    return np.dtype(_simd_expand.INTEGERS if dtype.name == "int8" else dtype.accumulator)


def work_of(m: int, k: int, n: int, dtype: DType) -> float:
    """Work of a product, to compare with `WAKING`; one column is half as much as three."""
    return m * k * (n + 1) / (4 if dtype.name == "int8" else 2)


def pays(n: int, m: int, columns: int, dtype: DType) -> bool:
    """Whether products of an n:m matrix with that many columns are faster here."""
    if work_type(dtype).name not in _simd_expand.AVAILABLE:
        return False
    runs = 0.5 if columns == 1 else -(-columns // _COLUMNS)
    return runs * m <= n * _RUNS_OF_FULL.get(dtype.accumulator.name, _RUNS_OF_OTHERS)


@njit
def _set_bits(places, n, m, masks):
    for row in range(places.shape[0]):
        for t in range(places.shape[1]):
            column = t // n * m + places[row, t]
            masks[row, column >> 3] |= 1 << (column & 7)


def masks_of(places: np.ndarray, n: int, m: int, k: int) -> np.ndarray:
    """The columns of the stored elements of an n:m matrix, as bits.

    Parameters
    ----------
    places : ndarray of uint8, shape (rows, n * groups)
        As `cpu_n_m.compress_n_m` returns them.
    n, m, k : int
        The pattern, and the columns of the matrix.

    Returns
    -------
    ndarray of uint8, shape (rows, bytes)
        The lowest bit of a byte is the first of eight columns.
    """
    places = np.require(places, requirements="CA")
    whole = -(-k // m) * m
    masks = np.zeros((len(places), -(-whole // WORD) * (WORD // 8)), np.uint8)
    parts = slices(len(places), _LEAST_ROWS, work=places.size)
    parallel(lambda i: _set_bits(places[parts[i]], n, m, masks[parts[i]]), len(parts), places.size)
    return masks


@njit
def end_of_safe(values, lanes):
    """The rows from which no vector behind their elements ends beyond the array."""
    m, stored = values.shape
    return max(0, m - -(-lanes // max(1, stored)))


@njit
def with_room(values, first, lanes):
    """The last rows with room behind them, flat."""
    stored = values.shape[1]
    room = np.zeros((len(values) - first) * stored + lanes, values.dtype)
    for row in range(first, len(values)):
        for t in range(stored):
            room[(row - first) * stored + t] = values[row, t]
    return room


@njit
def multiply_rows(flat, stored, masks, first, begin, end, count, b, column, sums, shape):
    """``sums[begin:end, column:]``; `flat` holds the rows from `first` on.

    `stored` and the others are those of `_simd_expand.expanded_dots`.
    """
    rows, columns = len(shape[0]), len(shape[1])
    held = np.empty((rows, columns), sums.dtype)
    for row in range(begin, end, rows):
        expanded_dots(
            flat, stored, masks, first, row - first, end - 1 - first, count, b, column, held, shape
        )
        for i in range(min(rows, end - row)):
            for j in range(columns):
                sums[row + i, column + j] = held[i, j]


@njit
def _multiply_both(flat, last, safe, stored, masks, top, bottom, count, b, column, sums, shape):
    """Rows `top` to `bottom`; those from `safe` on have room behind them in `last`."""
    middle = min(max(top, safe), bottom)
    multiply_rows(flat, stored, masks, 0, top, middle, count, b, column, sums, shape)
    multiply_rows(last, stored, masks, safe, middle, bottom, count, b, column, sums, shape)


@njit
def multiply_expanded(values, masks, begin, end, count, lanes, high, b, sums, shape, rest):
    """``sums[begin:end] = A[begin:end] @ b.T``, `high` rows at a time; `b` holds columns.

    `count` steps of `lanes` columns cover a row.  `shape` and `rest` are those of
    `_simd_expand.expanded_dots` for whole runs of columns and for what is left.
    """
    stored, n, wide = values.shape[1], sums.shape[1], len(shape[1])
    safe = min(max(begin, end_of_safe(values, lanes)), end)
    flat = values.reshape(values.size)
    last = with_room(values, safe if safe < end else len(values), lanes)
    for top in range(begin, end, high):
        bottom = min(top + high, end)
        for column in range(0, n // wide * wide, wide):
            _multiply_both(flat, last, safe, stored, masks, top, bottom, count, b, column, sums,
                           shape)  # fmt: skip
        if n % wide:
            column = n // wide * wide
            _multiply_both(flat, last, safe, stored, masks, top, bottom, count, b, column, sums,
                           rest)  # fmt: skip


@njit
def expand_rows(values, masks, begin, end, count, lanes, out, half):
    """``out = A[begin:end]`` dense, with zeros behind the columns up to whole vectors."""
    stored, to = values.shape[1], out.reshape(out.size)
    safe = min(max(begin, end_of_safe(values, lanes)), end)
    flat = values.reshape(values.size)
    for row in range(begin, safe):
        expand_row(flat, row * stored, masks, row, count, to, (row - begin) * out.shape[1], half)
    if safe < end:
        flat = with_room(values, safe, lanes)
        for row in range(safe, end):
            start, line = (row - safe) * stored, (row - begin) * out.shape[1]
            expand_row(flat, start, masks, row, count, to, line, half)


def shapes_of(n: int, half: tuple[int, ...] = ()) -> tuple[tuple, tuple]:
    """`shape` of the loops for a whole run of n columns, and for the last."""
    wide = min(n, _COLUMNS) or 1
    return tuple(((0,) * _ROWS, (0,) * some, half) for some in (wide, n % wide or wide))


class FewColumns:
    """``out = epilogue(A @ b)`` for one n:m matrix A and many `b` like that of the first call.

    Parameters
    ----------
    values : ndarray, shape (m, n * groups)
    masks : ndarray
        As `masks_of` returns them.
    high : int
        Columns of A in whole groups.
    b : ndarray, shape (k, n)
        Only its type and shape count.
    """

    def __init__(self, values: np.ndarray, masks: np.ndarray, high: int, b: np.ndarray):
        dtype, self._b_dtype = types_of(values, b)
        work = work_type(dtype)
        self._a = Operand(values, masks, high, dtype, work)
        self._lanes = lanes_of(work.itemsize)
        self._count = -(-high // self._lanes)
        self._columns = ColumnsRoom(b.shape, high, work)
        self._decodes = b.dtype != work and b.dtype.kind != "i"
        self._shapes = shapes_of(b.shape[1])
        self._high = max(_LEAST_ROWS, _BLOCK_BYTES // max(1, values[:1].nbytes))
        self._accumulator = np.dtype(dtype.accumulator)
        self._work = work_of(len(values), high, b.shape[1], dtype)
        self._blocks = slices(len(values), _LEAST_ROWS, work=self._work)
        read = self._a.as_read(self._a.values)
        self._values = read if np.may_share_memory(read, values) else None  # else at each call

    def __call__(self, b: np.ndarray, out: np.ndarray, epilogue: Fused) -> None:
        room = self._columns.take()
        columns, target = room
        target[...] = decoded(b, self._b_dtype, self._a.work) if self._decodes else b
        direct = epilogue is PLAIN and out.dtype == self._accumulator and out.flags.carray
        sums = out if direct else np.empty(out.shape, self._accumulator)

        def task(number: int) -> None:
            rows = self._blocks[number]
            self._multiply(rows, columns, sums)
            if not direct:
                finish(sums[rows], out, epilogue, rows, slice(0, out.shape[1]))

        parallel(task, len(self._blocks), self._work)
        self._columns.give(room)

    def _multiply(self, rows: slice, columns: np.ndarray, sums: np.ndarray) -> None:
        """The sums of some rows."""
        values, masks, first = self._values, self._a.metadata, rows.start
        if values is None:
            values, masks = self._a.as_read(self._a.values[rows]), masks[rows]
            sums, first = sums[rows], 0
        multiply_expanded(
            values, masks, first, first + rows.stop - rows.start, self._count, self._lanes,
            self._high, columns, sums, *self._shapes,
        )  # fmt: skip
