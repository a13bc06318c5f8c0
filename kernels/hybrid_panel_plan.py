"""How a product of the panel kernel is cut up: rows into units, columns and units into blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sparse24.kernels.chip import H200, Chip
from sparse24.kernels.hybrid_units import Units, units_of

MOST_LINES, LEAST_LINES = 4096, 512  # rows of b in shared memory
LINE_BYTES = 16  # of a plane
ZERO_LINES = 8  # after the lines of a plane, for padding
PLANES = (1, 2, 3)
UNIT_WORDS, SHORT_WORDS = 4096, 1024  # of a unit, at most, if it has more than one row
PLACE_BYTES = 2
STEP_WORDS = 128  # that a warp reads together

# Round figures of a multiprocessor of an H200, in seconds and bytes a second.  Products in float32
# take 1.0 to 1.2 times the predicted time at 90 to 97 % zeros, up to 1.5 times at 99 %; those that
# take less than 20 µs, 5 µs more.
START = 1.5e-6  # of a block
SHARED_RATE = 128 * 1.7e9 / 1.1  # a tenth is lost to bank conflicts
L2_RATE = 45e9
SHOWN = 0.25  # of the times of L2 and of shared memory, the part of the shorter that is not hidden


@dataclass(frozen=True)
class Form:
    """How the kernel takes elements of so many bytes.

    Attributes
    ----------
    itemsize : int
    height : int
        Rows of the tallest unit.
    warps : tuple of int
        Of a block, at most, with one, two and three planes: as many as there are registers for.
    step : float
        Seconds of a step of a warp that is alone.
    long_words : int
        Words of units that keep a warp waiting where there are few of them: a step takes half a
        microsecond while a multiprocessor has little else to do (docs/benchmarks/log_hybrid.rst).
    units : int
        Of a multiprocessor, into which such units are cut.
    """

    itemsize: int
    height: int
    warps: tuple[int, int, int]
    step: float
    long_words: int
    units: int

    @property
    def tensor(self) -> bool:
        """Whether tensor cores multiply."""
        return self.itemsize == 2

    @property
    def word_bytes(self) -> int:
        """An element and its place."""
        return self.itemsize + PLACE_BYTES


_FORMS = {
    2: Form(2, 16, (32, 24, 20), 1.2e-7, 2048, 1),  # the step is a guess
    4: Form(4, 32, (24, 20, 16), 6e-8, 1024, 3),
    8: Form(8, 32, (24, 20, 16), 6e-8, 1024, 3),
}


def form_of(itemsize: int) -> Form:
    """How the kernel takes elements of so many bytes."""
    return _FORMS[itemsize]


@dataclass(frozen=True)
class Config:
    """How a product is cut up.

    Attributes
    ----------
    planes : int
        Planes of a panel, of 16 bytes of columns each.
    shares : int
        Blocks that share the rows for the same columns.
    itemsize : int
        Bytes of an element.
    """

    planes: int
    shares: int
    itemsize: int = 4

    @property
    def name(self) -> str:
        return f"p{self.planes}s{self.shares}"

    @property
    def form(self) -> Form:
        return form_of(self.itemsize)

    @property
    def width(self) -> int:
        """Columns of the result in a block."""
        return LINE_BYTES // self.itemsize * self.planes

    @property
    def most_warps(self) -> int:
        """Warps that a block may have."""
        return self.form.warps[self.planes - 1]

    def rounds(self, units: int) -> int:
        """Units that a warp takes one after the other."""
        return -(-units // (self.shares * self.most_warps))

    def warps(self, units: int) -> int:
        """Warps of a block: as few as need no more rounds for its units, but half of the most."""
        mine = -(-units // self.shares)
        return max(-(-mine // self.rounds(units)), self.most_warps // 2)

    def groups(self, n: int) -> int:
        """Groups of columns."""
        return -(-n // self.width)

    def shared_memory(self, lines: int) -> int:
        return self.planes * (lines + ZERO_LINES) * LINE_BYTES


def lines_of(k: int, chip: Chip, itemsize: int = 4) -> int:
    """Rows of b in a panel: as many as leave room for three planes, if there are so many.

    Of 16-bit elements all rows, though they leave room for one plane: sums of panels do not meet.
    """
    if form_of(itemsize).tensor:
        return max(-(-k // LEAST_LINES), 1) * LEAST_LINES
    lines = LEAST_LINES
    while lines < min(k, MOST_LINES):
        if Config(max(PLANES), 1).shared_memory(2 * lines) > chip.most_shared:
            break
        lines *= 2
    return lines


def most_columns(most_shared: int) -> int:
    """The widest matrix of 16-bit elements for a chip with so much shared memory, in columns."""
    lines = most_shared // LINE_BYTES - ZERO_LINES
    return lines // LEAST_LINES * LEAST_LINES


def plan(
    lengths: np.ndarray, itemsize: int = 4, multiprocessors: int = H200.multiprocessors
) -> Units:
    """Units for rows of these lengths, the longest first; those with the most words come first.

    Long units of small matrices are cut shorter, so that each multiprocessor has some.
    """
    form = form_of(itemsize)
    units = _units(lengths, itemsize, UNIT_WORDS)
    words = units.words.sum()
    if words <= form.long_words * len(units):
        return units
    share = words / (form.units * multiprocessors)
    return _units(lengths, itemsize, min(max(share, SHORT_WORDS), UNIT_WORDS))


def _units(lengths: np.ndarray, itemsize: int, most_words: float) -> Units:
    least = most_words / form_of(itemsize).height  # shorter rows make units of this height
    units = units_of(np.maximum(lengths, least), most_words)
    words = units.heights * lengths[units.firsts]
    order = np.argsort(-words, kind="stable")
    return Units(units.heights[order], units.firsts[order], words[order], units.matrix_rows)


class Load(NamedTuple):
    """What is read of all units: how many they are, and words of all and of the dearest."""

    units: int
    words: float
    most: float


def load_of(units: Units) -> Load:
    """What is read of these units."""
    return Load(len(units), float(units.words.sum()), float(units.words.max(initial=0)))


def configure(units: Units, k: int, n: int, chip: Chip, itemsize: int = 4) -> Config:
    """The planes and shares that are expected to take the least time."""
    lines, load = lines_of(k, chip, itemsize), load_of(units)
    configs = (
        Config(planes, shares, itemsize)
        for planes in PLANES
        for shares in range(1, min(len(units), chip.multiprocessors) + 1)
    )
    fitting = (c for c in configs if c.shared_memory(lines) <= chip.most_shared)
    return min(fitting, key=lambda config: seconds(load, config, k, n, chip))


def seconds(load: Load, config: Config, k: int, n: int, chip: Chip) -> float:
    """Expected time of a product."""
    words, form = _busiest(load, config), config.form
    steps = config.rounds(load.units) * load.words / load.units / STEP_WORDS
    shared = words * config.itemsize * config.width / SHARED_RATE
    l2 = words * form.word_bytes / L2_RATE
    walk = max(max(shared, l2) + SHOWN * min(shared, l2), steps * form.step)
    return _waves(config, n, chip) * (START + _panel_bytes(config, k) / L2_RATE + walk)


def effort(units: Units, k: int, n: int, chip: Chip, itemsize: int = 4) -> tuple[float, float]:
    """Multiply-adds of the busiest multiprocessor times their number, and their bytes."""
    config = configure(units, k, n, chip, itemsize)
    words, turns = _busiest(load_of(units), config), _waves(config, n, chip) * chip.multiprocessors
    nbytes = words * config.form.word_bytes + _panel_bytes(config, k)
    return turns * words * config.width, turns * nbytes


def _busiest(load: Load, config: Config) -> float:
    """Words of the dearest share."""
    return max(load.words / config.shares, load.most)


def _waves(config: Config, n: int, chip: Chip) -> int:
    return -(-config.groups(n) * config.shares // chip.multiprocessors)


def _panel_bytes(config: Config, k: int) -> int:
    """What a block reads of b."""
    return config.itemsize * k * config.width
