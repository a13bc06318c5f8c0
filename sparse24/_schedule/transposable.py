"""Masks that are 2:4 along both axes, by 4x4 tiles."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparse24 import _spec
from sparse24._schedule.arrays import (
    as_matrix,
    check_tiles,
    level,
    namespace,
    plain,
    split_tiles,
    working,
)
from sparse24._schedule.largest import on_host
from sparse24._schedule.patterns import NM, Pattern, by_kernel
from sparse24._select import best_of_tiles

Array = Any


def _masks() -> tuple[tuple[int, ...], ...]:
    """The 90 masks of a 4x4 tile with two in each row and column, as four indices into `PAIRS`.

    In the order of the masks read as bits ``4 * row + column``: ties go to the first.
    """
    pairs = range(len(_spec.PAIRS))
    masks = (
        rows
        for rows in itertools.product(pairs, repeat=4)
        if all(sum(column in _spec.PAIRS[r] for r in rows) == 2 for column in range(4))
    )

    def bits(rows):
        columns = [(row, column) for row, pair in enumerate(rows) for column in _spec.PAIRS[pair]]
        return sum(1 << 4 * row + column for row, column in columns)

    return tuple(sorted(masks, key=bits))


MASKS = _masks()


@dataclass(frozen=True)
class Transposable24(Pattern):
    """2:4 along both axes: the best of the 90 masks of every 4x4 tile.

    Layers must be whole tiles: multiples of 4 by 4.  Leading axes of a layer count as rows, as in
    `Block`.
    Sums are in float32, where a NaN counts as a sixteenth of the largest number, as in
    ``sparse24.mask(x, transposable=True)``.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24 import schedule
    >>> scores = np.arange(16.0).reshape(4, 4)
    >>> schedule.Transposable24().mask(scores, 0.5).astype(int)
    array([[0, 0, 1, 1],
           [0, 0, 1, 1],
           [1, 1, 0, 0],
           [1, 1, 0, 0]])
    """

    grows = False
    fixed = True

    def check(self, sparsity):
        NM(2, 4).check(sparsity)

    def check_shape(self, shape):
        check_tiles(shape, (4, 4), "Transposable24()")

    def pool(self, scores):
        xp = namespace(scores)
        scores = xp.astype(working(scores), xp.float32, copy=False)
        nan = level(scores, float(xp.finfo(xp.float32).max) / 16)
        return xp.where(xp.isnan(scores), nan, scores)

    def of_magnitudes(self, weight):
        mask = by_kernel(as_matrix(plain(weight)), transposable=True)  # tiles as in `choose`
        return mask if mask is None else namespace(mask).reshape(mask, tuple(weight.shape))

    def kept(self, shape, sparsity):
        return math.prod(shape) // (1 if sparsity == 0 else 2)

    def choose(self, units, sparsity, turnover=None):
        return on_host(self._chosen, units)

    def _chosen(self, units):
        xp = namespace(units)
        matrix = as_matrix(units)
        if isinstance(units, np.ndarray) and units.min(initial=0) >= 0:  # it takes magnitudes
            return best_of_tiles(matrix).reshape(units.shape)
        tiles = split_tiles(matrix, (4, 4))
        row_pairs = [
            [tiles[..., 4 * r + i] + tiles[..., 4 * r + j] for i, j in _spec.PAIRS]
            for r in range(4)
        ]
        best, winner = None, None
        for number, (a, b, c, d) in enumerate(MASKS):
            total = (row_pairs[0][a] + row_pairs[1][b]) + (row_pairs[2][c] + row_pairs[3][d])
            if best is None:
                best, winner = total, xp.zeros_like(total, dtype=xp.int8)
                continue
            better = total > best  # a tie stays with the earlier mask
            best = xp.where(better, total, best)
            winner = xp.where(better, xp.full_like(winner, number), winner)
        return xp.reshape(self._spread(xp, winner, matrix.shape), units.shape)

    @staticmethod
    def _spread(xp, winner: Array, shape) -> Array:
        """The mask of each tile's winner, by comparison with the masks that hold (r, c)."""
        columns = []
        for r, c in itertools.product(range(4), repeat=2):
            holds = xp.zeros_like(winner, dtype=xp.bool)
            for number, rows in enumerate(MASKS):
                if c in _spec.PAIRS[rows[r]]:
                    holds = holds | (winner == number)
            columns.append(holds)
        tiles = xp.reshape(xp.stack(columns, axis=-1), (*winner.shape, 4, 4))
        return xp.reshape(xp.permute_dims(tiles, (0, 2, 1, 3)), shape)
