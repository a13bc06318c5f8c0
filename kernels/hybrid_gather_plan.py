"""How a product of the gather kernel is cut up: rows into units, and units into blocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparse24.kernels.chip import H200, Chip
from sparse24.kernels.hybrid_units import MOST_HEIGHT, Units, deal, units_of

PANEL = 4096  # columns of the matrix that a block reads b for
PANEL_BYTES = PANEL * 16
MOST_HELD = 2  # panels that fit into shared memory beside the sums
MOST_PANELS, MOST_CLUSTER = 16, 8  # panels of a matrix; blocks of a cluster
MOST_WARPS = 32
WIDE, WIDE_WARPS = 16, 24  # columns that take so many registers that 24 warps have them
# Warps of a block where fewer than 32 take less time, by columns: up to so many words of a
# multiprocessor, from so many to so many.  A block of few warps starts sooner, and beside the one
# before it.  By 4 columns two blocks of 24 warps have room at once, by 8 two of 20; such a launch
# may put two blocks on one multiprocessor and none on another, and then takes up to 1.5 times as
# long (docs/benchmarks/log_hybrid.rst, "Gather: blocks that leave no room for another").
FEWER_WARPS = {
    1: ((2000, 8, 8), (4500, 20, 24), (12000, 25, 32)),
    2: ((2000, 8, 8), (4500, 20, 24), (12000, 25, 32)),
    4: ((16000, 25, 32),), 8: ((40000, 24, 32),),
}  # fmt: skip
START_ROWS = 48  # rows of the matrix that take as long as to begin a block and read its panel
START_UNITS = 0.3  # the same in units, for blocks that run at once
SHARING = 0.03  # to add the sums of lanes that share a row, relative to the time of a unit
WORD_BYTES = 4
STEP_BYTES = 32 * 4 * WORD_BYTES  # of a warp, whose lanes take four words each
# Steps of a warp on their way, before b and in all, by columns: docs/benchmarks/log_hybrid.rst.
RINGS = {1: (3, 4), 2: (2, 4), 4: (2, 3), 8: (2, 3), 16: (3, 5)}
LEAST_LINE = 4  # bytes: a line of one element is kept in single precision


@dataclass(frozen=True)
class Config:
    """How a product with few columns is cut up.

    Attributes
    ----------
    columns : int
        Columns of the result in a block: 1, 2, 4, 8 or 16.
    units, group : int
        Units of a block, and warps of a unit.
    held : int
        Panels of a block.
    """

    columns: int
    units: int
    group: int
    held: int = 1

    @property
    def name(self) -> str:
        return f"c{self.columns}u{self.units}g{self.group}h{self.held}"

    @property
    def early(self) -> int:
        """Steps of a warp that are asked for before b."""
        return RINGS[self.columns][0]

    @property
    def ahead(self) -> int:
        """Steps of a warp on their way.  The sums of a unit take their place, and must fit."""
        return RINGS[self.columns][1]

    @property
    def shared_memory(self) -> int:
        panels = self.held * PANEL * max(2 * self.columns, LEAST_LINE)
        return panels + STEP_BYTES * self.ahead * self.units * self.group


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
    least, _ = warps_of(units, config.columns, chip)
    idle = max(1.0, least / (config.units * config.group))
    start = waves * START_UNITS * units.words.mean()
    return (busiest * idle + start) * (1 + SHARING * MOST_HEIGHT / units.rows)


def _busiest(
    units: Units, config: Config, panels: int, n: int, chip: Chip
) -> tuple[float, int]:  # fmt: skip
    """Words of the busiest multiprocessor, and how many blocks it takes one after the other."""
    blocks = np.add.reduceat(units.words, np.arange(0, len(units), config.units))
    waves = -(-len(blocks) // _at_once(config, panels, n, chip))
    return max(waves * config.units * units.words.mean(), blocks.max()), waves


def _at_once(config: Config, panels: int, n: int, chip: Chip) -> int:
    """Blocks of different rows that run at the same time."""
    shares = -(-panels // config.held) * -(-n // config.columns)
    return max(1, chip.multiprocessors // shares)


def effort(units: Units, k: int, n: int, chip: Chip) -> tuple[float, float]:
    """Words of the busiest multiprocessor times their number, and their bytes."""
    panels = -(-k // PANEL)
    config = configure(units, panels, n, chip)
    busiest, _ = _busiest(units, config, panels, n, chip)
    words = busiest * _at_once(config, panels, n, chip)
    return words, WORD_BYTES * words


def width(n: int, panels: int, chip: Chip = H200) -> int:
    """Columns of a block."""
    wide = panels <= MOST_CLUSTER and chip.most_shared >= (1 + MOST_HELD) * PANEL_BYTES
    return next((c for c in (1, 2, 4, 8) if c >= n), WIDE if wide else 8)


def warps_of(units: Units, columns: int, chip: Chip) -> tuple[int, int]:
    """Warps that a block has, if they divide: the least, and the most."""
    if columns == WIDE:
        return WIDE_WARPS, WIDE_WARPS
    words = units.words.sum() / chip.multiprocessors
    fewer = ((least, most) for limit, least, most in FEWER_WARPS[columns] if words <= limit)
    return next(fewer, (MOST_WARPS, MOST_WARPS))


def group_of(of_block: int, held: int, least: int, most: int) -> int:
    """Warps of each unit of a block, a multiple of `held`, for at least so many in all."""
    group = -(-least // (of_block * held)) * held
    return group if group * of_block <= most else most // of_block // held * held


def configure(units: Units, panels: int, n: int, chip: Chip = H200) -> Config:
    """Units of a block such that blocks fill whole waves."""
    columns = width(n, panels, chip)
    held = 1 if columns == WIDE else min(panels, MOST_HELD)
    least, most = warps_of(units, columns, chip)
    start = START_ROWS / units.rows

    def seconds(config: Config) -> float:
        waves = -(-len(units) // config.units) / _at_once(config, panels, n, chip)
        idle = max(1.0, least / (config.units * config.group))
        return np.ceil(waves) * (config.units * idle + start)

    configs = (
        Config(columns, of_block, group_of(of_block, held, least, most), held)
        for of_block in range(1, most // held + 1)
    )
    return min(configs, key=seconds)
