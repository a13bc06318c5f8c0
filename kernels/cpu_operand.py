"""The operands of CPU products in the layouts of their kernels: A block by block, and b."""

from __future__ import annotations

import contextlib
import ctypes
import math
from collections import deque

import numpy as np

from sparse24 import _dtypes, _spec
from sparse24.kernels import _simd
from sparse24.kernels._numba import WAKING, njit, parallel, slices
from sparse24.kernels._simd_copy import RUN, copy_run, turn_square, write_places
from sparse24.kernels.cpu_decode import decode_into, halves

# Stored elements of a row added up before they join the sums: the fewer, the less rounding.  With
# 128 a float32 product of some hundred elements errs up to 2.7 times as much as OpenBLAS, with 48
# up to 1.8 times.
STEP = 48
# The same by panels of eight machine vectors: the 64 rows of b that they meet are 32 KB, which
# leaves room in an L1 cache of 48 KB (measured with 48: a seventh slower).
_STEP_OF_WIDE = 32
# Multiplications of the rest of a row, for all columns, from which a vector filled up with zeros
# is quicker (measured: 0.9 to 5 times as fast, of fewer 0.6 to 1.6).
_PADDED = 24
LINE_BYTES = 64
# Memory of panels that later products use again, at most so many bytes each.  Taken anew at every
# call it costs the page faults of all of it (measured: 384 x 384 by 1024 columns took 2.2 ms in
# place of 1.1), of larger panels a few hundredths of the product.
_MOST_KEPT = 1 << 23
_spare: deque[np.ndarray] = deque(maxlen=2)


def step_of(vectors: int) -> int:
    """Stored elements of a step by panels of so many machine vectors."""
    return _STEP_OF_WIDE if vectors > 4 else STEP


@njit
def first_row(tile, rows, m):
    """The first row of a tile: the last tile repeats rows of the one before, to be full."""
    return max(0, min(tile * rows, m - rows))


