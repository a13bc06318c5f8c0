"""The arrays of a block-hybrid matrix, their meaning, and their checks.

The matrix is cut into tiles of 64 by 64, each kept in the cheapest of four ways:

========  ==========================================  =========================
kind      values                                      codes, 64 rows of 8 bytes
========  ==========================================  =========================
EMPTY     none                                        none
DENSE     all 4096, row-major                         none
TWO_FOUR  2048, two for each group of four, and an    a nibble a group, as in
          overflow list of what does not fit          :mod:`sparse24._spec`
BITMAP    the non-zeros, row-major                    a bit an element
========  ==========================================  =========================

Tiles at the right and lower edge are filled up with zeros.  Tile (i, j) has
number ``i * grid[1] + j``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sparse24 import _arrays, _dtypes, _spec
from sparse24._errors import FormatError

TILE = 64
EMPTY, DENSE, TWO_FOUR, BITMAP = range(4)
KIND_NAMES = ("empty", "dense", "2:4", "bitmap")
ELEMENTS = TILE * TILE
HALF = ELEMENTS // 2
ARRAYS = (
    "kinds", "starts", "values", "slots", "codes",
    "overflow_starts", "overflow_values", "overflow_places",
)  # fmt: skip
DTYPES = ("float16", "bfloat16", "float32", "float64", "int8")


@dataclass(frozen=True)
class Tiles:
    """A block-hybrid matrix as plain arrays, all NumPy or all CuPy.

    Attributes
    ----------
    shape : tuple of int
        (m, k).
    dtype : DType
        Element type.
    kinds : array of uint8, shape (tiles,)
        EMPTY, DENSE, TWO_FOUR or BITMAP.
    starts : array of int64, shape (tiles + 1,)
        Where a tile's values begin.
    values : array, 1-D
        Stored elements of all tiles, in tile order.
    slots : array of int32, shape (tiles,)
        Row of `codes` of a TWO_FOUR or BITMAP tile, else -1.
    codes : array of uint64, shape (slots, 64)
        One word a tile row: 64 bits of a bitmap, or 16 nibbles of 2:4 codes.
    overflow_starts : array of int64, shape (tiles + 1,)
        Where a TWO_FOUR tile's overflow begins.
    overflow_values : array, 1-D
        Elements beyond two in their group of four.
    overflow_places : array of uint16, 1-D
        Their places in the tile: ``64 * row + column``.
    """

    shape: tuple[int, int]
    dtype: _dtypes.DType
    kinds: Any
    starts: Any
    values: Any
    slots: Any
    codes: Any
    overflow_starts: Any
    overflow_values: Any
    overflow_places: Any

    @property
    def source(self) -> Tiles:
        """These tiles; of `TransposedTiles` those of the other matrix: what is stored by now."""
        return self

    @property
    def grid(self) -> tuple[int, int]:
        """Tiles down and across."""
        return -(-self.shape[0] // TILE), -(-self.shape[1] // TILE)

    @property
    def nbytes(self) -> int:
        return sum(getattr(self, name).nbytes for name in ARRAYS)

    def rows(self, first: int, last: int) -> Tiles:
        """The tiles of rows [first, last), of which `first` begins a tile; shares the values."""
        across = self.grid[1]
        here = slice(first // TILE * across, -(-last // TILE) * across)
        ends = slice(here.start, here.stop + 1)
        return replace(
            self, shape=(last - first, self.shape[1]), kinds=self.kinds[here],
            starts=self.starts[ends], slots=self.slots[here],
            overflow_starts=self.overflow_starts[ends],
        )  # fmt: skip

    def columns(self, first: int, last: int) -> Tiles:
        """The tiles of columns [first, last), of which `first` begins a tile, to their ends.

        NumPy's alone; of values it has a copy.
        """
        down, across = self.grid
        numbers = np.arange(down * across).reshape(down, across)
        here = numbers[:, first // TILE : -(-last // TILE)].reshape(-1)
        last = min(-(-last // TILE) * TILE, self.shape[1])
        starts, values = _moved(self.starts, here)
        overflow_starts, overflow = _moved(self.overflow_starts, here)
        return replace(
            self, shape=(self.shape[0], last - first), kinds=self.kinds[here], starts=starts,
            values=self.values[values], slots=self.slots[here], overflow_starts=overflow_starts,
            overflow_values=self.overflow_values[overflow],
            overflow_places=self.overflow_places[overflow],
        )  # fmt: skip

    def map(self, function) -> Tiles:
        """The record with `function` applied to every array."""
        return replace(self, **{name: function(getattr(self, name)) for name in ARRAYS})

    def to_numpy(self) -> Tiles:
        return self.map(_arrays.to_numpy)


def _moved(starts: np.ndarray, here: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where the elements of some tiles begin once they stand together, and where each was."""
    counts = starts[here + 1] - starts[here]
    begins = starts_of(counts)
    return begins, np.repeat(starts[here] - begins[:-1], counts) + np.arange(begins[-1])


