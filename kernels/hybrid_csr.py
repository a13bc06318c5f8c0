"""Launch ``cuda/hybrid_csr.cu``: matrices with hardly any elements, any dtype and columns."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from sparse24 import _arrays
from sparse24._dtypes import TABLE, DType
from sparse24.kernels import hybrid_csr_plan as plan
from sparse24.kernels import loader
from sparse24.kernels.chip import chip
from sparse24.kernels.csr import CsrRows
from sparse24.kernels.hybrid_csr_plan import THREADS, Config, Cut, Listing
from sparse24.kernels.hybrid_launch import BoundProduct, settle
from sparse24.kernels.launch import Launch
from sparse24.kernels.stream_rooms import StreamRooms

NAME = "hybrid_csr"
MOST = 1 << 31  # rows and columns of the matrix, whose numbers are 32 bits
MOST_APART = (1 << 31) - 1  # elements from one row of `b` to the next, 32 bits with a sign
MOST_RANGES = 16
LEFT = np.dtype([
    ("starts", "u8"), ("columns", "u8"), ("values", "u8"), ("pieces", "u8"), ("listed", "u8"),
])  # fmt: skip
RIGHT = np.dtype([("b", "u8"), ("n", "i8"), ("column", "i8"), ("row", "i4"), ("", "i4")])
OUT = np.dtype([("to", "u8"), ("row", "i8"), ("column", "i8"), ("wide", "i4"), ("", "i4")])
SHARED = np.dtype([("sums", "u8"), ("arrived", "u8")])
CUTS = np.dtype([
    ("lanes", "i4"), ("chunks", "i4"), ("pieces", "i4"), ("ranges", "i4"),
    ("range", plan.RANGE, MOST_RANGES),
])  # fmt: skip
NONE = np.zeros(1, SHARED)  # where no row is cut up


class CsrLayout:
    """The non-zeros of a matrix row by row, and the pieces of its long rows.

    Attributes
    ----------
    cuts : dict of Cut
        By the elements of a piece.
    listed : Listing, optional
        The rows by length, where they differ.
    shared : bool
        Whether the rows are those that the matrix stores, and counts as its bytes.
    """

    def __init__(
        self, shape, dtype: DType, rows: CsrRows, cuts: dict[int, Cut], listed: Listing | None,
        *, shared: bool,
    ):  # fmt: skip
        self.shape, self.dtype, self.rows, self.cuts = shape, dtype, rows, cuts
        self.listed, self.shared = listed, shared
        self._launches: dict[tuple, Ready] = {}
        self._rooms: dict[tuple[int, int], StreamRooms] = {}

    @property
    def nbytes(self) -> int:
        own = sum(cut.pieces.nbytes for cut in self.cuts.values())
        own += self.listed.rows.nbytes if self.listed else 0
        return own + (0 if self.shared else sum(x.nbytes for x in self.rows))

    @property
    def aligned(self) -> bool:
        """Whether four elements, from a multiple of four on, can be read at once."""
        return all(_in_fours(x) for x in (self.rows.columns, self.rows.bits))

    def copy(self) -> CsrLayout:
        """The same layout elsewhere in memory."""
        rows = CsrRows(*(x.copy() for x in self.rows))
        cuts = {piece: Cut(cut.pieces.copy(), cut.passed) for piece, cut in self.cuts.items()}
        listed = self.listed and self.listed._replace(rows=self.listed.rows.copy())
        settle()
        return CsrLayout(self.shape, self.dtype, rows, cuts, listed, shared=False)

    def launch(self, n: int, vector: int) -> Ready:
        """The compiled product with `n` columns, made at the first use and kept."""
        found = self._launches.get((n, vector))
        if found is None:
            found = self._launches[n, vector] = Ready(self, n, vector)
        return found

    def rooms(self, slots: int, nbytes: int) -> StreamRooms:
        """Where products with about as many sums of pieces pass them on, by powers of two.

        Each leaves zeros in the counts that it used, so the next one may have fewer.
        """
        counts, room = (1 << (size - 1).bit_length() for size in (slots, nbytes))
        return self._rooms.setdefault(
            (counts, room), StreamRooms(functools.partial(_room, counts, room))
        )


class Ready(BoundProduct):
    """One way of running a product: kernel, grid, and the matrix's part of the arguments."""

    def __init__(self, layout: CsrLayout, n: int, vector: int):
        super().__init__()
        m, rows, listed = layout.shape[0], layout.rows, layout.listed
        self._config = how = plan.config(n, vector, rows.bits.size)
        pieces, passed = layout.cuts[how.piece]
        ranges, blocks = plan.ranges(how, listed, m, rows.bits.size / m)
        self._early = chip(rows.bits.device.id).launches_early
        macros = _defines(layout.dtype, how, listed=bool(listed), aligned=layout.aligned)
        kernel = loader.function(NAME, "product", macros)
        self._sizes = (kernel, (len(pieces) + blocks) * how.chunks, THREADS, 0)
        addresses = (*(x.data.ptr for x in (*rows, pieces)), listed.rows.data.ptr if listed else 0)
        self._left = np.array([addresses], LEFT)
        self._cuts = np.zeros(1, CUTS)
        self._cuts[0] = (how.lanes, how.chunks, len(pieces), len(ranges), 0)
        self._cuts["range"][0, : len(ranges)] = ranges
        slots = passed * how.chunks
        sums = how.lanes * how.wide * how.vector * layout.dtype.accumulator.itemsize
        self.per_stream = slots > 0
        if self.per_stream:
            self._rooms = layout.rooms(slots, slots * sums)
            self._rooms.reserve()

    def bind(self, b, out, stream: int) -> Launch:
        row, column = (s // b.itemsize for s in b.strides)
        right = np.array([(b.data.ptr, b.shape[1], column, row, 0)], RIGHT)
        row, column = (s // out.itemsize for s in out.strides)
        wide = fits(out, self._config.vector)
        result = np.array([(out.data.ptr, row, column, wide, 0)], OUT)
        shared = self._rooms.of_stream(stream) if self.per_stream else NONE
        arguments = (self._left, right, result, shared, self._cuts)
        return Launch(*self._sizes, arguments, early=self._early)


def _room(counts: int, nbytes: int) -> tuple:
    """Memory in which the pieces of rows pass on their sums, and zeroed counts of the pieces."""
    import cupy

    sums, arrived = cupy.empty(nbytes, np.uint8), cupy.zeros(counts, np.uint32)
    settle()
    return np.array([(sums.data.ptr, arrived.data.ptr)], SHARED), sums, arrived


class ByRows:
    """A product of a copy of `b` whose rows are contiguous, made at each call."""

    captured = False  # a graph would not keep the copy

    def __init__(self, layout: CsrLayout):
        self._layout = layout

    def __call__(self, b, out) -> None:
        product(self._layout, _arrays.cupy_module().ascontiguousarray(b), out)


def _in_fours(x) -> bool:
    """Whether fours are aligned, and what is read beyond the last element is allocated."""
    memory, four = x.data.mem, 4 * x.itemsize
    end = x.data.ptr + -(-x.nbytes // four) * four
    return x.data.ptr % four == 0 and end <= memory.ptr + memory.size


def fits(x, vector: int) -> bool:
    """Whether the columns of a matrix are aligned vectors of so many elements."""
    if vector == 1:
        return True
    (rows, n), nbytes = x.shape, min(vector * x.itemsize, plan.VECTOR_BYTES)
    aligned = x.data.ptr % nbytes == 0 and (x.strides[0] % nbytes == 0 or rows == 1)
    return n % vector == 0 and x.strides[1] == x.itemsize and aligned


def vector_of(b) -> int:
    """Elements of the widest vectors by which the kernel can read `b`."""
    vector = min(plan.VECTOR_BYTES // b.itemsize, plan.MOST_VECTOR)
    while not fits(b, vector):
        vector //= 2
    return vector


def prepare(
    rows: CsrRows, shape: tuple[int, int], dtype: DType, *, shared: bool = False
) -> CsrLayout:
    """Take over the rows of a matrix, or share what it stores; waits for their lengths."""
    import cupy

    starts = rows.starts.get()
    lengths, listed = np.diff(starts), None
    if lengths.size and plan.uneven(lengths.max(), lengths.mean()):
        listed = plan.listing(starts)
        listed = listed._replace(rows=cupy.asarray(listed.rows.view(np.int64)))
    cuts = {}
    for piece in {*plan.PIECE.values(), plan.PIECE_ELSE}:
        pieces, passed = plan.cut(lengths if listed else lengths[:0], piece)
        cuts[piece] = Cut(cupy.asarray(pieces), passed)
    settle()
    return CsrLayout(shape, dtype, rows, cuts, listed, shared=shared)


def _defines(dtype: DType, how: Config, *, listed: bool, aligned: bool = True) -> loader.Defines:
    return (
        ("ELEMENT", dtype.name), ("OUTPUT", dtype.result), ("VECTOR", how.vector),
        ("WIDE", how.wide), ("PIECE", how.piece), ("FOURS", int(how.fours and aligned)),
        ("LISTED", int(listed)),
    )  # fmt: skip


def bound(layout: CsrLayout, b, out) -> tuple[Any, Any]:
    """What multiplies such operands, and `b` as it takes it: as it is."""
    columns_lie_apart = b.shape[1] > 1 and b.strides[1] != b.itemsize
    if columns_lie_apart or abs(b.strides[0]) // b.itemsize > MOST_APART:
        return ByRows(layout), b
    return layout.launch(b.shape[1], vector_of(b)), b


def product(layout: CsrLayout, b, out) -> None:
    """out = A @ b, for CuPy matrices (k, n) and (m, n) of any strides."""
    bound(layout, b, out)[0](b, out)


def _check(name: str, n: int, vector: int, arch: str, instruction: str, *, listed: bool = False):
    return _defines(TABLE[name], plan.config(n, vector, 1 << 20), listed=listed), arch, instruction


COMPILE_CHECKS = [
    _check("bfloat16", 64, 8, "sm_90a", "FFMA"),
    _check("float16", 1, 1, "sm_80", "FFMA", listed=True),
    _check("float16", 16, 8, "sm_90a", "FFMA"),
    _check("float32", 256, 4, "sm_120", "FFMA", listed=True),
    _check("float32", 8, 4, "sm_90a", "FFMA", listed=True),
    _check("float64", 8, 2, "sm_90a", "DFMA"),
    _check("float64", 4, 2, "sm_90a", "DFMA", listed=True),
    _check("int8", 64, 8, "sm_90a", "IMAD", listed=True),
    _check("int8", 8, 8, "sm_90a", "IMAD"),
]
