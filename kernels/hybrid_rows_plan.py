"""How a product of the rows kernel is cut up: rows into slices, slices into blocks and warps."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from sparse24._dtypes import DType
from sparse24.kernels.chip import H200
from sparse24.kernels.hybrid_units import MOST_HEIGHT, Units, deal, units_of

SLICE = MOST_HEIGHT  # lines, one for every lane
STEP = 4  # entries of a line that are read together
WARPS = 32  # of a block
# Blocks of few warps start beside those of the product before, but copy b slowly: up to so many
# rows of b, and entries of a multiprocessor.
FEW_WARPS, FEW_ROWS, FEW_ENTRIES = 8, 1024, 1000
MOST_COLUMNS = 4  # of b, each added up by a warp of its own
START = 2.0  # entries, guessed to take as long as a block needs for each row of b


@dataclass(frozen=True, eq=False)
class Plan:
    """Slices in the order of blocks, the longest block first.

    Attributes
    ----------
    units : Units
        The rows of every slice.
    per_block : int
        Slices of a block.
    warps : int
        Of a block.
    """

    units: Units
    per_block: int
    warps: int

    @functools.cached_property
    def steps(self) -> np.ndarray:
        """Steps of every slice."""
        return -(-self.units.words // (SLICE * STEP))

    @functools.cached_property
    def ends(self) -> np.ndarray:
        """First step of every slice, and the number of all steps."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.steps)])

    @property
    def of_blocks(self) -> np.ndarray:
        """Steps of every block."""
        return self.steps.reshape(-1, self.per_block).sum(1)

    def most_steps(self) -> np.ndarray:
        """Fewest steps, for every block, that may be the most of its warps."""
        steps = self.steps.reshape(-1, self.per_block)
        low, high = np.maximum(1, -(-self.of_blocks // self.warps)), np.maximum(1, steps.max(1))
        while (low < high).any():  # halve what is left between too few and enough
            middle = (low + high) // 2
            short = (-(-steps // middle[:, None])).sum(1) > self.warps
            low, high = np.where(short, middle + 1, low), np.where(short, high, middle)
        return high

    def parts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """First warp of every slice; slice of every warp; and the step at which the warp begins."""
        steps = self.steps.reshape(-1, self.per_block)
        shares = -(-steps // self.most_steps()[:, None])
        shares[:, 0] += self.warps - shares.sum(1)
        shares = shares.ravel()
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(shares)])
        of = np.repeat(np.arange(len(shares)), shares)
        part = np.arange(len(of)) - starts[of]
        begins = self.ends[of] + self.steps[of] * part // shares[of]
        return starts, of, np.append(begins, self.ends[-1])


def plan(lengths: np.ndarray, k: int, multiprocessors: int = H200.multiprocessors) -> Plan:
    """The slices with which a product takes the least time.

    Parameters
    ----------
    lengths : ndarray of int
        Entries of every row, the longest first.
    """
    few = k <= FEW_ROWS and lengths.sum() <= FEW_ENTRIES * multiprocessors
    warps = FEW_WARPS if few else WARPS
    best, fewest = None, (np.inf, 0)
    for least, units, per_block in _ways(lengths, k, multiprocessors, warps):
        if least > fewest[0]:
            break
        way = dealt(units, per_block, warps)
        seconds = _seconds(way, k, multiprocessors)
        if seconds < fewest:
            best, fewest = way, seconds
    return best  # type: ignore[return-value]  # there is always a way


def _ways(
    lengths: np.ndarray, k: int, multiprocessors: int, warps: int
) -> list[tuple[float, Units, int]]:
    """Slices, and how many to a block; sorted by the least time that each can take."""
    most, least = SLICE * max(int(lengths[0]), 1), max(float(lengths.mean()), 1.0)
    found, seen = [], set()
    for halves in range(1 + int(2 * np.log2(most / least))):
        units = units_of(lengths, most / 2 ** (halves / 2))
        if len(units) in seen:  # of the same rows as before
            continue
        seen.add(len(units))
        for per_block in range(1, warps // MOST_COLUMNS + 1):
            rounds = -(-len(units) // per_block // multiprocessors)
            even = float(units.words.sum()) / multiprocessors
            found.append((even + rounds * START * k, units, per_block))
    return sorted(found, key=lambda way: way[0])


def dealt(units: Units, per_block: int, warps: int = WARPS) -> Plan:
    """Even shares for blocks of so many slices."""
    units = deal(units, per_block)
    made = Plan(units, per_block, warps)
    blocks = np.argsort(-made.of_blocks, kind="stable")
    order = np.arange(len(units)).reshape(-1, per_block)[blocks].ravel()
    return Plan(units.take(order), per_block, warps)


def _seconds(way: Plan, k: int, multiprocessors: int) -> tuple[float, int]:
    """Relative time of a product, if multiprocessors take one block after the other.

    The steps of the longest block decide between plans that are equal otherwise.
    """
    blocks = way.most_steps() * (SLICE * STEP * way.warps) + START * k
    return float(blocks[::multiprocessors].sum()), int(way.of_blocks[0])


def effort(way: Plan, dtype: DType, multiprocessors: int) -> tuple[float, float]:
    """Entries of the busiest multiprocessor times their number, and their bytes."""
    blocks = way.of_blocks * (SLICE * STEP)
    entries = float(max(blocks.sum(), multiprocessors * blocks[0]))
    return entries, entries * (dtype.itemsize + 1)
