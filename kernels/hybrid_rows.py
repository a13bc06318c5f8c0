"""Build the layout of ``cuda/hybrid_rows.cu`` and launch it: one to four columns, any dtype.

The layout is a sliced ELL: rows sorted by length, 32 to a slice, each slice as long
as its longest row, columns as 8-bit distances.  It is built with array functions that
NumPy and CuPy share.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sparse24._dtypes import TABLE, DType
from sparse24.kernels import loader

NAME = "hybrid_rows"
SLICE = 32
STEP = 4  # entries of a row that are read together
FAR = 255  # longest distance; a longer one passes over fillers
MOST_COLUMNS = 4
FULL_ROWS = 264 * SLICE  # two blocks for each unit of a large GPU
MOST_SHARED = 224 * 1024


class RowsLayout:
    """A matrix as non-zeros of rows; the arrays are those of the kernel's header."""

    def __init__(self, shape, dtype: DType, warps: int, deltas, values, slices, rows, begins):
        self.shape, self.dtype, self.warps = shape, dtype, warps
        self.deltas, self.values, self.slices = deltas, values, slices
        self.rows, self.begins = rows, begins

    @property
    def nbytes(self) -> int:
        arrays = (self.deltas, self.values, self.slices, self.rows, self.begins)
        return sum(x.nbytes for x in arrays)

    def copy(self) -> RowsLayout:
        """The same layout elsewhere in memory."""
        arrays = (self.deltas, self.values, self.slices, self.rows, self.begins)
        return RowsLayout(self.shape, self.dtype, self.warps, *(x.copy() for x in arrays))


def prepare(dense: Any, dtype: DType, xp=np, *, warps: int | None = None) -> RowsLayout:
    """Lay out a dense (m, k) matrix; `xp` is its array library.  Waits for the sizes."""
    m, k = dense.shape
    if warps is None:
        warps = 16 if m >= FULL_ROWS else 32
    row, column = xp.nonzero(dense)
    value = dense[row, column]
    new_row = xp.ones(row.shape, bool)
    new_row[1:] = row[1:] != row[:-1]
    before = xp.where(new_row, 0, xp.concatenate([xp.zeros(1, column.dtype), column])[:-1])
    gap = column - before
    fillers = xp.maximum(gap - 1, 0) // FAR
    end = xp.cumsum(fillers + 1)  # entries up to and with this one, over all rows
    bounds = xp.searchsorted(row, xp.arange(m + 1))
    total = xp.concatenate([xp.zeros(1, end.dtype), end])[bounds]
    length = xp.diff(total)
    order = xp.argsort(-length, kind="stable") if xp is np else xp.argsort(-length)
    count = -(-m // SLICE)
    rows = xp.full(count * SLICE, -1, np.int32)
    rows[:m] = order
    rank = xp.empty(m, np.int64)
    rank[order] = xp.arange(m)
    longest = xp.zeros(count * SLICE, np.int64)
    longest[:m] = length[order]
    steps = -(-longest.reshape(count, SLICE).max(1) // STEP)
    slices = xp.concatenate([xp.zeros(1, np.int64), xp.cumsum(steps)])
    size = int(slices[-1]) * SLICE * STEP

    def place(which, position):
        """Flat index of entry number `position` of the rows `which`."""
        lane, step = rank[which], slices[rank[which] // SLICE] + position // STEP
        return (step * SLICE + lane % SLICE) * STEP + position % STEP

    deltas, values = xp.zeros(size, np.uint8), xp.zeros(size, dense.dtype)
    at = place(row, end - 1 - total[row])
    deltas[at] = (gap - fillers * FAR).astype(np.uint8)
    values[at] = value
    far = xp.nonzero(fillers)[0]
    passed = xp.cumsum(fillers[far])
    number = xp.arange(int(passed[-1]) if far.size else 0)
    of = xp.searchsorted(passed, number, side="right")
    back = number - (passed - fillers[far])[of] + 1
    deltas[place(row[far][of], (end - 1 - total[row])[far][of] - back)] = FAR
    begins = _begins(xp, deltas, slices, count, warps)
    return RowsLayout((m, k), dtype, warps, deltas, values, slices, rows, begins)


def _begins(xp, deltas, slices, count: int, warps: int):
    """Column that every lane has reached before each warp's part of a slice."""
    moved = deltas.reshape(-1, SLICE, STEP).sum(2, dtype=np.int64)
    reached = xp.concatenate([xp.zeros((1, SLICE), np.int64), xp.cumsum(moved, axis=0)])
    first = slices[:-1, None]
    at = first + (slices[1:, None] - first) * xp.arange(warps) // warps
    begins = reached[at.ravel()].reshape(count, warps, SLICE) - reached[slices[:-1]][:, None]
    return begins.astype(np.int32)


def _columns(n: int) -> int:
    return 1 if n == 1 else 2 if n == 2 else 4


def shared_memory(k: int, dtype: DType, n: int, warps: int) -> int:
    lines = k * _columns(n) * dtype.accumulator.itemsize
    return max(lines, warps * SLICE * _columns(n) * dtype.accumulator.itemsize)


def refuses(k: int, dtype: DType, n: int) -> str | None:
    """None if the kernel can run, else why not."""
    if n > MOST_COLUMNS:
        return f"the rows kernel takes up to {MOST_COLUMNS} columns, not {n}"
    if shared_memory(k, dtype, n, 32) > MOST_SHARED:
        return f"{k} rows of b by {n} columns do not fit into shared memory"
    return None


def effort(lengths: np.ndarray, dtype: DType, sms: int) -> tuple[float, float]:
    """Entries of the busiest SM times `sms`, and their bytes.

    `lengths` are the non-zeros of each row, the longest first.
    """
    slices = SLICE * lengths[::SLICE]  # as long as their longest row
    entries = float(max(slices.sum(), sms * slices[0]))
    return entries, entries * (dtype.itemsize + 1)


def _defines(dtype: DType, output: str, columns: int, warps: int) -> loader.Defines:
    names = (("ELEMENT", dtype.name), ("OUTPUT", output))
    return (*names, ("COLUMNS", columns), ("WARPS", warps))


def product(layout: RowsLayout, b, out, output: str) -> None:
    """out = A @ b, for CuPy matrices (k, n) and (m, n) of any strides, n up to 4."""
    k, n = b.shape
    shared = shared_memory(k, layout.dtype, n, layout.warps)
    macros = _defines(layout.dtype, output, _columns(n), layout.warps)
    kernel = loader.function(NAME, "product", macros, shared_memory=shared)
    b_row, b_column = (s // b.itemsize for s in b.strides)
    out_row, out_column = (s // out.itemsize for s in out.strides)
    kernel(
        (layout.slices.size - 1,), (32 * layout.warps,),
        (layout.deltas, layout.values, layout.slices, layout.rows, layout.begins, b, k,
         np.int32(n), b_row, b_column, out, out_row, out_column),
        shared_mem=shared,
    )  # fmt: skip


COMPILE_CHECKS = [
    (_defines(TABLE["bfloat16"], "bfloat16", 1, 32), "sm_90a", "FFMA"),
    (_defines(TABLE["float16"], "float16", 4, 8), "sm_80", "FFMA"),
    (_defines(TABLE["float32"], "float32", 4, 32), "sm_120", "FFMA"),
    (_defines(TABLE["float64"], "float64", 4, 32), "sm_90a", "DFMA"),
    (_defines(TABLE["int8"], "int32", 1, 16), "sm_90a", "IMAD"),
]
