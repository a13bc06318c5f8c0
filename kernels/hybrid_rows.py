"""Build the layout of ``cuda/hybrid_rows.cu`` and launch it: one to four columns, any dtype.

The layout is a sliced ELL: rows sorted by length, in slices of 32 lines, each slice as long
as its longest line, columns as 8-bit distances.  A long row is cut into several lines.  It is
built with array functions that NumPy and CuPy share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from sparse24 import _arrays
from sparse24._dtypes import TABLE, DType
from sparse24.kernels import loader
from sparse24.kernels.chip import H200, chip
from sparse24.kernels.hybrid_launch import BoundProduct, settle
from sparse24.kernels.hybrid_rows_plan import MOST_COLUMNS, SLICE, STEP, Plan, plan
from sparse24.kernels.launch import Launch, pointer

NAME = "hybrid_rows"
FAR = 255  # longest distance; a longer one passes over fillers
MOST_SHARED = 224 * 1024  # bytes of a block


class Arrays(NamedTuple):
    """A matrix as non-zeros of lines; the arrays are those of the kernel's header."""

    deltas: Any
    values: Any
    parts: Any
    begins: Any
    starts: Any
    heights: Any
    rows: Any


class RowsLayout:
    """A matrix and the way in which it is cut up."""

    def __init__(self, shape, dtype: DType, plan: Plan, arrays: Arrays):
        self.shape, self.dtype, self.plan, self.arrays = shape, dtype, plan, arrays
        self._launches: dict[int, Ready] = {}

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for x in self.arrays)

    def copy(self) -> RowsLayout:
        """The same layout elsewhere in memory."""
        arrays = Arrays(*(x.copy() for x in self.arrays))
        settle()
        return RowsLayout(self.shape, self.dtype, self.plan, arrays)

    def launch(self, n: int) -> Ready:
        """The compiled product with `n` columns, made at the first use and kept."""
        found = self._launches.get(_columns(n))
        if found is None:
            found = self._launches[_columns(n)] = Ready(self, n)
        return found


