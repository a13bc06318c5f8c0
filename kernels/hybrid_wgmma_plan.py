"""How a product of strips is cut up, by which specialisation, and what it will cost."""

from __future__ import annotations

import functools
import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sparse24.kernels.chip import multiprocessors
from sparse24.kernels.hybrid_strips import BLOCK as BLOCK_K
from sparse24.kernels.hybrid_strips import cost
from sparse24.kernels.hybrid_wgmma_configs import SKIPPING, TABLES, Config, offered

# To choose among specialisations: multiply-adds a second, gathered bytes a second, and the seconds
# in which the blocks of a cluster exchange sums, after every wave.
MULTIPLY_ADDS, GATHERED, EXCHANGE = 4.9e14, 2.6e13, 3.5e-6

LOW_BAND = 8  # strips: so few are of about the same length, and all blocks have them at once
MOST_LIVE = 0.85  # share of instructions with elements above which skipping does not pay
WORTH_CHANGING = 1.02  # gain from which low bands are taken instead of the usual ones
UNEVEN = 0.5  # blocks whose strips differ do not ask the L2 cache for the same rows of b at once
# Factor of the predicted time, by rows of a strip, where rows are stored by number: storing takes
# longer, and strips always differ.  docs/benchmarks/log_hybrid.rst.
BY_NUMBER = {128: 1.13, 256: 1.14}
# A block gives sums away and takes those of another in the time of so many stages; without and with
# skipping.
SHARING = {False: 12, True: 24}
LEAST_PIECE = 2  # atoms of a tile that is cut


class Walk(NamedTuple):
    """Tiles in the order in which they are begun: bands of strips, column by column in a band."""

    strip: np.ndarray
    column: np.ndarray  # in tiles