def grid_of(shape) -> tuple[int, int]:
    return -(-shape[0] // TILE), -(-shape[1] // TILE)


def values_of_kind(kinds: np.ndarray, nonzeros: np.ndarray) -> np.ndarray:
    """Stored values of each tile."""
    stored = np.zeros(kinds.shape, np.int64)
    stored[kinds == DENSE] = ELEMENTS
    stored[kinds == TWO_FOUR] = HALF
    bitmap = kinds == BITMAP
    stored[bitmap] = nonzeros[bitmap]
    return stored


def starts_of(counts: np.ndarray) -> np.ndarray:
    """Exclusive prefix sums with the total at the end."""
    starts = np.zeros(counts.size + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


@dataclass(frozen=True)
class TransposedTiles:
    """The tiles of a transposed matrix before they are built: those of the matrix itself."""

    source: Tiles
    nbytes = 0  # of its own

    @property
    def shape(self) -> tuple[int, int]:
        m, k = self.source.shape
        return k, m

    @property
    def dtype(self) -> _dtypes.DType:
        return self.source.dtype

    @property
    def kinds(self) -> Any:
        """On the device where the tiles will be."""
        return self.source.kinds


def check(tiles: Tiles) -> None:
    """Raise `FormatError` unless the NumPy arrays of `tiles` fit together.

    Everything that a kernel indexes with is checked, so that a damaged file
    cannot make one read out of bounds; and that nothing lies outside of the matrix, or
    twice in one place.
    """
    count = math.prod(tiles.grid)  # NumPy's product would wrap around
    _require(tiles.kinds.shape == (count,), "kinds", f"have {count} entries")
    _require(count == 0 or int(tiles.kinds.max()) <= BITMAP, "kinds", "be 0 to 3")
    coded = tiles.kinds >= TWO_FOUR
    _require(tiles.codes.shape == (int(coded.sum()), TILE), "codes", "have a row a coded tile")
    slots = np.where(coded, np.cumsum(coded) - 1, -1)
    _require(np.array_equal(tiles.slots, slots), "slots", "number the coded tiles")
    bitmap = tiles.kinds[coded] == BITMAP
    nonzeros = np.zeros(count, np.int64)
    nonzeros[tiles.kinds == BITMAP] = np.bitwise_count(tiles.codes[bitmap]).sum(1)
    starts = starts_of(values_of_kind(tiles.kinds, nonzeros))
    _require(np.array_equal(tiles.starts, starts), "starts", "be the running sum of the tiles")
    _require(tiles.values.shape == (starts[-1],), "values", f"have {starts[-1]} elements")
    shifts = np.arange(0, 64, 4, dtype=np.uint64)
    nibbles = tiles.codes[~bitmap][:, :, None] >> shifts & np.uint64(15)
    _require(np.isin(nibbles, _spec.LEGAL_CODES).all(), "codes", "hold the six legal 2:4 codes")
    _check_overflow(tiles, count)
    _check_edges(tiles)


def _check_overflow(tiles: Tiles, count: int) -> None:
    starts = tiles.overflow_starts
    _require(starts.shape == (count + 1,) and starts[0] == 0, "overflow_starts", "start at 0")
    held = np.diff(starts)
    allowed = np.where(tiles.kinds == TWO_FOUR, HALF, 0)
    _require(((held >= 0) & (held <= allowed)).all(), "overflow_starts", "belong to 2:4 tiles")
    for name in ("overflow_values", "overflow_places"):
        shape = getattr(tiles, name).shape
        _require(shape == (starts[-1],), name, f"have {starts[-1]} elements")
    _require((tiles.overflow_places < ELEMENTS).all(), "overflow_places", f"be below {ELEMENTS}")
    tile, places = np.repeat(np.arange(count), held), tiles.overflow_places.astype(np.int64)
    once = np.unique(tile * ELEMENTS + places).size == places.size
    _require(once and not _stored_too(tiles, tile, places).any(), "overflow_places",
             "hold one element each")  # fmt: skip


def _stored_too(tiles: Tiles, tile: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Whether the two values that a group keeps are at these places of 2:4 tiles, too."""
    groups = places // _spec.GROUP
    words = tiles.codes[tiles.slots[tile], places // TILE]
    codes = (words >> (4 * (groups % 16)).astype(np.uint64) & np.uint64(15)).astype(np.int64)
    pairs = tiles.starts[tile] + 2 * groups
    first = (codes & 3 == places % 4) & (tiles.values[pairs] != 0)
    return first | (codes >> 2 == places % 4) & (tiles.values[pairs + 1] != 0)


def _check_edges(tiles: Tiles) -> None:
    """Tiles at the right and lower edge hold zeros outside of the matrix."""
    (m, k), (down, across) = tiles.shape, tiles.grid
    numbers = np.arange(down * across).reshape(down, across)
    last_row = numbers[-1:] if m % TILE else numbers[:0]
    last_column = numbers[:, -1:] if k % TILE else numbers[:, :0]
    for number in np.union1d(last_row, last_column).tolist():
        i, j = divmod(number, across)
        filled = _filled(tiles, number)
        filled[: m - TILE * i, : k - TILE * j] = False
        _require(not filled.any(), "values", f"lie within its {m} rows and {k} columns")


def _filled(tiles: Tiles, number: int) -> np.ndarray:
    """Where a tile holds elements, (64, 64)."""
    kind, start = int(tiles.kinds[number]), int(tiles.starts[number])
    stored = tiles.values[start : int(tiles.starts[number + 1])] != 0
    filled = np.zeros((TILE, TILE), bool)
    if kind in (EMPTY, DENSE):
        return stored.reshape(TILE, TILE) if kind == DENSE else filled
    words = tiles.codes[int(tiles.slots[number])][:, None]
    shifts = np.arange(TILE, dtype=np.uint64)
    if kind == BITMAP:
        return (words >> shifts & np.uint64(1)).astype(bool)
    codes = (words >> shifts[::4] & np.uint64(15)).astype(np.intp)
    columns = shifts[::4, None].astype(np.intp) + np.stack([codes & 3, codes >> 2], axis=-1)
    row, group, slot = np.nonzero(stored.reshape(TILE, -1, 2))
    filled[row, columns[row, group, slot]] = True
    first, last = tiles.overflow_starts[number : number + 2]
    filled.reshape(-1)[tiles.overflow_places[first:last]] = True
    return filled


def _require(condition, name: str, rule: str) -> None:
    if not condition:
        raise FormatError(
            f"{name} of the hybrid matrix must {rule}; the data are damaged, build them anew "
            "with sparse24.hybrid"
        )
