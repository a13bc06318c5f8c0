"""Launch ``cuda/hybrid_csr.cu``: matrices with hardly any elements, any dtype and columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sparse24 import _arrays, _dtypes
from sparse24._dtypes import TABLE, DType
from sparse24.kernels import loader
from sparse24.kernels.csr import CsrRows
from sparse24.kernels.hybrid_launch import BoundProduct, settle
from sparse24.kernels.launch import Launch
from sparse24.kernels.stream_rooms import StreamRooms

NAME = "hybrid_csr"
THREADS = 256
WARP = 32
MOST_COLUMNS = 1 << 31  # of the matrix, whose numbers are 32 bits
MOST_APART = (1 << 31) - 1  # elements from one row of `b` to the next, 32 bits with a sign
LONG = 64  # elements, and this times the mean of all rows: a row of more of both is cut up
LONGER = 4
PIECE = {1: 4096, 2: 2048, 4: 2048}  # elements, by lanes that are side by side
PIECE_ELSE = 1024
AHEAD = 4  # elements that a thread reads at once; where that leaves registers 5
INDEX = 4  # bytes of a column
SECTOR = 32  # bytes that are read at once
EACH = {1: 8, 16: 32, 32: 32}  # elements of a row for each lane, at least, by lanes that share it
EACH_ELSE = 16
BUSY = 1 << 16  # threads below which rows are divided among more, down to two elements for each
VECTOR_BYTES = 16
MOST_VECTOR = 8
LEFT = np.dtype([
    ("starts", "u8"), ("columns", "u8"), ("values", "u8"), ("pieces", "u8"),
    ("m", "i8"), ("count", "i4"), ("most", "i4"),
])  # fmt: skip
RIGHT = np.dtype([("b", "u8"), ("n", "i8"), ("column", "i8"), ("row", "i4"), ("", "i4")])
OUT = np.dtype([("to", "u8"), ("row", "i8"), ("column", "i8"), ("wide", "i4"), ("", "i4")])
SHARED = np.dtype([("sums", "u8"), ("arrived", "u8")])
NONE = np.zeros(1, SHARED)  # where no row is cut up


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

    @property
    def piece(self) -> int:
        """Elements of a piece of a long row."""
        return PIECE.get(self.lanes, PIECE_ELSE)


def config(n: int, vector: int, m: int, mean: float) -> Config:
    """For `n` columns that are read by vectors, and `m` rows of so many elements on average."""
    lanes = min(_power(-(-n // vector)), WARP)
    split = min(_power(mean / EACH.get(lanes, EACH_ELSE)), WARP // lanes)
    while m * lanes * split < BUSY and split < min(mean / 2, WARP // lanes):
        split *= 2
    return Config(vector, lanes, split, -(-n // (vector * lanes)))


def _power(least: float) -> int:
    """The smallest power of two that is at least as large."""
    return 1 << int(np.ceil(np.log2(max(least, 1))))


def effort(shape: tuple[int, int], nnz: int, n: int, dtype: DType) -> tuple[float, float]:
    """Bytes of `b` that all elements read, from the L2 cache, and those of the operands."""
    (m, k), vector = shape, VECTOR_BYTES // dtype.itemsize
    result = _dtypes.numpy_dtype(dtype.result).itemsize
    listed = nnz * (dtype.itemsize + INDEX) * -(-n // (WARP * min(vector, MOST_VECTOR)))
    read = nnz * -(-n * dtype.itemsize // SECTOR) * SECTOR
    return read, listed + n * (m * result + k * dtype.itemsize) + 8 * m


def rounds(
    shape: tuple[int, int], nnz: int, longest: int, n: int, dtype: DType
) -> tuple[float, bool]:
    """How often a thread waits for elements and then for `b`, in the longest row that is not cut.

    And whether threads read all elements of a row, and so mostly from lines that are there.
    """
    mean = nnz / shape[0]
    how = config(n, min(VECTOR_BYTES // dtype.itemsize, MOST_VECTOR), shape[0], mean)
    return min(longest, max(LONG, LONGER * mean)) / (how.split * AHEAD), how.split == 1


class Cut(NamedTuple):
    """Long rows in pieces.

    Attributes
    ----------
    pieces : array of int32, shape (pieces, 2)
        A long row, and the number of a piece of it; the pieces of the longest rows come first.
    passed : int
        How many pieces are not their whole row, which are the first.
    """

    pieces: Any
    passed: int


class CsrLayout:
    """The non-zeros of a matrix row by row, and the pieces of its long rows.

    Attributes
    ----------
    cuts : dict of Cut
        By the elements of a piece.
    most : int
        Elements of a row that is not long.
    shared : bool
        Whether the rows are those that the matrix stores, and counts as its bytes.
    """

    def __init__(
        self, shape, dtype: DType, rows: CsrRows, cuts: dict[int, Cut], most: int, *, shared: bool
    ):
        self.shape, self.dtype, self.rows, self.cuts, self.most = shape, dtype, rows, cuts, most
        self.shared = shared
        self._launches: dict[tuple, Ready] = {}

    @property
    def nbytes(self) -> int:
        pieces = sum(cut.pieces.nbytes for cut in self.cuts.values())
        return pieces + (0 if self.shared else sum(x.nbytes for x in self.rows))

    def copy(self) -> CsrLayout:
        """The same layout elsewhere in memory."""
        rows = CsrRows(*(x.copy() for x in self.rows))
        cuts = {piece: Cut(cut.pieces.copy(), cut.passed) for piece, cut in self.cuts.items()}
        settle()
        return CsrLayout(self.shape, self.dtype, rows, cuts, self.most, shared=False)

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
        m, rows = layout.shape[0], layout.rows
        self._config = how = config(n, vector, m, rows.bits.size / m)
        pieces, passed = layout.cuts[how.piece]
        count = len(pieces)
        kernel = loader.function(NAME, "product", _defines(layout.dtype, vector, how.piece))
        self._sizes = (kernel, (count + -(-m // how.teams)) * how.chunks, THREADS, 0)
        addresses = (x.data.ptr for x in (*rows, pieces))
        self._left = np.array([(*addresses, m, count, layout.most)], LEFT)
        self._cut = tuple(np.array([x], np.int32) for x in (how.lanes, how.split, how.chunks))
        self._slots = passed * how.chunks
        self._slot_bytes = how.lanes * how.vector * layout.dtype.accumulator.itemsize
        self._rooms = StreamRooms(self._room)
        self.per_stream = self._slots > 0
        if self.per_stream:
            self._rooms.reserve()

    def bind(self, b, out, stream: int) -> Launch:
        row, column = (s // b.itemsize for s in b.strides)
        right = np.array([(b.data.ptr, b.shape[1], column, row, 0)], RIGHT)
        row, column = (s // out.itemsize for s in out.strides)
        wide = fits(out, self._config.vector)
        result = np.array([(out.data.ptr, row, column, wide, 0)], OUT)
        shared = self._rooms.of_stream(stream) if self.per_stream else NONE
        return Launch(*self._sizes, (self._left, right, result, shared, *self._cut))

    def _room(self) -> tuple:
        """Where the pieces of rows pass on their sums; the counts of pieces are zeros."""
        import cupy

        sums = cupy.empty(self._slots * self._slot_bytes, np.uint8)
        arrived = cupy.zeros(self._slots, np.uint32)
        settle()
        return np.array([(sums.data.ptr, arrived.data.ptr)], SHARED), sums, arrived


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


def prepare(
    rows: CsrRows, shape: tuple[int, int], dtype: DType, *, shared: bool = False
) -> CsrLayout:
    """Take over the rows of a matrix, or share what it stores; waits for their lengths."""
    import cupy

    lengths = np.diff(rows.starts.get())
    most = int(max(LONG, LONGER * lengths.mean())) if lengths.size else LONG
    cuts = {}
    for piece in {*PIECE.values(), PIECE_ELSE}:
        pieces, passed = cut(lengths, most, piece)
        cuts[piece] = Cut(cupy.asarray(pieces), passed)
    settle()
    return CsrLayout(shape, dtype, rows, cuts, most, shared=shared)


def cut(lengths: np.ndarray, most: int, piece: int) -> Cut:
    """The pieces, on the host, of those of such rows that have more than `most` elements."""
    long = np.flatnonzero(lengths > most)
    long = long[np.argsort(-lengths[long], kind="stable")]
    count = -(-lengths[long] // piece)
    ends = np.cumsum(count)
    number = np.arange(count.sum()) - np.repeat(ends - count, count)
    pieces = np.stack([np.repeat(long, count), number], axis=1).astype(np.int32)
    return Cut(pieces, int(count[count > 1].sum()))


def _defines(dtype: DType, vector: int, piece: int) -> loader.Defines:
    names = (("ELEMENT", dtype.name), ("OUTPUT", dtype.result))
    return (*names, ("VECTOR", vector), ("PIECE", piece))


def bound(layout: CsrLayout, b, out) -> tuple[Any, Any]:
    """What multiplies such operands, and `b` as it takes it: as it is."""
    columns_lie_apart = b.shape[1] > 1 and b.strides[1] != b.itemsize
    if columns_lie_apart or abs(b.strides[0]) // b.itemsize > MOST_APART:
        return ByRows(layout), b
    return layout.launch(b.shape[1], vector_of(b)), b


def product(layout: CsrLayout, b, out) -> None:
    """out = A @ b, for CuPy matrices (k, n) and (m, n) of any strides."""
    bound(layout, b, out)[0](b, out)


COMPILE_CHECKS = [
    (_defines(TABLE["bfloat16"], 8, PIECE_ELSE), "sm_90a", "FFMA"),
    (_defines(TABLE["float16"], 1, PIECE[1]), "sm_80", "FFMA"),
    (_defines(TABLE["float32"], 4, PIECE_ELSE), "sm_120", "FFMA"),
    (_defines(TABLE["float64"], 2, PIECE[4]), "sm_90a", "DFMA"),
    (_defines(TABLE["int8"], 8, PIECE_ELSE), "sm_90a", "IMAD"),
]
