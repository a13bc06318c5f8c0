"""Parts and joins of hybrid matrices that cut no tile, on the CPU: tiles are copied as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from sparse24 import _arrays
from sparse24.formats import hybrid_tiles as ht
from sparse24.formats import indexing
from sparse24.formats.hybrid_listed import are_worth_listing

Run = tuple[ht.Tiles, int, int]  # the tiles [first, end) of a matrix


def joined(matrices: Sequence[Any], shape: tuple[int, int], axis: int) -> ht.Tiles | None:
    """Matrices of one type joined to one of this shape; None where tiles cannot stay as they are.

    That is where one ends within a tile, on a GPU, where rows would be stored, and where kinds were
    chosen for other numbers of columns.
    """
    parts = [matrix._tiles for matrix in matrices]
    if (
        not all(shape)
        or not all(map(_are_tiles_on_cpu, parts))
        or any(p.shape[axis] % ht.TILE for p in parts[:-1])
    ):
        return None
    hints = {matrix.n_hint for matrix in matrices}
    if len(hints) > 1 or are_worth_listing(sum(matrix.nnz for matrix in matrices), shape):
        return None
    if axis == 0:
        return _one_after_another([(part, 0, part.kinds.size) for part in parts], shape)
    bands = range(parts[0].grid[0])
    across = [(part, part.grid[1]) for part in parts]
    return _one_after_another([(p, i * n, (i + 1) * n) for i in bands for p, n in across], shape)


def part(h: Any, key: Any) -> tuple[ht.Tiles, int] | None:
    """The tiles of a part by slices and its number of non-zeros; None as of `joined`."""
    tiles, entries = h._tiles, key if isinstance(key, tuple) else (key,)
    if not _are_tiles_on_cpu(tiles) or len(entries) > 2:
        return None
    if not all(map(indexing.is_slice, entries)):
        return None
    ends = [slice(*x.indices(n)[:2]) for x, n in zip(entries, tiles.shape)]
    ends += [slice(0, n) for n in tiles.shape[len(ends) :]]
    if not all(map(_cuts_no_tile, ends, tiles.shape)):
        return None
    rows, columns = ends
    shape = (rows.stop - rows.start, columns.stop - columns.start)
    first, end = columns.start // ht.TILE, -(-columns.stop // ht.TILE)
    starts = range(rows.start // ht.TILE, -(-rows.stop // ht.TILE))
    across = tiles.grid[1]
    taken = _one_after_another(
        [(tiles, i * across + first, i * across + end) for i in starts], shape
    )
    nnz = ht.count_nonzero(taken)
    return None if are_worth_listing(nnz, shape) else (taken, nnz)


def _cuts_no_tile(taken: slice, size: int) -> bool:
    """Whether a slice of an axis takes whole tiles, the last of which may be shorter."""
    at_end = taken.stop % ht.TILE == 0 or taken.stop == size
    return taken.start % ht.TILE == 0 and at_end and taken.start < taken.stop


def _are_tiles_on_cpu(tiles: Any) -> bool:
    return isinstance(tiles, ht.Tiles) and not _arrays.is_cupy(tiles.kinds)


def _one_after_another(runs: Sequence[Run], shape: tuple[int, int]) -> ht.Tiles:
    """Runs of tiles as those of a matrix of this shape, in new arrays."""
    kinds = np.concatenate([tiles.kinds[first:end] for tiles, first, end in runs])
    coded = ht.is_coded(kinds)
    return ht.replace(
        runs[0][0],
        shape=shape,
        kinds=kinds,
        starts=_starts(runs, lambda tiles: tiles.starts),
        values=_elements(runs, lambda tiles: (tiles.starts, tiles.values)),
        slots=np.where(coded, np.cumsum(coded) - 1, -1).astype(np.int32),
        codes=np.concatenate([tiles.codes[_slots(tiles.slots[i:j])] for tiles, i, j in runs]),
        overflow_starts=_starts(runs, lambda tiles: tiles.overflow_starts),
        overflow_values=_elements(runs, lambda t: (t.overflow_starts, t.overflow_values)),
        overflow_places=_elements(runs, lambda t: (t.overflow_starts, t.overflow_places)),
    )


def _starts(runs: Iterable[Run], of: Callable[[ht.Tiles], np.ndarray]) -> np.ndarray:
    """Where the elements of each tile begin."""
    counts = [np.diff(of(tiles)[first : end + 1]) for tiles, first, end in runs]
    return ht.starts_of(np.concatenate(counts))


def _elements(runs: Iterable[Run], of: Callable[[ht.Tiles], tuple[Any, Any]]) -> np.ndarray:
    """The elements of all tiles, which each matrix has in the order of its tiles."""
    pieces = []
    for tiles, first, end in runs:
        starts, elements = of(tiles)
        pieces.append(elements[starts[first] : starts[end]])
    return np.concatenate(pieces)


def _slots(slots: np.ndarray) -> np.ndarray:
    """The rows of codes of some tiles."""
    return slots[slots >= 0]