def walk(strips: int, tiles_n: int, height: int) -> Walk:
    """Tiles of so many strips, `height` of them a band."""
    index = np.arange(strips * tiles_n)
    first = index // (height * tiles_n) * height
    within, lines = index % (height * tiles_n), np.minimum(height, strips - first)
    return Walk(first + within % lines, within // lines)


# How whole tiles are dealt: owners(lengths of all tiles, first whole tile, number of blocks).
Owners = Callable[[np.ndarray, int, int], np.ndarray]


class Deal(NamedTuple):
    """Which tiles are whole and which are cut.

    Attributes
    ----------
    walk : Walk
    blocks : int
    cut : int
        The number of tiles, the first ones, that several blocks share.
    owner : ndarray of int
        For each of the other tiles, the block that takes it.
    busiest : float
        Stages of the block that has most to do; the exchange of sums is counted in stages, too.
    """

    walk: Walk
    blocks: int
    cut: int
    owner: np.ndarray
    busiest: float


def _round(lengths: np.ndarray, cut: int, blocks: int) -> np.ndarray:
    """Owners of the tiles from `cut` on, which blocks take in turn."""
    return np.arange(cut, len(lengths)) % blocks


def _as_they_end(lengths: np.ndarray, cut: int, blocks: int) -> np.ndarray:
    """Owners of the tiles from `cut` on, if a block that ends a tile takes the next one."""
    free = [(0, block) for block in range(blocks)]
    owner = []
    for length in lengths[cut:].tolist():
        end, block = free[0]
        heapq.heapreplace(free, (end + length, block))
        owner.append(block)
    return np.array(owner, int)


def loads(lengths: np.ndarray, owner: np.ndarray, blocks: int) -> np.ndarray:
    """Stages of every block in the tiles that have one owner, which are the last ones."""
    whole = lengths[len(lengths) - len(owner) :]
    return np.bincount(owner, whole, minlength=blocks)


@dataclass(frozen=True, eq=False)
class Work:
    """How much there is to multiply.

    Attributes
    ----------
    lengths : ndarray of int, shape (strips,)
        Stages of every strip, the dearest strip first.
    gathered : int
        Number of stages, of all strips, that gather rows of b.
    rows : int
        Rows of a strip.
    by_number : bool
        Whether strips are of rows of similar density, so that rows are stored by number.
    shares : ndarray of float, shape (strips,), optional
        In the stages of a strip, the share of blocks of 64 rows that have elements; by default 1.
    """

    lengths: np.ndarray
    gathered: int
    rows: int = 128
    by_number: bool = False
    shares: np.ndarray | None = None

    @property
    def stages(self) -> int:
        return int(self.lengths.sum())

    @functools.cached_property
    def skips(self) -> bool:
        """Whether so many instructions have no elements that it pays to skip them."""
        if self.rows != SKIPPING[0].block_m or self.shares is None or not len(self.shares):
            return False
        return float(np.average(self.shares, weights=self.lengths)) < MOST_LIVE

    @functools.cached_property
    def costs(self) -> np.ndarray:
        """What strips cost, in stages of which all rows have elements."""
        if self.shares is None or not self.skips:
            return self.lengths
        return cost(self.lengths, self.shares)

    def effort(self, config: Config, n: int) -> tuple[float, float]:
        """The time of a product as multiply-adds, and as gathered bytes, of the whole chip.

        These are more than the product has where tiles do not fill whole waves of blocks, strips
        differ, or rows are stored by number.
        """
        sms = multiprocessors()
        if config.parts == 1:
            busiest = self.deal(config, n).busiest
        else:  # the chip deals clusters to idle multiprocessors
            waves = self._waves(config, n)
            busiest = max(waves * self.costs.mean(), self.costs[0]) / config.parts
        uneven = 1 + UNEVEN * (self.costs[0] / self.costs.mean() - 1)
        busiest *= BY_NUMBER[self.rows] if self.by_number else uneven
        places = busiest * sms * BLOCK_K * config.block_n / config.rate  # of b
        return self.rows * places, 2 * places * self.gathered / max(self.stages, 1)

    def exchange(self, config: Config, n: int) -> float:
        """Seconds for which clusters exchange sums."""
        return EXCHANGE * self._waves(config, n) if config.parts > 1 else 0.0

    def _waves(self, config: Config, n: int) -> int:
        blocks = len(self.lengths) * -(-n // config.block_n) * config.parts
        return -(-blocks // multiprocessors())

    def deal(self, config: Config, n: int) -> Deal:
        """How blocks that do not form clusters share the tiles.

        The height of the usual bands divides the multiprocessors of an H200, so blocks that take
        tiles in turn get the same strips in every column.  If strips differ in length, that is
        uneven, and lower bands may be better.  Where rows are sorted, a few strips are much longer
        than the others; a block that has had one of those then gets fewer tiles.
        """
        strips, tiles_n = len(self.lengths), -(-n // config.block_n)
        uneven = _as_they_end if self.by_number else _round
        usual, low = (
            self._deal(walk(strips, tiles_n, min(height, strips)), config.cuts, owners)
            for height, owners in ((config.band, _round), (LOW_BAND, uneven))
        )
        return usual if usual.busiest <= WORTH_CHANGING * low.busiest else low

    def _deal(self, walked: Walk, cuts: bool, owners: Owners) -> Deal:
        """Cut no tiles or, if that pays, the tiles of the last wave and of a whole one with it."""
        sms, lengths = multiprocessors(), self.costs[walked.strip]
        tiles = len(lengths)
        owner = owners(lengths, 0, sms)
        whole = Deal(walked, sms, 0, owner, float(loads(lengths, owner, sms).max()))
        cut = tiles % sms + (sms if tiles > sms else 0)
        if not cuts or lengths[:cut].sum() < 4 * LEAST_PIECE * sms:
            return whole
        owner = owners(lengths, cut, sms)
        least = loads(lengths, owner, sms).max() + 4 * LEAST_PIECE
        helpers = -(-sms // cut)
        busiest = max(least, lengths.sum() / sms) + SHARING[self.skips] * helpers
        shared = Deal(walked, sms, cut, owner, float(busiest))
        return shared if shared.busiest < whole.busiest else whole

    def choose(self, n: int) -> Config:
        """The config that is predicted to take the least time.

        Clusters, which exchange sums after every tile, are not for strips of very different length.
        """

        def seconds(config: Config) -> float:
            multiply_adds, gathered = self.effort(config, n)
            moved = gathered / GATHERED + self.exchange(config, n)
            return multiply_adds / MULTIPLY_ADDS + moved

        configs = offered(SKIPPING if self.skips else TABLES[self.rows], n)
        return min((c for c in configs if c.parts == 1 or not self.by_number), key=seconds)
