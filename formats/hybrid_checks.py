"""Checks that the arrays of a block-hybrid matrix fit together, which a file or a caller gives."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from sparse24 import _arrays, _spec
from sparse24._errors import FormatError
from sparse24._storage import MOST_OF_AN_AXIS
from sparse24.formats.hybrid_listed import ListedRows
from sparse24.formats.hybrid_tiles import (
    ELEMENTS,
    HALF,
    TILE,
    Tiles,
    is_coded,
    starts_of,
    values_of_kind,
)
from sparse24.kernels.hybrid_kinds import BITMAP, DENSE, SCATTERED, TWO_FOUR

# Elements that are looked at together: meanwhile each takes some fifty bytes.
PORTION = 2**20


def check(tiles: Tiles) -> None:
    """Raise `FormatError` unless the NumPy arrays of `tiles` fit together.

    Everything that a kernel indexes with is checked, so that a damaged file
    cannot make one read out of bounds; and that nothing lies outside of the matrix, or
    twice in one place.
    """
    count = math.prod(tiles.grid)  # NumPy's product would wrap around
    _require(tiles.kinds.shape == (count,), "kinds", f"have {count} entries")
    _require(count == 0 or int(tiles.kinds.max()) <= SCATTERED, "kinds", "be 0 to 4")
    coded = is_coded(tiles.kinds)
    _require(tiles.codes.shape == (int(coded.sum()), TILE), "codes", "have a row a coded tile")
    slots = np.where(coded, np.cumsum(coded) - 1, -1)
    _require(np.array_equal(tiles.slots, slots), "slots", "number the coded tiles")
    bitmap = tiles.kinds[coded] == BITMAP
    nonzeros = np.zeros(count, np.int64)
    nonzeros[tiles.kinds == BITMAP] = np.bitwise_count(tiles.codes[bitmap]).sum(1)
    starts = starts_of(values_of_kind(tiles.kinds, nonzeros))
    _require(np.array_equal(tiles.starts, starts), "starts", "be the running sum of the tiles")
    _require(tiles.values.shape == (starts[-1],), "values", f"have {starts[-1]} elements")
    _check_codes(tiles, np.flatnonzero(~bitmap))
    _check_overflow(tiles, count)
    _check_edges(tiles)


def _check_codes(tiles: Tiles, slots: np.ndarray) -> None:
    """Check the codes of 2:4 tiles, which are in these slots."""
    shifts = np.arange(0, 64, 4, dtype=np.uint64)
    at_once = PORTION // ELEMENTS
    for i in range(0, slots.size, at_once):
        nibbles = tiles.codes[slots[i : i + at_once]][:, :, None] >> shifts & np.uint64(15)
        legal = np.isin(nibbles, _spec.LEGAL_CODES).all()
        _require(legal, "codes", "hold the six legal 2:4 codes")


def _runs(starts: np.ndarray) -> Iterator[tuple[int, int]]:
    """Runs of the tiles or rows that begin there, of about `PORTION` elements: first, end."""
    edges = np.searchsorted(starts, np.arange(PORTION, starts[-1], PORTION))
    return pairwise(np.unique([0, *edges.tolist(), starts.size - 1]).tolist())


def _check_overflow(tiles: Tiles, count: int) -> None:
    starts = tiles.overflow_starts
    _require(starts.shape == (count + 1,) and starts[0] == 0, "overflow_starts", "start at 0")
    held = np.diff(starts)
    allowed = np.where(tiles.kinds == TWO_FOUR, HALF, 0)
    allowed[tiles.kinds == SCATTERED] = ELEMENTS
    _require(((held >= 0) & (held <= allowed)).all(), "overflow_starts",
             "belong to 2:4 and scattered tiles")  # fmt: skip
    for name in ("overflow_values", "overflow_places"):
        shape = getattr(tiles, name).shape
        _require(shape == (starts[-1],), name, f"have {starts[-1]} elements")
    for first, end in _runs(starts):
        tile = np.repeat(np.arange(first, end), held[first:end])
        places = tiles.overflow_places[starts[first] : starts[end]].astype(np.int64)
        _check_places(tiles, tile, places)


def _check_places(tiles: Tiles, tile: np.ndarray, places: np.ndarray) -> None:
    """Check some places of overflow; `tile` has the number of the tile of each."""
    _require((places < ELEMENTS).all(), "overflow_places", f"be below {ELEMENTS}")
    (m, k), across = tiles.shape, tiles.grid[1]
    rows, columns = tile // across * TILE + places // TILE, tile % across * TILE + places % TILE
    within = (rows < m).all() and (columns < k).all()
    _require(within, "overflow_places", f"lie within its {m} rows and {k} columns")
    alone = tiles.kinds[tile] == SCATTERED
    ascend = (np.diff((tile * ELEMENTS + places)[alone]) > 0).all()
    _require(ascend, "overflow_places", "ascend in scattered tiles")
    tile, places = tile[~alone], places[~alone]
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
    """Check that values of tiles at the right and lower edge are zeros outside of the matrix."""
    (m, k), (down, across) = tiles.shape, tiles.grid
    numbers = np.arange(down * across).reshape(down, across)
    last_row = numbers[-1:] if m % TILE else numbers[:0]
    last_column = numbers[:, -1:] if k % TILE else numbers[:, :0]
    at_edge = np.union1d(last_row, last_column)
    for number in at_edge[np.diff(tiles.starts)[at_edge] > 0].tolist():
        i, j = divmod(number, across)
        filled = _filled(tiles, number)
        filled[: m - TILE * i, : k - TILE * j] = False
        _require(not filled.any(), "values", f"lie within its {m} rows and {k} columns")


def _filled(tiles: Tiles, number: int) -> np.ndarray:
    """Boolean (64, 64): where a tile with values holds some that are not 0.0.

    Readers of rows pass over zero bits alone, so that -0.0 counts here, too.
    """
    kind, start = int(tiles.kinds[number]), int(tiles.starts[number])
    values = tiles.values[start : int(tiles.starts[number + 1])]
    stored = values.view(tiles.dtype.storage) != 0
    if kind == DENSE:
        return stored.reshape(TILE, TILE)
    words = tiles.codes[int(tiles.slots[number])][:, None]
    shifts = np.arange(TILE, dtype=np.uint64)
    if kind == BITMAP:
        return (words >> shifts & np.uint64(1)).astype(bool)
    codes = (words >> shifts[::4] & np.uint64(15)).astype(np.intp)
    columns = shifts[::4, None].astype(np.intp) + np.stack([codes & 3, codes >> 2], axis=-1)
    row, group, slot = np.nonzero(stored.reshape(TILE, -1, 2))
    filled = np.zeros((TILE, TILE), bool)
    filled[row, columns[row, group, slot]] = True
    return filled


def check_rows(listed: ListedRows) -> None:
    """Raise `FormatError` unless the NumPy arrays fit together, as kernels index with them."""
    (m, k), (starts, columns, bits) = listed.shape, listed.csr
    _require(max(m, k) <= MOST_OF_AN_AXIS, "the shape", f"have sides of at most {MOST_OF_AN_AXIS}")
    _require(starts.shape == (m + 1,) and starts[0] == 0, "starts", f"begin {m} rows, at 0")
    _require(bool((np.diff(starts) >= 0).all()), "starts", "ascend")
    _require(columns.shape == (starts[-1],), "columns", f"have {starts[-1]} entries")
    _require(bits.shape == (starts[-1],), "values", f"have {starts[-1]} elements")
    _require(bool((columns < k).all()), "columns", f"be below {k}")
    for first, end in _runs(starts):
        rows = np.repeat(np.arange(first, end), np.diff(starts[first : end + 1]))
        places = rows * k + columns[starts[first] : starts[end]]
        _require(bool((np.diff(places) > 0).all()), "columns", "ascend in each row")
    nonzero = _arrays.not_zero(bits.view(listed.dtype.logical), listed.dtype)
    _require(bool(nonzero.all()), "values", "not be zero")


def _require(condition, name: str, rule: str) -> None:
    if not condition:
        raise FormatError(
            f"{name} of the hybrid matrix must {rule}; the data are damaged, build them anew "
            "with sparse24.hybrid"
        )
