"""The arrays of a block-hybrid matrix, and their meaning; `hybrid_checks` checks them.

The matrix is cut into tiles of 64 by 64, each kept in the cheapest of five ways:

=========  ==========================================  =========================
kind       values                                      codes, 64 rows of 8 bytes
=========  ==========================================  =========================
EMPTY      none                                        none
DENSE      all 4096, row-major                         none
TWO_FOUR   2048, two for each group of four, and an    a nibble a group, as in
           overflow list of what does not fit          :mod:`sparse24._spec`
BITMAP     the non-zeros, row-major                    a bit an element
SCATTERED  none; the overflow list has all non-zeros   none
=========  ==========================================  =========================

Tiles at the right and lower edge are filled up with zeros.  Tile (i, j) has
number ``i * grid[1] + j``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sparse24 import _arrays, _dtypes
from sparse24.kernels.hybrid_kinds import BITMAP, DENSE, SCATTERED, TWO_FOUR

TILE = 64
ELEMENTS = TILE * TILE
HALF = ELEMENTS // 2
TABLE_BYTES = 21  # of a tile, also of an empty one: its kind, two starts and its slot
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
        EMPTY, DENSE, TWO_FOUR, BITMAP or SCATTERED.
    starts : array of int64, shape (tiles + 1,)
        Where a tile's values begin.
    values : array, 1-D
        Stored elements of all tiles, in tile order.
    slots : array of int32, shape (tiles,)
        Row of `codes` of a TWO_FOUR or BITMAP tile, else -1.
    codes : array of uint64, shape (slots, 64)
        One word a tile row: 64 bits of a bitmap, or 16 nibbles of 2:4 codes.
    overflow_starts : array of int64, shape (tiles + 1,)
        Where the overflow of a TWO_FOUR or SCATTERED tile begins.
    overflow_values : array, 1-D
        Elements beyond two in their group of four; of a SCATTERED tile all non-zeros.
    overflow_places : array of uint16, 1-D
        Their places in the tile: ``64 * row + column``; of a SCATTERED tile ascending.
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

    is_listed = False  # but in tiles

    @property
    def source(self) -> Tiles:
        """These tiles; of `Transposed` what is stored of the other matrix."""
        return self

    @property
    def home(self) -> Any:
        """An array on the device of all of them."""
        return self.kinds

    @property
    def elements(self) -> tuple[Any, ...]:
        """Arrays of all stored elements, zeros among them."""
        return self.values, self.overflow_values

    @property
    def grid(self) -> tuple[int, int]:
        """Tiles down and across."""
        return grid_of(self.shape)

    @property
    def nbytes(self) -> int:
        return sum(getattr(self, name).nbytes for name in ARRAYS)

    @property
    def bytes_in_tiles(self) -> int:
        """Bytes that the tiles take: here all that is stored."""
        return self.nbytes

    def filled(self) -> int:
        """Tiles that are not empty; of a GPU this waits."""
        return int(np.count_nonzero(_arrays.to_numpy(self.kinds)))

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
    """Where the elements of some tiles begin once they are moved together, and where each was."""
    counts = starts[here + 1] - starts[here]
    begins = starts_of(counts)
    return begins, np.repeat(starts[here] - begins[:-1], counts) + np.arange(begins[-1])


def grid_of(shape) -> tuple[int, int]:
    return -(-shape[0] // TILE), -(-shape[1] // TILE)


def is_coded(kinds: np.ndarray) -> np.ndarray:
    """Which tiles have a row of codes."""
    return (kinds == TWO_FOUR) | (kinds == BITMAP)


def values_of_kind(kinds: np.ndarray, nonzeros: np.ndarray) -> np.ndarray:
    """Stored values of each tile."""
    stored = np.zeros(kinds.shape, np.int64)
    stored[kinds == DENSE] = ELEMENTS
    stored[kinds == TWO_FOUR] = HALF
    bitmap = kinds == BITMAP
    stored[bitmap] = nonzeros[bitmap]
    return stored


def overflow_of_kind(kinds: np.ndarray, nonzeros: np.ndarray, excess: np.ndarray) -> np.ndarray:
    """Elements of each tile in its overflow list; `excess` are those beyond two in a group."""
    listed = np.where(kinds == TWO_FOUR, excess, 0)
    return np.where(kinds == SCATTERED, nonzeros, listed)


def count_nonzero(tiles: Tiles) -> int:
    """The non-zeros of tiles of NumPy arrays."""
    zero = tiles.dtype.logical.type(0)
    return sum(int((held != zero).sum()) for held in tiles.elements)


def starts_of(counts: np.ndarray) -> np.ndarray:
    """Exclusive prefix sums with the total at the end."""
    starts = np.zeros(counts.size + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


@dataclass(frozen=True)
class Transposed:
    """A transposed matrix that is not built yet; holds what is stored of the matrix itself."""

    source: Any  # Tiles or ListedRows
    is_listed = False  # by now
    nbytes = 0  # of its own

    @property
    def shape(self) -> tuple[int, int]:
        m, k = self.source.shape
        return k, m

    @property
    def dtype(self) -> _dtypes.DType:
        return self.source.dtype

    @property
    def home(self) -> Any:
        """An array on the device of the matrix."""
        return self.source.home
