"""How a product of the panel kernel is cut up: rows into units, columns and units into blocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparse24.kernels.hybrid_gather_plan import Chip, Units, units_of

MOST_LINES, LEAST_LINES = 4096, 512  # rows of b in shared memory
LINE_BYTES, LINE_COLUMNS = 16, 4  # of a plane
ZERO_LINES = 8  # after the lines of a plane, for padding
WARPS = {1: 24, 2: 20, 3: 16}  # of a block, by planes: as many as there are registers for
UNIT_WORDS = 4096  # of a unit, at most, if it has more than one row
WORD_BYTES = 6
STEP_WORDS = 128  # that a warp reads together

# Round figures of a multiprocessor of an H200, in seconds and bytes a second.  Measured over
# predicted time: 1.0 to 1.2 from 90 to 97 % zeros, up to 1.5 at 99 %, and 5 µs more below 20 µs.
START = 1.5e-6  # of a block
STEP = 6e-8  # of a warp that is alone
SHARED_RATE = 128 * 1.7e9 / 1.1  # with the lines that meet in a bank
L2_RATE = 45e9
SHOWN = 0.25  # of the time of L2 or shared memory that shows where the other takes longer


@dataclass(frozen=True)
class Config:
    """How a product is cut up.

    Attributes
    ----------
    planes : int
        Planes of a panel, of 4 columns each.
    shares : int
        Blocks that share the rows for the same columns.
    """

    planes: int
    shares: int

    @property
    def name(self) -> str:
        return f"p{self.planes}s{self.shares}"

    @property
    def width(self) -> int:
        """Columns of the result in a block."""
        return LINE_COLUMNS * self.planes

    @property
    def warps(self) -> int:
        return WARPS[self.planes]

    def groups(self, n: int) -> int:
        """Groups of columns."""
        return -(-n // self.width)

    def shared_memory(self, lines: int) -> int:
        return self.planes * (lines + ZERO_LINES) * LINE_BYTES


def lines_of(k: int, chip: Chip) -> int:
    """Rows of b in a panel: as many as leave room for three planes, if there are so many."""
    lines = LEAST_LINES
    while lines < min(k, MOST_LINES):
        if Config(max(WARPS), 1).shared_memory(2 * lines) > chip.most_shared:
            break
        lines *= 2
    return lines


def plan(lengths: np.ndarray) -> Units:
    """Units for rows of these lengths, the longest first; those with the most words come first."""
    units = units_of(lengths, UNIT_WORDS)
    order = np.argsort(-units.words, kind="stable")
    return Units(units.heights[order], units.firsts[order], units.words[order], units.matrix_rows)


def configure(units: Units, k: int, n: int, chip: Chip) -> Config:
    """The planes and shares that are expected to take the least time."""
    lines = lines_of(k, chip)
    configs = (
        Config(planes, shares)
        for planes in WARPS
        for shares in range(1, min(len(units), chip.multiprocessors) + 1)
    )
    fitting = (c for c in configs if c.shared_memory(lines) <= chip.most_shared)
    return min(fitting, key=lambda config: seconds(units, config, k, n, chip))


def seconds(units: Units, config: Config, k: int, n: int, chip: Chip) -> float:
    """Expected time of a product."""
    words = _busiest(units, config)
    steps = -(-len(units) // (config.shares * config.warps)) * units.words.mean() / STEP_WORDS
    shared, l2 = words * 4 * config.width / SHARED_RATE, words * WORD_BYTES / L2_RATE
    walk = max(max(shared, l2) + SHOWN * min(shared, l2), steps * STEP)
    return _waves(config, n, chip) * (START + _panel_bytes(config, k) / L2_RATE + walk)


def effort(units: Units, k: int, n: int, chip: Chip) -> tuple[float, float]:
    """Multiply-adds of the busiest multiprocessor times their number, and their bytes."""
    config = configure(units, k, n, chip)
    words, turns = _busiest(units, config), _waves(config, n, chip) * chip.multiprocessors
    return turns * words * config.width, turns * (words * WORD_BYTES + _panel_bytes(config, k))


def _busiest(units: Units, config: Config) -> float:
    """Words of the dearest share."""
    return float(max(units.words.sum() / config.shares, units.words.max(initial=0)))


def _waves(config: Config, n: int, chip: Chip) -> int:
    return -(-config.groups(n) * config.shares // chip.multiprocessors)


def _panel_bytes(config: Config, k: int) -> int:
    """What a block reads of b."""
    return 4 * k * config.width
