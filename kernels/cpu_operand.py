"""How the CPU products see their operands: A block by block, b in the layout of a kernel."""

from __future__ import annotations

import math

import numpy as np

from sparse24 import _dtypes, _spec
from sparse24.kernels import _simd
from sparse24.kernels._numba import njit, parallel
from sparse24.kernels._simd import INDEX_LANES, write_indices
from sparse24.kernels.cpu_decode import decode_into, halves


@njit
def _write_indices(metadata, groups, indices):
    """Row of b of every stored element, from canonical metadata."""
    runs = groups // (INDEX_LANES // 2)
    for row in range(metadata.shape[0]):
        for run in range(runs):
            write_indices(metadata, row, run, indices)
        for g in range(runs * (INDEX_LANES // 2), groups):
            code = np.int32(metadata[row, g >> 1]) >> (4 * (g & 1))
            indices[row, 2 * g] = 4 * g + (code & 3)
            indices[row, 2 * g + 1] = 4 * g + (code >> 2 & 3)


def _aligned(shape: tuple[int, ...], dtype) -> np.ndarray:
    """An uninitialised array on a cache-line boundary, so that no vector straddles two."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)


def widths(n: int, itemsize: int) -> list[tuple[int, int, int]]:
    """Cut n columns into runs (first column, columns, machine vectors of a panel)."""
    lanes = _simd.VECTOR_BYTES // itemsize
    whole = n // (4 * lanes) * 4 * lanes
    runs = [(0, whole, 4)] if whole else []
    rest = n - whole
    if rest:
        runs.append((whole, rest, 1 if rest <= lanes else 2 if rest <= 2 * lanes else 4))
    return runs


def pack_panels(b: np.ndarray, high: int, width: int) -> np.ndarray:
    """(k, n) as (panels, high, width), zeros below and to the right."""
    k, n = b.shape
    panels = _aligned((-(-n // width), high, width), b.dtype)

    def pack(j: int):
        columns = min(width, n - j * width)
        panels[j, :k, :columns] = b[:, j * width : j * width + columns]
        panels[j, k:] = 0
        panels[j, :, columns:] = 0

    parallel(pack, len(panels), panels.nbytes)
    return panels


def pack_columns(b: np.ndarray, high: int) -> np.ndarray:
    """(k, n) as (n, at least high): columns, each from a cache line on, zeros behind."""
    pitch = -(-high // 16) * 16
    columns = _aligned((b.shape[1], pitch), b.dtype)
    columns[:, : b.shape[0]] = b.T
    columns[:, b.shape[0] :] = 0
    return columns


class Operand:
    """The sparse matrix of one product, read block by block in the type `work`."""

    def __init__(self, values, metadata, high: int, dtype: _dtypes.DType, work: np.dtype):
        self.values = np.require(values, requirements="CA")
        self.metadata = np.require(metadata, requirements="CA")
        self.high = high  # columns, whole groups
        self.dtype, self.work = dtype, work

    def block(self, rows: slice) -> np.ndarray:
        """The stored elements of some rows."""
        return self._decoded(self.values[rows])

    def streamed(self, rows: slice, lanes: int) -> tuple[np.ndarray, np.ndarray]:
        """The same as `_simd.dots` takes them, and those that fill no vector of `lanes`."""
        part = self.values[rows]
        first = part.shape[1] // lanes * lanes
        rest = self._decoded(np.ascontiguousarray(part[:, first:]))
        if self.dtype.name == "int8":
            return part, rest
        if self.dtype.name == "bfloat16":
            return part.view(np.uint16), rest
        if self.dtype.name == "float16" and _simd.HALVES:
            return part.view(np.int16), rest
        if self.dtype.is_float8 and _simd.HALVES:
            return halves(part, self.dtype), rest
        return self._decoded(part), rest

    def _decoded(self, part: np.ndarray) -> np.ndarray:
        if self.dtype.logical == self.work:
            return part
        out = np.empty(part.shape, self.work)
        decode_into(part, self.dtype, out)
        return out

    def indices(self, rows: slice) -> np.ndarray:
        """The row of b that each of them multiplies."""
        indices = np.empty(self.values[rows].shape, np.int32)
        _write_indices(self.metadata[rows], self.high // _spec.GROUP, indices)
        return indices