@njit
def pack_tiles(source, rows, step, packed):
    """(m, stored) as flat (tiles, steps, rows, step); less than a tile repeats its last row."""
    m, stored = source.shape
    to = 0
    for tile in range(-(-m // rows)):
        top = first_row(tile, rows, m)
        for start in range(0, stored, step):
            count = min(step, stored - start)
            for i in range(rows):
                row = min(top + i, m - 1)
                for t in range(0, count // RUN * RUN, RUN):
                    copy_run(source, row, start + t, packed, to + t)
                for t in range(count // RUN * RUN, count):
                    packed[to + t] = source[row, start + t]
                to += step


@njit
def _pack_places(metadata, groups, rows, step, packed):
    """Pack, in the order of the values, each one's place among the step's rows of b.

    From canonical metadata.
    """
    m, stored = metadata.shape[0], 2 * groups
    to = 0
    for tile in range(-(-m // rows)):
        top = first_row(tile, rows, m)
        for start in range(0, stored, step):
            count = min(step, stored - start)
            for i in range(rows):
                row = min(top + i, m - 1)
                for t in range(0, count // RUN * RUN, RUN):
                    write_places(metadata, row, (start + t) // RUN, 2 * t, packed, to + t)
                for t in range(count // RUN * RUN, count):
                    place = metadata[row, (start + t) >> 2] >> (2 * (t & 3)) & 3
                    packed[to + t] = 4 * (t >> 1) + place
                to += step


def _aligned(shape: tuple[int, ...], dtype) -> np.ndarray:
    """An uninitialised array on a cache-line boundary, so that no vector straddles two."""
    dtype = np.dtype(dtype)
    return _placed(np.empty(math.prod(shape) * dtype.itemsize + LINE_BYTES, np.uint8), shape, dtype)


def _placed(raw: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array on the first cache-line boundary of `raw`."""
    address = ctypes.addressof(ctypes.c_char.from_buffer(raw))  # in half the time of `raw.ctypes`
    return np.ndarray(shape, dtype, raw, -address % LINE_BYTES)


def _panels_room(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """As `_aligned`, in memory that an earlier product has given back, if there is enough."""
    with contextlib.suppress(IndexError):
        raw = _spare.pop()
        if raw.nbytes >= math.prod(shape) * dtype.itemsize + LINE_BYTES:
            return _placed(raw, shape, dtype)
    return _aligned(shape, dtype)


def give_back(panels: np.ndarray) -> None:
    """Keep the memory of what `pack_panels` returned, if it is small; nobody may read it then."""
    raw = panels.base
    if isinstance(raw, np.ndarray) and raw.nbytes <= _MOST_KEPT:
        _spare.append(raw)


def widths(n: int, itemsize: int) -> list[tuple[int, int, int]]:
    """Cut n columns into runs (first column, columns, machine vectors of a panel)."""
    lanes = _simd.VECTOR_BYTES // itemsize
    runs, first = [], 0
    for vectors in sorted(_simd.ROWS_OF_TILE, reverse=True):
        rest, width = n - first, vectors * lanes
        columns = rest // width * width
        if vectors <= 4 and rest - columns > vectors // 2 * lanes:
            columns = rest  # no narrower panel holds what is left
        if columns:
            runs.append((first, columns, vectors))
            first += columns
    return runs


@njit
def _copy_rows(b, first, last, panels):
    """Some rows of `b`, each contiguous, in all panels."""
    n, (count, high, width) = b.shape[1], panels.shape
    flat = panels.reshape(panels.size)
    for row in range(first, last):
        for j in range(count):
            to, wide = (j * high + row) * width, min(width, n - j * width)
            whole = wide // RUN * RUN
            for c in range(0, whole, RUN):
                copy_run(b, row, j * width + c, flat, to + c)
            for c in range(whole, width):
                flat[to + c] = b[row, j * width + c] if c < wide else 0


@njit
def _turn_columns(b, first, last, panels):
    """`_copy_rows` for a `b` of contiguous columns: 16 of them at a time, down the rows."""
    n, (count, high, width) = b.shape[1], panels.shape
    flat = panels.reshape(panels.size)
    whole = first + (last - first) // RUN * RUN
    for j in range(count):
        wide = min(width, n - j * width)
        for c in range(0, wide // RUN * RUN, RUN):
            for row in range(first, whole, RUN):
                turn_square(b, row, j * width + c, flat, (j * high + row) * width + c, width)
        for row in range(first, last):
            to = (j * high + row) * width
            for c in range(0 if row >= whole else wide // RUN * RUN, width):
                flat[to + c] = b[row, j * width + c] if c < wide else 0


def pack_panels(b: np.ndarray, high: int, width: int) -> np.ndarray:
    """(k, n) as (panels, high, width), zeros below and to the right."""
    k, n = b.shape
    panels = _panels_room((-(-n // width), high, width), b.dtype)
    panels[:, k:] = 0
    if b.itemsize not in b.strides or not b.flags.aligned:
        b = np.require(b, requirements="CA")
    fill = _copy_rows if b.strides[1] == b.itemsize else _turn_columns
    if panels.nbytes < WAKING:
        fill(b, 0, k, panels)
        return panels
    parts = slices(k, RUN, multiple=RUN, work=panels.nbytes)

    def pack(number: int):
        rows = parts[number]
        fill(b, rows.start, rows.stop, panels)

    parallel(pack, len(parts), panels.nbytes)
    return panels


def columns_room(k: int, n: int, high: int, dtype) -> np.ndarray:
    """Room (n, at least high) for n columns, each from a cache line on, with zeros from k on.

    They end where the last vector of `_simd.dots` does.
    """
    step = 2 * _simd.lanes_of_dots(np.dtype(dtype).itemsize)
    columns = _aligned((n, -(-high // step) * step), dtype)
    columns[:, k:] = 0
    return columns


def pack_columns(b: np.ndarray, high: int) -> np.ndarray:
    """(k, n) as (n, at least high): columns, each from a cache line on, zeros behind."""
    columns = columns_room(*b.shape, high, b.dtype)
    columns[:, : b.shape[0]] = b.T
    return columns


class Operand:
    """The sparse matrix of one product, read block by block in the type `work`."""

    pattern: tuple[int, int] = (2, 4)

    def __init__(self, values, metadata, high: int, dtype: _dtypes.DType, work: np.dtype):
        self.values = np.require(values, requirements="CA")
        self.metadata = np.require(metadata, requirements="CA")
        self.high = high  # columns, whole groups
        self.dtype, self.work = dtype, work

    def streamed(self, rows: slice, lanes: int, n: int) -> tuple[np.ndarray, ...]:
        """Stored elements and metadata as `_simd.dots` takes them, and those of the rests of rows.

        What fills no vector of `lanes` elements is multiplied one by one for few columns of the
        `n`, and otherwise filled up with zeros, which multiply nothing.
        """
        part, metadata = self.values[rows], self.metadata[rows]
        first, left = divmod(part.shape[1], lanes)
        rest = self._decoded(np.ascontiguousarray(part[:, first * lanes :]))
        padded = left * n >= _PADDED
        places = np.zeros((len(part) if padded else 0, lanes // 4), np.uint8)
        if padded:
            some, rest = rest, np.zeros((len(part), lanes), self.work)
            rest[:, :left] = some
            found = metadata[:, first * lanes // 4 :]
            places[:, : found.shape[1]] = found
        return self.as_read(part), metadata, rest, places

    def ends(self, columns: np.ndarray) -> np.ndarray:
        """What the rests of rows multiply of the columns of b, zeros behind."""
        lanes = _simd.lanes_of_dots(columns.itemsize)
        first = self.values.shape[1] // lanes * 2 * lanes
        return np.ascontiguousarray(columns[:, first : first + 2 * lanes])

    def as_read(self, part: np.ndarray) -> np.ndarray:
        """Stored elements in a type that `dots` widens, or in that of the sums."""
        if self.dtype.logical == np.int8:
            return part
        if self.dtype.name == "bfloat16":
            return part.view(np.uint16)
        if self.dtype.name == "float16" and _simd.HALVES:
            return part.view(np.int16)
        if self.dtype.is_float8 and _simd.HALVES:
            return halves(part, self.dtype)
        return self._decoded(part)

    def _decoded(self, part: np.ndarray) -> np.ndarray:
        if self.dtype.logical == self.work:
            return part
        out = np.empty(part.shape, self.work)
        decode_into(part, self.dtype, out)
        return out

    def packed(self, rows: slice, high: int, step: int, once: bool):
        """Some rows for tiles of `high` rows: stored elements, whether in tiles, and their places.

        The places, always in tiles, are the rows of b that the elements multiply, counted from
        the first that the step may read.  Elements that are read only `once` are not worth a copy.
        """
        part = self._decoded(self.values[rows])
        m, stored = part.shape
        size = -(-m // high) * -(-stored // step) * high * step
        places = np.empty(size, np.uint16)
        self._pack_places(rows, high, step, places)
        if once and m >= high:
            return part.reshape(-1), False, places
        values = np.empty(size, self.work)
        pack_tiles(part, high, step, values)
        return values, True, places

    def _pack_places(self, rows: slice, high: int, step: int, places: np.ndarray) -> None:
        _pack_places(self.metadata[rows], self.high // _spec.GROUP, high, step, places)