class Ready(BoundProduct):
    """One way of running a product: kernel, grid, and the matrix's part of the arguments."""

    def __init__(self, layout: RowsLayout, n: int):
        super().__init__()
        cut, dtype, k = layout.plan, layout.dtype, layout.shape[1]
        shared = shared_memory(k, dtype, n, cut.warps)
        macros = _defines(dtype, dtype.result, _columns(n), cut.warps)
        kernel = loader.function(NAME, "product", macros, shared_memory=shared)
        self._early = chip().launches_early
        self._sizes = (kernel, len(cut.units) // cut.per_block, 32 * cut.warps, shared)
        self._left = (*map(pointer, layout.arrays), np.array([cut.per_block], np.int32))

    def bind(self, b, out, stream: int) -> Launch:
        (k, n), wide = b.shape, [s // b.itemsize for s in b.strides]
        result = [s // out.itemsize for s in out.strides]
        right = (pointer(b), _count(k), np.array([n], np.int32), *map(_count, wide))
        return Launch(
            *self._sizes,
            (*self._left, *right, pointer(out), *map(_count, result)),
            early=self._early,
        )


def _count(x: int) -> np.ndarray:
    return np.array([x], np.int64)


def prepare(
    dense: Any, dtype: DType, xp=np, *, cut: Callable[[np.ndarray, int, int], Plan] = plan
) -> RowsLayout:
    """Lay out a dense (m, k) matrix; `xp` is its array library.  Waits for the sizes."""
    held = _entries(dense, xp)
    lengths = -np.sort(-_arrays.to_numpy(held.lengths))
    made = cut(lengths, dense.shape[1], (H200 if xp is np else chip()).multiprocessors)
    order = xp.argsort(-held.lengths, kind="stable") if xp is np else xp.argsort(-held.lengths)
    arrays = _lay_out(held, made, order, xp)
    if xp is not np:
        settle()
    return RowsLayout(dense.shape, dtype, made, arrays)


class _Entries(NamedTuple):
    """Non-zeros of a matrix row by row, and how many entries every row has."""

    row: Any
    value: Any
    delta: Any  # from the entry before
    fillers: Any  # before the entry
    place: Any  # among the entries of its row
    lengths: Any


def _entries(dense, xp) -> _Entries:
    row, column = xp.nonzero(dense)
    new_row = xp.ones(row.shape, bool)
    new_row[1:] = row[1:] != row[:-1]
    before = xp.where(new_row, 0, xp.concatenate([xp.zeros(1, column.dtype), column])[:-1])
    gap = column - before
    fillers = xp.maximum(gap - 1, 0) // FAR
    end = xp.cumsum(fillers + 1)  # entries up to and with this one, over all rows
    bounds = xp.searchsorted(row, xp.arange(dense.shape[0] + 1))
    total = xp.concatenate([xp.zeros(1, end.dtype), end])[bounds]
    place = end - 1 - total[row]
    return _Entries(row, dense[row, column], gap - fillers * FAR, fillers, place, xp.diff(total))


def _lay_out(held: _Entries, made: Plan, order, xp) -> Arrays:
    """The arrays, for rows sorted by length as `order` says."""
    heights, ends = xp.asarray(made.units.heights), xp.asarray(made.ends)
    slice_of_rank, line_of_rank = (xp.asarray(x) for x in made.units.places())
    rank = xp.empty(order.size, np.int64)
    rank[order] = xp.arange(order.size)
    slice_of = slice_of_rank[rank]
    lane_of = line_of_rank[rank] * (SLICE // heights)[slice_of]  # the first of the row's

    def flat(row, place):
        """Index of entry number `place` of a row."""
        at = slice_of[row]
        line = STEP * (ends[at + 1] - ends[at])
        step, lane = ends[at] + place % line // STEP, lane_of[row] + place // line
        return (step * SLICE + lane) * STEP + place % STEP

    size = int(made.ends[-1]) * SLICE * STEP
    deltas, values = xp.zeros(size, np.uint8), xp.zeros(size, held.value.dtype)
    at = flat(held.row, held.place)
    deltas[at] = held.delta.astype(np.uint8)
    values[at] = held.value
    deltas[flat(*_fillers(held, xp))] = FAR
    rows = xp.full(len(made.units) * SLICE, -1, np.int32)
    rows[slice_of * SLICE + lane_of] = xp.arange(order.size)
    starts, of, parts = (xp.asarray(x) for x in made.parts())
    begins = _begins(xp, deltas, ends, SLICE // heights, of, parts)
    parts, begins, starts, heights = (x.astype(np.int32) for x in (parts, begins, starts, heights))
    return Arrays(deltas, values, parts, begins, starts, heights, rows)


def _fillers(held: _Entries, xp) -> tuple[Any, Any]:
    """Row and place of every filler."""
    far = xp.nonzero(held.fillers)[0]
    passed = xp.cumsum(held.fillers[far])
    number = xp.arange(int(passed[-1]) if far.size else 0)
    of = xp.searchsorted(passed, number, side="right")
    back = number - (passed - held.fillers[far])[of] + 1
    return held.row[far][of], held.place[far][of] - back


def _begins(xp, deltas, ends, lanes, of, parts):
    """Column at which every lane begins each warp's part; `lanes` share a row of a slice."""
    moved = deltas.reshape(-1, SLICE, STEP).sum(2, dtype=np.int64)
    reached = xp.concatenate([xp.zeros((1, SLICE), np.int64), xp.cumsum(moved, axis=0)])
    whole = reached[ends[1:]] - reached[ends[:-1]]
    before = xp.cumsum(whole, axis=1) - whole
    lane = xp.arange(SLICE)
    of_row = xp.take_along_axis(before, lane - lane % lanes[:, None], 1)
    return (before - of_row - reached[ends[:-1]])[of] + reached[parts[:-1]]


def _columns(n: int) -> int:
    return 1 if n == 1 else 2 if n == 2 else 4


def shared_memory(k: int, dtype: DType, n: int, warps: int) -> int:
    """Bytes of a block: the columns of b, or the sums of its warps, which take their place."""
    lines = k * _columns(n) * dtype.accumulator.itemsize
    return max(lines, warps * SLICE * _columns(n) * dtype.accumulator.itemsize)


def refuses(k: int, dtype: DType, n: int) -> str | None:
    """None if the kernel can run, else why not."""
    if n > MOST_COLUMNS:
        return f"the rows kernel takes up to {MOST_COLUMNS} columns, not {n}"
    if shared_memory(k, dtype, n, 32) > MOST_SHARED:
        return f"{k} rows of b by {n} columns do not fit into shared memory"
    return None


def _defines(dtype: DType, output: str, columns: int, warps: int) -> loader.Defines:
    names = (("ELEMENT", dtype.name), ("OUTPUT", output))
    return (*names, ("COLUMNS", columns), ("WARPS", warps))


def bound(layout: RowsLayout, b, out) -> tuple[Ready, Any]:
    """The compiled product for such operands, and `b` as it reads it: as it is."""
    return layout.launch(b.shape[1]), b


def product(layout: RowsLayout, b, out) -> None:
    """out = A @ b, for CuPy matrices (k, n) and (m, n) of any strides, n up to 4."""
    layout.launch(b.shape[1])(b, out)


COMPILE_CHECKS = [
    (_defines(TABLE["bfloat16"], "bfloat16", 1, 32), "sm_90a", "FFMA"),
    (_defines(TABLE["float16"], "float16", 4, 8), "sm_80", "FFMA"),
    (_defines(TABLE["float32"], "float32", 4, 32), "sm_120", "FFMA"),
    (_defines(TABLE["float64"], "float64", 4, 32), "sm_90a", "DFMA"),
    (_defines(TABLE["int8"], "int32", 1, 16), "sm_90a", "IMAD"),
]
