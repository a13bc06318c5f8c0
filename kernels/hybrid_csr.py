"""Launch ``cuda/hybrid_csr.cu``: matrices with hardly any elements, any dtype and columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sparse24 import _arrays, _dtypes
from sparse24._dtypes import TABLE, DType
from sparse24.kernels import loader
from sparse24.kernels.csr import CsrRows
from sparse24.kernels.hybrid_launch import BoundProduct, settle
from sparse24.kernels.launch import Launch

NAME = "hybrid_csr"
THREADS = 256
WARP = 32
MOST_COLUMNS = 1 << 31  # of the matrix, whose numbers are 32 bits
LONG = 128  # elements; a block takes a row of more
INDEX = 4  # bytes of a column
EACH = 8  # elements of a row for each lane, at least
VECTOR_BYTES = 16
MOST_VECTOR = 8
LEFT = np.dtype([
    ("starts", "u8"), ("columns", "u8"), ("values", "u8"), ("long_rows", "u8"),
    ("m", "i8"), ("longs", "i4"), ("most", "i4"),
])  # fmt: skip
RIGHT = np.dtype([("b", "u8"), ("n", "i8"), ("row", "i8"), ("column", "i8")])
OUT = np.dtype([("to", "u8"), ("row", "i8"), ("column", "i8"), ("wide", "i4"), ("", "i4")])


@dataclass(frozen=True)
class Config:
    """How a product is cut up.

    Attributes
    ----------
    vector : int
        Columns of a lane.
    lanes, split : int
        Threads of a row: side by side, and along its elements.
    chunks : int
        Parts of the columns, each for other threads.
    """

    vector: int
    lanes: int
    split: int
    chunks: int

    @property
    def teams(self) -> int:
        """Rows of a block."""
        return THREADS // (self.lanes * self.split)


def config(n: int, vector: int, mean: float) -> Config:
    """For `n` columns that are read by vectors, and rows of so many elements on average."""
    lanes = min(_power(-(-n // vector)), WARP)
    split = min(_power(mean / EACH), WARP // lanes)
    return Config(vector, lanes, split, -(-n // (vector * lanes)))


def effort(shape: tuple[int, int], nnz: int, n: int, dtype: DType) -> tuple[float, float]:
    """Bytes of `b` that all elements read, from the L2 cache, and those that come from memory."""
    (m, k), result = shape, np.dtype(_dtypes.numpy_dtype(dtype.result)).itemsize
    listed = nnz * (dtype.itemsize + INDEX) * config(n, 1, 1).chunks
    return nnz * n * dtype.itemsize, listed + n * (m * result + k * dtype.itemsize) + 8 * m


def longest_row(length: int, n: int) -> float:
    """Elements of the longest row that a lane reads one after the other."""
    return length * config(n, 1, 1).lanes / THREADS


def _power(least: float) -> int:
    """The smallest power of two that is at least as large."""
    return 1 << int(np.ceil(np.log2(max(least, 1))))


class CsrLayout:
    """The non-zeros of a matrix row by row, and which of its rows are long."""

    def __init__(self, shape: tuple[int, int], dtype: DType, rows: CsrRows, long_rows: Any):
        self.shape, self.dtype, self.rows, self.long_rows = shape, dtype, rows, long_rows
        self._launches: dict[tuple, Ready] = {}

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for x in (*self.rows, self.long_rows))

    def copy(self) -> CsrLayout:
        """The same layout elsewhere in memory."""
        rows = CsrRows(*(x.copy() for x in self.rows))
        return CsrLayout(self.shape, self.dtype, rows, self.long_rows.copy())

    def launch(self, n: int, vector: int) -> Ready:
        """The compiled product with `n` columns, made at the first use and kept."""
        found = self._launches.get((n, vector))
        if found is None:
            found = self._launches[n, vector] = Ready(self, n, vector)
        return found


class Ready(BoundProduct):
    """One way of running a product: kernel, grid, and the matrix's part of the arguments."""

    def __init__(self, layout: CsrLayout, n: int, vector: int):
        super().__init__()
        m, longs, rows = layout.shape[0], layout.long_rows.size, layout.rows
        how = config(n, vector, rows.bits.size / m)
        kernel = loader.function(NAME, "product", _defines(layout.dtype, vector))
        self._sizes = (kernel, (longs + -(-m // how.teams)) * how.chunks, THREADS, 0)
        addresses = (x.data.ptr for x in (*rows, layout.long_rows))
        self._left = np.array([(*addresses, m, longs, LONG)], LEFT)
        self._how = tuple(np.array([x], np.int32) for x in (how.lanes, how.split, how.chunks))
        self._vector = vector

    def bind(self, b, out, stream: int) -> Launch:
        row, column = (s // b.itemsize for s in b.strides)
        right = np.array([(b.data.ptr, b.shape[1], row, column)], RIGHT)
        row, column = (s // out.itemsize for s in out.strides)
        wide = fits(out, self._vector)
        result = np.array([(out.data.ptr, row, column, wide, 0)], OUT)
        return Launch(*self._sizes, (self._left, right, result, *self._how))


class ByRows:
    """A product of a copy of `b` whose rows are contiguous, made at each call."""

    captured = False  # a graph would not keep the copy

    def __init__(self, layout: CsrLayout):
        self._layout = layout

    def __call__(self, b, out) -> None:
        product(self._layout, _arrays.cupy_module().ascontiguousarray(b), out)


def fits(x, vector: int) -> bool:
    """Whether the columns of a matrix are aligned vectors of so many elements."""
    if vector == 1:
        return True
    (rows, n), nbytes = x.shape, min(vector * x.itemsize, VECTOR_BYTES)
    aligned = x.data.ptr % nbytes == 0 and (x.strides[0] % nbytes == 0 or rows == 1)
    return n % vector == 0 and x.strides[1] == x.itemsize and aligned


def vector_of(b) -> int:
    """Elements of the widest vectors by which the kernel can read `b`."""
    vector = min(VECTOR_BYTES // b.itemsize, MOST_VECTOR)
    while not fits(b, vector):
        vector //= 2
    return vector


def prepare(rows: CsrRows, shape: tuple[int, int], dtype: DType) -> CsrLayout:
    """Take over the rows of a matrix; waits for the number of those that are long."""
    import cupy

    lengths = cupy.diff(rows.starts)
    long_rows = cupy.flatnonzero(lengths > LONG)
    long_rows = long_rows[cupy.argsort(-lengths[long_rows])].astype(np.int32)
    settle()
    return CsrLayout(shape, dtype, rows, long_rows)


def _defines(dtype: DType, vector: int) -> loader.Defines:
    return (("ELEMENT", dtype.name), ("OUTPUT", dtype.result), ("VECTOR", vector))


def bound(layout: CsrLayout, b, out) -> tuple[Any, Any]:
    """What multiplies such operands, and `b` as it takes it: as it is."""
    if b.shape[1] > 1 and b.strides[1] != b.itemsize:
        return ByRows(layout), b
    return layout.launch(b.shape[1], vector_of(b)), b


def product(layout: CsrLayout, b, out) -> None:
    """out = A @ b, for CuPy matrices (k, n) and (m, n) of any strides."""
    bound(layout, b, out)[0](b, out)


COMPILE_CHECKS = [
    (_defines(TABLE["bfloat16"], 8), "sm_90a", "FFMA"),
    (_defines(TABLE["float16"], 1), "sm_80", "FFMA"),
    (_defines(TABLE["float32"], 4), "sm_120", "FFMA"),
    (_defines(TABLE["float64"], 2), "sm_90a", "DFMA"),
    (_defines(TABLE["int8"], 8), "sm_90a", "IMAD"),
]
