"""How a product of the csr kernel is cut up: which threads take which rows; long rows in pieces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sparse24 import _dtypes
from sparse24._dtypes import DType

THREADS = 128
WARP = 32
VECTOR_BYTES = 16
MOST_VECTOR = 8
FOURS_LANES = 2  # up to so many side by side, a thread reads elements as aligned fours
WIDE, WIDE_FROM = 2, 16  # vectors of a lane, and of a row of b from which on it has so many
EACH, EACH_MOST = 8, 64  # elements of a row for each thread, for every thread side by side; at most
# Where fewer threads than BUSY would be at work rows are divided among more, down to so few
# elements for each, by whether they read fours.
EACH_LEAST = {True: 2, False: 4}
BUSY = 1 << 17
LONG, LONGER = 64, 4  # elements, and times the mean: where a row has more of both, rows are listed
PIECE = {1: 2048, 2: 1024, 4: 1024}  # elements, by threads side by side; a power of two
PIECE_ELSE = 512
INDEX = 4  # bytes of a column
SECTOR = 32  # bytes that are read at once
ROW = np.dtype([("first", "i8"), ("count", "i4"), ("number", "i4")])
RANGE = np.dtype([("block", "i4"), ("first", "i4"), ("end", "i4"), ("split", "i4")])


@dataclass(frozen=True)
class Config:
    """How a product is cut up.

    Attributes
    ----------
    vector, wide : int
        Columns of a lane: adjacent ones, and how many times so many.
    lanes : int
        Threads of a row that are side by side.
    chunks : int
        Parts of the columns, each for other threads.
    each : float
        Elements of a row for each thread, about.
    """

    vector: int
    wide: int
    lanes: int
    chunks: int
    each: float

    @property
    def fours(self) -> bool:
        """Whether threads read elements as aligned fours, if they can be read so."""
        return self.lanes <= FOURS_LANES

    @property
    def ahead(self) -> int:
        """Elements that a thread reads at once, about; ``cuda/include/csr_multiply.cuh``."""
        return 3 if self.wide > 1 else 4

    @property
    def piece(self) -> int:
        """Elements of a piece of a long row."""
        return PIECE.get(self.lanes, PIECE_ELSE)

    def split(self, length: float) -> int:
        """Threads along the elements of rows of such a length."""
        return min(_power(length / self.each), THREADS // self.lanes)

    def teams(self, split: int) -> int:
        """Rows of a block."""
        return THREADS // (self.lanes * split)


def config(n: int, vector: int, nnz: int) -> Config:
    """For `n` columns that are read by vectors, and so many elements."""
    wide = WIDE if n // vector >= WIDE_FROM else 1
    lanes = min(_power(-(-n // (wide * vector))), WARP)
    busy = max(nnz * lanes / BUSY, EACH_LEAST[lanes <= FOURS_LANES])
    each = min(EACH * lanes, EACH_MOST, busy)
    return Config(vector, wide, lanes, -(-n // (wide * vector * lanes)), each)


def _power(least: float) -> int:
    """The smallest power of two that is at least as large."""
    return 1 << int(np.ceil(np.log2(max(least, 1))))


def uneven(longest: float, mean: float) -> bool:
    """Whether rows differ so much in length that they are listed, longest first."""
    return longest > max(LONG, LONGER * mean)


class Listing(NamedTuple):
    """Rows by length, the longest first.

    Attributes
    ----------
    rows : array of ROW, shape (m,)
        In their order where lengths have as many bits, so that neighbours stay together.
    bits : ndarray of int8, shape (m,)
        How many bits the lengths have.
    """

    rows: Any
    bits: np.ndarray

    def shorter(self, piece: int) -> int:
        """Where rows begin that are shorter than a piece, which is a power of two."""
        return int(np.searchsorted(-self.bits, -int(piece).bit_length(), "right"))


def listing(starts: np.ndarray) -> Listing:
    """The rows that begin there, on the host."""
    lengths = np.diff(starts)
    bits = np.frexp(lengths.astype(np.float64))[1].astype(np.int8)
    order = np.argsort(-bits, kind="stable")
    rows = np.zeros(len(order), ROW)
    rows["first"], rows["count"], rows["number"] = starts[:-1][order], lengths[order], order
    return Listing(rows, bits[order])


def ranges(how: Config, listed: Listing | None, m: int, mean: float) -> tuple[np.ndarray, int]:
    """Rows that share a `split`, as the kernel reads them, and how many blocks they have."""
    found = [(0, how.split(mean))] if listed is None else _by_length(how, listed)
    table = np.zeros(len(found), RANGE)
    for i, (first, split) in enumerate(found):
        end = found[i + 1][0] if i + 1 < len(found) else m
        table[i] = (0, first, end, split)
    blocks = np.cumsum([-(-(r["end"] - r["first"]) // how.teams(r["split"])) for r in table])
    table["block"][1:] = blocks[:-1]
    return table, int(blocks[-1]) if len(table) else 0


def _by_length(how: Config, listed: Listing) -> list[tuple[int, int]]:
    """Where ranges of listed rows begin, behind those that are cut, and their splits."""
    found: list[tuple[int, int]] = []
    begin = listed.shorter(how.piece)
    for bits in np.unique(listed.bits[begin:])[::-1]:
        first = max(begin, int(np.searchsorted(-listed.bits, -bits)))
        split = how.split(0.75 * 2.0**bits)  # lengths of so many bits, on average
        if not found or found[-1][1] != split:
            found.append((first, split))
    return found


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


def cut(lengths: np.ndarray, piece: int) -> Cut:
    """The pieces, on the host, of rows of at least `piece` elements."""
    long = np.flatnonzero(lengths >= piece)
    long = long[np.argsort(-lengths[long], kind="stable")]
    count = -(-lengths[long] // piece)
    ends = np.cumsum(count)
    number = np.arange(count.sum()) - np.repeat(ends - count, count)
    pieces = np.stack([np.repeat(long, count), number], axis=1).astype(np.int32)
    return Cut(pieces, int(count[count > 1].sum()))


def effort(shape: tuple[int, int], nnz: int, n: int, dtype: DType) -> tuple[float, float]:
    """Bytes of `b` that all elements read, from the L2 cache, and those of the operands."""
    m, k = shape
    result = _dtypes.numpy_dtype(dtype.result).itemsize
    listed = nnz * (dtype.itemsize + INDEX) * _usual(n, nnz, dtype).chunks
    read = nnz * -(-n * dtype.itemsize // SECTOR) * SECTOR
    return read, listed + n * (m * result + k * dtype.itemsize) + 8 * m


def rounds(shape: tuple[int, int], nnz: int, longest: int, n: int, dtype: DType) -> float:
    """How often a thread waits for elements, then for `b`, in the longest row that is not cut."""
    mean, how = nnz / shape[0], _usual(n, nnz, dtype)
    if not uneven(longest, mean):
        return longest / (how.split(mean) * how.ahead)
    length = min(longest, how.piece)
    return length / (how.split(length) * how.ahead)


def _usual(n: int, nnz: int, dtype: DType) -> Config:
    """The configuration for a `b` that can be read by the widest vectors."""
    return config(n, min(VECTOR_BYTES // dtype.itemsize, MOST_VECTOR), nnz)
