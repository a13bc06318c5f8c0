"""How a product of strips is cut up: specialisations, which one, and what it will cost."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sparse24 import _arrays
from sparse24.kernels.hybrid_strips import BLOCK as BLOCK_K
from sparse24.kernels.sparse_wgmma_configs import SHARED_MEMORY


@functools.cache
def multiprocessors() -> int:
    """Of the device in use."""
    return _arrays.cupy_module().cuda.Device().attributes["MultiProcessorCount"]


@dataclass(frozen=True, slots=True)
class Config:
    """One specialisation.

    Attributes
    ----------
    block_m, block_n : int
        Rows of a tile, which are those of a strip, and columns.
    parts : int
        Blocks of a cluster that share every tile along k.
    rate : float
        Speed relative to the first config, waves being full.
    """

    block_m: int
    block_n: int
    parts: int = 1
    rate: float = 1.0

    @property
    def name(self) -> str:
        return f"{self.block_m}x{self.block_n}" + (f"k{self.parts}" if self.parts > 1 else "")

    @property
    def band(self) -> int:
        """Tiles along m that are walked together; see `sparse_wgmma_plan.band`."""
        return 22 if self.block_n == 256 else 15

    @property
    def in_flight(self) -> bool:
        """Whether instructions run on while the next atom begins; it takes registers."""
        return self.block_m * self.block_n < 256 * 192

    @property
    def cuts(self) -> bool:
        """Whether tiles may be cut along k to fill the last wave.

        Not where most rows of b are neighbours: blocks that are at the same k share them in L2.
        """
        return self.block_m == 256 and self.parts == 1

    @property
    def staging(self) -> int:
        """Output buffers of a warpgroup."""
        return 2 if self.parts == 1 else 1

    def _bytes(self, stages: int) -> int:
        stage = self.block_m * BLOCK_K + 2 * self.block_n * BLOCK_K
        metadata = -(-stages // 2) * 16 * self.block_m
        return stages * (stage + 16) + metadata + 2 * self.staging * 8192 + 8

    @property
    def stages(self) -> int:
        """As many as fit."""
        return max(s for s in range(1, 9) if self._bytes(s) <= SHARED_MEMORY[1])

    @property
    def shared_memory(self) -> int:
        return self._bytes(self.stages)


# By rows of a strip.
TABLES = {
    128: (
        Config(128, 256), Config(128, 128, rate=0.7), Config(128, 256, 2), Config(128, 128, 2, 0.7),
    ),
    256: (Config(256, 192), Config(256, 128, rate=0.85), Config(256, 128, 2, 0.85)),
}  # fmt: skip
# To choose among them: multiply-adds and gathered bytes a second, seconds of an exchange of sums.
MULTIPLY_ADDS, GATHERED, EXCHANGE = 5.5e14, 2.6e13, 5e-6

LOW_BAND = 8  # strips of about the same length, which all blocks then have at the same time
WORTH_CHANGING = 1.02  # a less even deal that leaves the usual bands as they are
UNEVEN = 0.5  # blocks whose strips differ do not ask the L2 cache for the same rows of b at once
SHARING = 12  # stages in whose time a block gives sums away and takes those of another
LEAST_PIECE = 2  # atoms of a tile that is cut

PIECE = np.dtype([(name, "i4") for name in (
    "first", "end", "plain", "row", "column", "helpers", "gives", "unused",
)])  # fmt: skip


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


class Deal(NamedTuple):
    """Which tiles are whole and which are cut.

    Attributes
    ----------
    walk : Walk
    cut : int
        Tiles, the first ones, that blocks share; the others go round the blocks.
    busiest : float
        Stages of the block that has most to do, and what it takes to exchange sums.
    """

    walk: Walk
    cut: int
    busiest: float


def _loads(lengths: np.ndarray, cut: int, blocks: int) -> np.ndarray:
    """Stages of every block in tiles that are not cut; they go round the blocks."""
    whole = np.arange(cut, len(lengths))
    return np.bincount(whole % blocks, lengths[whole], minlength=blocks)


@dataclass(frozen=True, eq=False)
class Work:
    """How much there is to multiply.

    Attributes
    ----------
    lengths : ndarray of int, shape (strips,)
        Stages of every strip, the longest first.
    gathered : int
        Those of them that gather rows of b.
    rows : int
        Of a strip.
    """

    lengths: np.ndarray
    gathered: int
    rows: int = 128

    @property
    def stages(self) -> int:
        return int(self.lengths.sum())

    def effort(self, config: Config, n: int) -> tuple[float, float]:
        """Multiply-adds and gathered bytes that the whole chip could do in the time it takes.

        More than there are, where tiles do not fill whole waves of blocks or strips differ.
        """
        sms = multiprocessors()
        if config.parts == 1:
            busiest = self.deal(config, n).busiest
        else:  # the chip deals clusters to idle multiprocessors
            blocks = len(self.lengths) * -(-n // config.block_n) * config.parts
            waves = -(-blocks // sms)
            busiest = max(waves * self.lengths.mean(), self.lengths[0]) / config.parts
        busiest *= 1 + UNEVEN * (self.lengths[0] / self.lengths.mean() - 1)
        places = busiest * sms * BLOCK_K * config.block_n / config.rate  # of b
        return self.rows * places, 2 * places * self.gathered / max(self.stages, 1)

    def deal(self, config: Config, n: int) -> Deal:
        """How blocks that do not form clusters share the tiles.

        The usual bands divide the multiprocessors of an H200, so whole tiles that go round the
        blocks bring a block to the same strips again; if those differ, lower bands are walked.
        """
        strips, tiles_n = len(self.lengths), -(-n // config.block_n)
        usual, low = (
            self._deal(walk(strips, tiles_n, min(height, strips)), config.cuts)
            for height in (config.band, LOW_BAND)
        )
        return usual if usual.busiest <= WORTH_CHANGING * low.busiest else low

    def _deal(self, walked: Walk, cuts: bool) -> Deal:
        """Cut no tiles, or as many as do not fill a wave and a wave with them, if that pays."""
        sms, lengths = multiprocessors(), self.lengths[walked.strip]
        tiles = len(lengths)
        whole = Deal(walked, 0, float(_loads(lengths, 0, min(tiles, sms)).max()))
        cut = tiles % sms + (sms if tiles > sms else 0)
        if not cuts or lengths[:cut].sum() < 4 * LEAST_PIECE * sms:
            return whole
        least = _loads(lengths, cut, sms).max() + 4 * LEAST_PIECE
        helpers = -(-sms // cut)
        busiest = max(least, lengths.sum() / sms) + SHARING * helpers
        return Deal(walked, cut, float(busiest)) if busiest < whole.busiest else whole

    def choose(self, n: int) -> Config:
        """The config that takes the least time."""

        def seconds(config: Config) -> float:
            multiply_adds, gathered = self.effort(config, n)
            exchange = EXCHANGE if config.parts > 1 else 0.0
            return multiply_adds / MULTIPLY_ADDS + gathered / GATHERED + exchange

        return min(TABLES[self.rows], key=seconds)


def pieces(table: np.ndarray, work: Work, config: Config, n: int) -> np.ndarray:
    """What every block multiplies, in order; empty pieces follow.

    Parameters
    ----------
    table : ndarray of int, shape (strips, 4)
        As in `hybrid_strips.Strips`.

    Returns
    -------
    ndarray of PIECE, shape (blocks, most pieces and one)
    """
    if config.parts > 1:
        walked = walk(len(table), -(-n // config.block_n), min(config.band, len(table)))
        tile, part = np.divmod(np.arange(len(walked.strip) * config.parts), config.parts)
        atoms = table[walked.strip[tile], 1] // 2
        first, end = (atoms * (part + i) // config.parts for i in (0, 1))
        found = _pieces(table, walked, config, tile, first, end)
        return _by_block(found, np.arange(len(found)))
    sms = multiprocessors()
    walked, cut, _ = work.deal(config, n)
    atoms = table[walked.strip, 1] // 2
    whole = np.arange(cut, len(atoms))
    found = _pieces(table, walked, config, whole, np.zeros_like(whole), atoms[whole])
    block = whole % sms
    if cut:
        first, owner = _cut(table, walked, config, atoms[:cut], _loads(atoms, cut, sms))
        found, block = np.concatenate([first, found]), np.concatenate([owner, block])
    return _by_block(found, block)


def _cut(
    table: np.ndarray, walked: Walk, config: Config, atoms: np.ndarray, load: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Pieces of tiles of so many atoms, and whose they are: all blocks then have equally much.

    `load` is what blocks have besides.  A block takes a range of atoms and walks it backwards: the
    beginning of a tile that the next block finishes comes first.
    """
    edges = np.concatenate([[0], np.cumsum(atoms)])
    share = np.maximum((edges[-1] + load.sum()) / len(load) - load, 2 * LEAST_PIECE)
    cuts = np.rint(np.concatenate([[0], np.cumsum(share)]) * edges[-1] / share.sum()).astype(int)
    if np.diff(cuts).min() < 2 * LEAST_PIECE:
        cuts = np.rint(np.linspace(0, edges[-1], len(cuts))).astype(int)
    near = edges[np.abs(edges[:, None] - cuts).argmin(axis=0)]
    cuts = np.where(np.abs(near - cuts) < LEAST_PIECE, near, cuts)
    bounds = np.union1d(cuts, edges)
    first, end = bounds[:-1], bounds[1:]
    block = np.searchsorted(cuts, first, "right") - 1
    tile = np.searchsorted(edges, first, "right") - 1
    found = _pieces(table, walked, config, tile, first - edges[tile], end - edges[tile])
    found["gives"] = end < edges[tile + 1]
    began = np.searchsorted(cuts, edges[tile], "right") - 1  # the block with the tile's first atom
    found["helpers"] = np.where(found["gives"] == 1, 0, block - began)
    backwards = np.lexsort((-first, block))
    return found[backwards], block[backwards]


def _pieces(table: np.ndarray, walked: Walk, config: Config, tile, first, end) -> np.ndarray:
    """Atoms `first` to `end` of some tiles."""
    strip = table[walked.strip[tile]]
    found = np.zeros(len(tile), PIECE)
    found["first"], found["end"] = strip[:, 0] + 2 * first, strip[:, 0] + 2 * end
    found["plain"] = np.clip(strip[:, 0] + strip[:, 2], found["first"], found["end"])
    found["row"], found["column"] = strip[:, 3], walked.column[tile] * config.block_n
    return found


def _by_block(found: np.ndarray, block: np.ndarray) -> np.ndarray:
    """Pieces block by block, those of a block in the order in which they come."""
    order = np.argsort(block, kind="stable")
    found, block = found[order], block[order]
    within = np.arange(len(block)) - np.searchsorted(block, block)
    table = np.zeros((block.max(initial=-1) + 1, within.max(initial=0) + 2), PIECE)
    table[block, within] = found
    return table
