"""How a product of the gather kernel is cut up: rows into units, and units into blocks."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

PANEL = 4096  # columns of the matrix that a block reads b for
PANEL_BYTES = PANEL * 16
MOST_HELD = 2  # panels that fit into shared memory beside the sums
MOST_PANELS, MOST_CLUSTER = 16, 8  # of a matrix; blocks
MOST_WARPS = 32
MOST_WIDE_WARPS = 24  # with two planes, which need more registers
MOST_HEIGHT = 32  # rows of a unit, one for every lane
START_ROWS = 48  # of the matrix, as dear as to begin a block and read its panel
START_UNITS = 0.3  # the same for blocks that run at once
SHARING = 0.03  # to add the sums of lanes that share a row, of what a unit of one row takes
WORD_BYTES = 4


class Chip(NamedTuple):
    """What of a GPU decides how products are cut up."""

    multiprocessors: int
    most_shared: int  # bytes of shared memory of a block


H200 = Chip(132, 227 << 10)


@dataclass(frozen=True)
class Config:
    """How a product with few columns is cut up.

    Attributes
    ----------
    columns : int
        Columns of the result in a plane of a block: 1, 2, 4 or 8.
    units, group : int
        Units of a block, and warps of a unit.
    held : int
        Panels of a block.
    planes : int
        Planes of a panel.
    """

    columns: int
    units: int
    group: int
    held: int = 1
    planes: int = 1

    @property
    def name(self) -> str:
        return f"c{self.columns}u{self.units}g{self.group}h{self.held}p{self.planes}"

    @property
    def width(self) -> int:
        """Columns of the result in a block."""
        return self.columns * self.planes

    @property
    def shared_memory(self) -> int:
        return PANEL_BYTES * (1 + self.held * self.planes)


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
        """Of a unit, on average."""
        return self.matrix_rows / len(self)

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
    return Units(heights[order], firsts[order], words[order], units.matrix_rows)


def plan(lengths: np.ndarray, panels: int, chip: Chip = H200) -> Units:
    """The units with which a product with one column takes the least time.

    Parameters
    ----------
    lengths : ndarray of int
        Non-zeros of every row, the longest first.
    """
    most = MOST_HEIGHT * max(int(lengths[0]), 1)
    least = max(float(lengths.mean()), 1.0)
    steps = range(1 + int(2 * np.log2(most / least)))  # of half a power of two
    ways = (dealt(lengths, most / 2 ** (step / 2), panels, chip) for step in steps)
    units, _ = min(ways, key=lambda way: _seconds(way[0], way[1], panels, chip))
    return units


def dealt(
    lengths: np.ndarray, most_words: float, panels: int, chip: Chip = H200
) -> tuple[Units, Config]:
    """Units of at most so many words, as blocks take them in a product with one column."""
    units = units_of(lengths, most_words)
    config = configure(units, panels, 1, chip)
    return deal(units, config.units), config


def _seconds(units: Units, config: Config, panels: int, chip: Chip) -> float:
    """Relative time of a product with one column."""
    busiest, waves = _busiest(units, config, panels, 1, chip)
    idle = MOST_WARPS / (config.units * config.group)
    start = waves * START_UNITS * units.words.mean()
    return (busiest * idle + start) * (1 + SHARING * MOST_HEIGHT / units.rows)


def _busiest(
    units: Units, config: Config, panels: int, n: int, chip: Chip
) -> tuple[float, int]:
    """Words of the busiest multiprocessor, and how many blocks it takes one after the other."""
    blocks = np.add.reduceat(units.words, np.arange(0, len(units), config.units))
    waves = -(-len(blocks) // _at_once(config, panels, n, chip))
    return max(waves * config.units * units.words.mean(), blocks.max()), waves


def _at_once(config: Config, panels: int, n: int, chip: Chip) -> int:
    """Blocks of different rows that run at the same time."""
    shares = -(-panels // config.held) * -(-n // config.width)
    return max(1, chip.multiprocessors // shares)


def effort(units: Units, k: int, n: int, chip: Chip) -> tuple[float, float]:
    """Words of the busiest multiprocessor times their number, and their bytes."""
    panels = -(-k // PANEL)
    config = configure(units, panels, n, chip)
    busiest, _ = _busiest(units, config, panels, n, chip)
    words = busiest * _at_once(config, panels, n, chip)
    return words, WORD_BYTES * words


def width(n: int) -> int:
    """Columns of a plane."""
    return next((c for c in (1, 2, 4) if c >= n), 8)


def configure(units: Units, panels: int, n: int, chip: Chip = H200) -> Config:
    """Units of a block such that blocks fill whole waves."""
    wide = n > 8 and panels <= MOST_CLUSTER and chip.most_shared >= 3 * PANEL_BYTES
    held, planes = (1, 2) if wide else (min(panels, MOST_HELD), 1)
    warps = MOST_WIDE_WARPS if wide else MOST_WARPS
    start = START_ROWS / units.rows

    def seconds(config: Config) -> float:
        waves = -(-len(units) // config.units) / _at_once(config, panels, n, chip)
        idle = warps / (config.units * config.group)
        return np.ceil(waves) * (config.units * idle + start)

    configs = (
        Config(width(n), of_block, warps // of_block // held * held, held, planes)
        for of_block in range(1, warps // held + 1)
    )
    return min(configs, key=seconds)
