"""How a product of strips is cut up: specialisations, which one, and what it will cost."""

from __future__ import annotations

import functools
from dataclasses import dataclass

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
        """Whether instructions still run when the next atom begins; metadata take registers twice."""
        return self.block_m == 128

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
WORTH_WALKING = 1.02  # a less even deal that leaves the usual bands as they are
UNEVEN = 0.5  # blocks whose strips differ do not ask the L2 cache for the same rows of b at once


def _walk(strips: int, tiles_n: int, height: int) -> np.ndarray:
    """The strip of every tile in the order of ``TileScheduler::place``."""
    index = np.arange(strips * tiles_n)
    first = index // (height * tiles_n) * height
    return first + index % (height * tiles_n) % np.minimum(height, strips - first)


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
            busiest = self.deal(config, n)[1]
        else:  # the chip deals clusters to idle multiprocessors
            blocks = len(self.lengths) * -(-n // config.block_n) * config.parts
            waves = -(-blocks // sms)
            busiest = max(waves * self.lengths.mean(), self.lengths[0]) / config.parts
        busiest *= 1 + UNEVEN * (self.lengths[0] / self.lengths.mean() - 1)
        places = busiest * sms * BLOCK_K * config.block_n / config.rate  # of b
        return self.rows * places, 2 * places * self.gathered / max(self.stages, 1)

    def deal(self, config: Config, n: int) -> tuple[int, int]:
        """The height of the bands in which tiles are walked, and the stages of the busiest block.

        Tile i goes to block i modulo the blocks.  The usual height divides those of an H200, so a
        block always meets the same strips; if they differ, lower bands are walked.
        """
        strips, tiles_n = len(self.lengths), -(-n // config.block_n)
        usual = min(config.band, strips)

        def busiest(height: int) -> int:
            strip = _walk(strips, tiles_n, height)
            blocks = np.arange(strip.size) % min(strip.size, multiprocessors())
            return int(np.bincount(blocks, self.lengths[strip]).max())

        low = min(LOW_BAND, strips)
        plain, mixed = busiest(usual), busiest(low)
        return (usual, plain) if plain <= WORTH_WALKING * mixed else (low, mixed)

    def choose(self, n: int) -> Config:
        """The config that takes the least time."""

        def seconds(config: Config) -> float:
            multiply_adds, gathered = self.effort(config, n)
            exchange = EXCHANGE if config.parts > 1 else 0.0
            return multiply_adds / MULTIPLY_ADDS + gathered / GATHERED + exchange

        return min(TABLES[self.rows], key=seconds)
