"""The CPU product with many columns: `b` in panels, A in tiles, both in the order of reading.

A *panel* is a copy of a few machine vectors of columns of `b`, k high, so that the rows of it
that A needs lie together in cache.  A *tile* is the few rows of A whose sums are kept in
registers.  Its stored elements are copied too, `STEP` of a row and then `STEP` of the next, so
that the inner loop, `_simd.tile`, reads A as one stream.

All tiles of a block of rows take one step before any takes the next: they read the same rows of
a panel, which stay in the L1 cache, while those of the next step are fetched into L2.  Between
steps the sums wait in `held`; the last one stores them where they belong.
"""

from __future__ import annotations

import numpy as np

from sparse24._records import Fused
from sparse24.kernels import _simd
from sparse24.kernels._numba import njit, parallel, slices, threads
from sparse24.kernels._simd import prefetch, tile
from sparse24.kernels.cpu_epilogue import finish
from sparse24.kernels.cpu_operand import (
    LINE_BYTES,
    Operand,
    first_row,
    give_back,
    pack_panels,
    step_of,
    widths,
)

_TILES_ROWS = 24  # a multiple of the rows of every tile
# Rows that share what is read of b (measured: 96 take up to a tenth longer where b exceeds the L2
# cache, 384 no less time).
_BLOCK_ROWS = 192
_PARTS_OF_COLUMNS = 512  # columns of a task where blocks of rows are too few for the threads
_TASKS = 4  # of a thread, where whole panels are enough
# `WAKING` stands for a time, in which AVX-512 multiplies twice as much as AVX2: what counts as one
# multiplication is a vector of so many bytes.
_COUNTED_BYTES = 16
# Fewer tiles read each row of a panel so few times that fetching it ahead costs more than it saves
# (measured with 8 and 24 rows of 4096: up to a tenth).
_TILES_TO_FETCH_BESIDE = 16


@njit
def multiply_panels(a, m, stored, pattern, panels, sums, row, column, shape):
    """``sums[row : row + m, column:] = A @ b`` of a block of rows and the columns in `panels`.

    `a` is what `Operand.packed` returns; `shape` is that of `tile` and then as many zeros as a
    step has stored elements, so that LLVM knows the distance of rows.
    """
    values, in_tiles, places = a
    rows, width, step = len(shape[0]), len(shape[1]), len(shape[2])
    n, group = pattern
    steps, tiles = -(-stored // step), -(-m // rows)
    flat = panels.reshape(panels.size)
    held = np.empty((tiles * rows, width), sums.dtype)
    line = LINE_BYTES // panels.itemsize
    ahead = -(-(step // n * group * width) // (line * tiles))  # lines to fetch beside a tile
    if tiles < _TILES_TO_FETCH_BESIDE:
        ahead = 0
    for j in range(panels.shape[0]):
        left = column + j * width
        whole = left + width <= sums.shape[1]
        for s in range(steps):
            start = j * panels.shape[1] * width + s * step // n * group * width
            following = start + step // n * group * width
            last = s == steps - 1 and whole
            target, bottom = (sums, row + m - 1) if last else (held, tiles * rows - 1)
            for t in range(tiles):
                for number in range(t * ahead, (t + 1) * ahead):
                    prefetch(flat, following + number * line)
                top = first_row(t, rows, m)
                place = (t * steps + s) * rows * step
                tile(
                    values, place if in_tiles else top * stored + s * step,
                    step if in_tiles else stored, places, place, step,
                    min(step, stored - s * step), flat, start, held, t * rows, s > 0,
                    target, row + top if last else t * rows, bottom, left if last else 0, shape,
                )  # fmt: skip
        if not whole:
            _store_part(held, rows, m, sums[row : row + m, left:])


@njit
def _store_part(held, rows, m, target):
    """The first columns of what is held for each tile."""
    for t in range(-(-m // rows)):
        top = first_row(t, rows, m)
        for i in range(min(rows, m)):
            for column in range(target.shape[1]):
                target[top + i, column] = held[t * rows + i, column]


class Panels:
    """``out = epilogue(A @ b)`` for one A and many `b` and `out` like those of a call.

    How b is cut into panels and the work into tasks depends on shapes alone, and is decided once:
    for 64 x 64 by 32 columns that takes as long as all else.
    """

    def __init__(self, a: Operand, n: int):
        self._a, m, stored = a, len(a.values), a.values.shape[1]
        self._runs, self._parts = [], []
        for first, columns, vectors in widths(n, a.work.itemsize):
            width = vectors * _simd.VECTOR_BYTES // a.work.itemsize
            shape = ((0,) * _simd.ROWS_OF_TILE[vectors], (0,) * width, (0,) * step_of(vectors))
            count = -(-columns // width)
            whole = threads() == 1 or m >= _TASKS * threads() * _BLOCK_ROWS
            some = count if whole else -(-_PARTS_OF_COLUMNS // width)
            for j in range(0, count, some):
                left, right = first + j * width, min(first + columns, first + (j + some) * width)
                run = len(self._runs), slice(j, j + some), shape
                self._parts.append((slice(left, right), *run))
            self._runs.append((slice(first, first + columns), width))
        self._work = m * n * stored * _COUNTED_BYTES / _simd.VECTOR_BYTES
        even = m * len(self._parts) // threads()
        at_least = max(_TILES_ROWS, min(_BLOCK_ROWS, even))
        self._blocks = slices(m, at_least, _BLOCK_ROWS, _TILES_ROWS, self._work)

    def __call__(self, b: np.ndarray, out: np.ndarray, epilogue: Fused) -> None:
        a = self._a
        packed = [pack_panels(b[:, columns], a.high, width) for columns, width in self._runs]
        plain = epilogue.is_plain and out.dtype == a.dtype.accumulator and out.flags.carray

        def task(number: int) -> None:
            rows = self._blocks[number // len(self._parts)]
            columns, run, some, shape = self._parts[number % len(self._parts)]
            panels = packed[run][some]
            high, wide = rows.stop - rows.start, columns.stop - columns.start
            sums, row, column = out, rows.start, columns.start
            if not plain:
                sums, row, column = np.empty((high, wide), a.dtype.accumulator), 0, 0
            multiply_panels(
                a.packed(rows, len(shape[0]), len(shape[2]), len(panels) == 1), high,
                a.values.shape[1], a.pattern, panels, sums, row, column, shape,
            )  # fmt: skip
            if not plain:
                finish(sums, out, epilogue, rows, columns)

        parallel(task, len(self._blocks) * len(self._parts), self._work)
        for panels in reversed(packed):  # the largest is taken first
            give_back(panels)


def multiply_many(a: Operand, b, out, epilogue: Fused) -> None:
    """``out = epilogue(a @ b)``."""
    Panels(a, out.shape[1])(b, out, epilogue)
