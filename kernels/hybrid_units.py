"""Group rows of similar length into units that take about the same time.

Shared by the kernels that give the lanes of a warp one long row or many short ones.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

MOST_HEIGHT = 32  # rows of a unit, one for every lane


@dataclass(frozen=True, eq=False)
class Units:
    """Rows in units of like length, so many to a unit that units take about the same time.

    Attributes
    ----------
    heights : ndarray of int, shape (units,)
        Rows of a unit, a power of two; some have fewer.
    firsts : ndarray of int, shape (units,)
        Where a unit begins among the rows sorted by their non-zeros, the longest first.
    words : ndarray of int, shape (units,)
        What is read of a unit: all its rows are as long as the first.
    matrix_rows : int
    """

    heights: np.ndarray
    firsts: np.ndarray
    words: np.ndarray
    matrix_rows: int

    def __len__(self) -> int:
        return len(self.heights)

    @property
    def rows(self) -> float:
        """Rows of a unit, on average."""
        return self.matrix_rows / len(self)

    def take(self, order: np.ndarray) -> Units:
        """The units in another order."""
        columns = (self.heights[order], self.firsts[order], self.words[order])
        return Units(*columns, self.matrix_rows)

    def places(self) -> tuple[np.ndarray, np.ndarray]:
        """Unit of each of the sorted rows, and its line there."""
        sorted_units = np.argsort(self.firsts)
        ends = np.append(self.firsts[sorted_units][1:], self.matrix_rows)
        unit = np.repeat(sorted_units, ends - self.firsts[sorted_units])
        return unit, np.arange(self.matrix_rows) - self.firsts[unit]


def units_of(lengths: np.ndarray, most_words: float) -> Units:
    """Units of at most so many words, or of a single row, from sorted lengths of rows."""
    fits = most_words / np.maximum(lengths, 1)
    heights = 1 << np.log2(np.clip(fits, 1, MOST_HEIGHT)).astype(np.int64)
    changes = np.flatnonzero(np.diff(heights)) + 1
    bounds = [0, *changes.tolist(), len(lengths)]
    firsts = np.concatenate([np.arange(x, y, heights[x]) for x, y in itertools.pairwise(bounds)])
    return Units(heights[firsts], firsts, heights[firsts] * lengths[firsts], len(lengths))


def deal(units: Units, of_block: int) -> Units:
    """The units in an order in which so many neighbours, a block's, always take about the same.

    Blocks take one each in turn, the largest first, and back again; units of no row fill the last.
    """
    blocks = -(-len(units) // of_block)
    missing = blocks * of_block - len(units)
    heights = np.append(units.heights, np.ones(missing, np.int64))
    firsts = np.append(units.firsts, np.full(missing, units.matrix_rows))
    words = np.append(units.words, np.zeros(missing, np.int64))
    turns = np.argsort(-words, kind="stable").reshape(of_block, blocks)
    turns[1::2] = turns[1::2, ::-1]
    order = turns.T.ravel()
    return Units(heights, firsts, words, units.matrix_rows).take(order)
