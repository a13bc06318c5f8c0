"""The CPU product of a 2:4 matrix with few columns: `b` in columns, A read where it lies.

A *run* is the few columns whose sums `_simd.dots` keeps in registers, of one row of A or a few.
Each run reads A anew, so a block of rows that stays in the L2 cache meets all of them before the
next block does.
"""

from __future__ import annotations

import numpy as np

from sparse24._records import Fused
from sparse24.kernels._numba import njit, parallel, slices
from sparse24.kernels._simd import ROWS_OF_DOTS, dots, lanes_of_dots
from sparse24.kernels.cpu_epilogue import finish
from sparse24.kernels.cpu_operand import Operand, pack_columns

_RUN = 4  # columns that share what is read of A
_L2_BYTES = 1 << 18  # of stored elements, which stay in the L2 cache for all runs
_BLOCK_STORED = 1 << 21  # stored elements of a task of `dots`


@njit
def multiply_columns(values, metadata, rest, places, b, ends, column, lanes, sums, shape):
    """``sums = A @ b[column : column + columns].T``; `b` holds columns, `shape` as for `dots`.

    The first four are what `Operand.streamed` returns; `ends` are the ends of the columns, which
    the elements that fill no vector multiply.
    """
    rows, columns = len(shape[0]), len(shape[1])
    m, stored = values.shape
    whole = stored // lanes
    first = whole * lanes
    alone = first if len(places) else stored  # up to here one by one
    held = np.empty((rows, columns), b.dtype)
    for row in range(0, m, rows):
        dots(values, metadata, row, m - 1, whole, b, column, held, shape)
        for i in range(min(rows, m - row)):
            for j in range(columns):
                total = held[i, j]
                for t in range(first, alone):
                    place = metadata[row + i, t >> 2] >> (2 * (t & 3)) & 3
                    total += rest[row + i, t - first] * b[column + j, 4 * (t >> 1) + place]
                sums[row + i, column + j] = total
    for row in range(0, len(places), rows):
        dots(rest, places, row, m - 1, 1, ends, column, held, shape)
        for i in range(min(rows, m - row)):
            for j in range(columns):
                sums[row + i, column + j] += held[i, j]


@njit
def _multiply_runs(values, metadata, rest, places, b, ends, lanes, sums, high, shape, last):
    """`multiply_columns` for all columns, `high` rows at a time; `last` is the last run's shape."""
    n, wide = sums.shape[1], len(shape[1])
    whole = (n - 1) // wide * wide
    for first in range(0, len(values), high):
        rows = slice(first, first + high)
        a = values[rows], metadata[rows], rest[rows], places[rows]
        for column in range(0, whole, wide):
            multiply_columns(*a, b, ends, column, lanes, sums[rows], shape)
        multiply_columns(*a, b, ends, whole, lanes, sums[rows], last)


def _sums(out, epilogue: Fused, rows: slice, columns: slice, dtype) -> np.ndarray:
    """Memory for the sums of a block: `out` itself if it has their type and no epilogue follows."""
    target = out[rows, columns]
    if epilogue.is_plain and out.dtype == dtype and target.flags.carray:
        return target
    return np.empty(target.shape, dtype)


def runs_of_columns(n: int) -> list[tuple[int, tuple]]:
    """Cut n columns into runs: the first one, and rows and columns as `dots` takes them."""
    runs = []
    for first in range(0, n, _RUN):
        some = min(_RUN, n - first)
        runs.append((first, ((0,) * ROWS_OF_DOTS[some], (0,) * some)))
    return runs


def work_of_few(m: int, n: int, stored: int) -> float:
    """What `multiply_few` has to do: its multiplications take half as long as those of others."""
    return m * n * stored / 2


def multiply_few(a: Operand, b, out, epilogue: Fused) -> None:
    m, n = out.shape
    columns = pack_columns(b, a.high)
    stored = a.values.shape[1]
    ends = a.ends(columns)
    work = work_of_few(m, n, stored)
    blocks = slices(m, 16, max(16, _BLOCK_STORED // max(1, stored)), work=work)
    lanes, runs = lanes_of_dots(b.dtype.itemsize), runs_of_columns(n)
    high = max(16, _L2_BYTES // max(1, stored * a.dtype.itemsize))

    def task(number: int):
        rows = blocks[number]
        sums = _sums(out, epilogue, rows, slice(0, n), a.dtype.accumulator)
        streams = a.streamed(rows, lanes, n)
        if n <= _RUN:
            multiply_columns(*streams, columns, ends, 0, lanes, sums, runs[0][1])
        else:
            shapes = runs[0][1], runs[-1][1]
            _multiply_runs(*streams, columns, ends, lanes, sums, high, *shapes)
        finish(sums, out, epilogue, rows, slice(0, n))

    parallel(task, len(blocks), work)
