"""What tiles of ``sparse_decode`` and ``sparse_quantised`` share: the ring of a block's stages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from sparse24._records import Problem
from sparse24.kernels import sparse_tile
from sparse24.kernels.sparse_tile import TileConfig

LEAST_STAGES = 2
BARRIERS = 16  # bytes of the two barriers of a stage
BESIDE = 1 << 10  # bytes of shared memory that each block takes beside its own
WARP, WARPGROUP = 32, 128  # threads that fetch, of which one asks for stages
DEALING = 128  # columns of a tile whose consumers need the registers of a warpgroup that fetches


class Tile(NamedTuple):
    """What a `Config` has of its own: all but what follows from the problem."""

    m: int
    n: int
    k: int
    warps: tuple[int, int, int]
    blocks: int
    wgmma: bool = False


@dataclass(frozen=True, slots=True)
class Config(ABC):
    """One specialisation, and how many of its blocks a multiprocessor has room for.

    Attributes
    ----------
    m, n, k : int
        Tile of a block, and the K extent of a stage.
    warps : tuple of int
        Warps along M, n and K.
    stages : int
        Of the ring.
    blocks : int
        Of a multiprocessor.
    by_rows : bool
        Whether rows of b are contiguous, not columns.
    wgmma : bool
        Whether warpgroups multiply, four warps along M to 64 rows.
    """

    m: int
    n: int
    k: int
    warps: tuple[int, int, int]
    stages: int
    blocks: int
    by_rows: bool = False
    wgmma: bool = False

    @property
    def name(self) -> str:
        warps = "x".join(map(str, self.warps))
        by, kind = "r" * self.by_rows, "g" if self.wgmma else "w"
        return f"{self.m}x{self.n}x{self.k}_{kind}{warps}_s{self.stages}_b{self.blocks}{by}"

    @property
    def tile(self) -> TileConfig:
        """The tile as `sparse_tile` describes tiles."""
        return TileConfig(
            self.m, self.n, self.k, self.warps, self.stages, blocks=self.blocks, wgmma=self.wgmma
        )

    @property
    def threads(self) -> int:
        return self.tile.threads + (WARPGROUP if self.n >= DEALING else WARP)

    @abstractmethod
    def stage_bytes(self, problem: Problem) -> int:
        """Shared memory of a stage: A and b."""

    def sums_at(self, problem: Problem) -> int:
        """Where sums lie in shared memory: behind the stages."""
        return self.stages * self.stage_bytes(problem)

    def shared_memory(self, problem: Problem) -> int:
        """Bytes of stages, sums and barriers."""
        sums = self.warps[2] * self.m * (self.n + 8) * 4
        return self.sums_at(problem) + sums + BARRIERS * self.stages


Placed = TypeVar("Placed", bound=Config)


def filled(config: Placed, problem: Problem, beside: int = 0) -> Placed:
    """A tile without stages with as many as its blocks have room for, beside other bytes."""
    room = (sparse_tile.SHARED_MEMORY.get(problem.compute_capability, 99) << 10) + BESIDE
    left = room // config.blocks - BESIDE - beside - config.shared_memory(problem)
    return replace(config, stages=left // (config.stage_bytes(problem) + BARRIERS))


def tiles(problem: Problem, config: Config) -> int:
    """Tiles of the result."""
    return -(-problem.m // config.m) * -(-problem.n // config.n) * problem.batch


def stages_ahead(problem: Problem, config: Config, most: int) -> int:
    """Stages of a settled A that are read before b; fewer than a tile has, if it has several."""
    return max(1, min(most, -(-problem.k // config.k) - 1))
