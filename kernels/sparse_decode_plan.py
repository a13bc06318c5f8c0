"""Tiles of ``sparse_decode``, which of them take a problem, and how long each will take."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from sparse24._dtypes import OF_16_BITS, TABLE
from sparse24._records import Problem
from sparse24.kernels import sparse_tile
from sparse24.kernels.sparse_tile import TileConfig

WIDENED = ("int8", "float8_e4m3fn", "float8_e5m2")  # types of A that may meet a b of 16 bits
Tile = tuple[int, int, int, tuple[int, int, int], int]
LEAST_STAGES = 2
# Stages of a settled A that are asked for before b may be read, by columns of a tile: with more, b
# waits behind them (docs/benchmarks/log_few_tokens.rst, "Weights that are settled").
AHEAD = {8: 4, 16: 3, 24: 3, 32: 2, 40: 2, 48: 2, 64: 2}
FEW_BLOCKS = 2  # on a multiprocessor; see `configs`
BARRIERS = 16  # bytes of the two barriers of a stage
BESIDE = 1 << 10  # bytes of shared memory that each block takes beside its own


@dataclass(frozen=True, slots=True)
class Config:
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
    """

    m: int
    n: int
    k: int
    warps: tuple[int, int, int]
    stages: int
    blocks: int
    by_rows: bool = False

    @property
    def name(self) -> str:
        warps = "x".join(map(str, self.warps))
        by = "r" * self.by_rows
        return f"{self.m}x{self.n}x{self.k}_w{warps}_s{self.stages}_b{self.blocks}{by}"

    @property
    def tile(self) -> TileConfig:
        """The tile as `sparse_tile` describes tiles."""
        return TileConfig(self.m, self.n, self.k, self.warps, self.stages, blocks=self.blocks)

    @property
    def threads(self) -> int:
        return self.tile.threads + 32

    def stage_bytes(self, problem: Problem) -> int:
        """Shared memory of a stage: A and its codes, and b."""
        a, b = TABLE[problem.dtype].itemsize, TABLE[problem.b_dtype].itemsize
        return self.m * self.k // 2 * a + self.m * self.k // 8 + self.n * self.k * b

    def sums_at(self, problem: Problem) -> int:
        """Where sums lie in shared memory: behind the stages."""
        return self.stages * self.stage_bytes(problem)

    def shared_memory(self, problem: Problem) -> int:
        """Bytes of stages, sums and barriers."""
        sums = self.warps[2] * self.m * (self.n + 8) * 4
        return self.sums_at(problem) + sums + BARRIERS * self.stages


# m, n, k, warps and blocks of each; k is in 16-bit elements, 8-bit types take twice as many.  The
# best of sweeps on an H200 (docs/benchmarks/log_few_tokens.rst, "A kernel for decoding" and "17 to
# 48 columns").
TILES: tuple[Tile, ...] = (
    (16, 8, 512, (1, 1, 4), 2),
    (16, 8, 512, (1, 1, 4), 3),
    (16, 16, 512, (1, 1, 4), 2),
    (16, 16, 512, (1, 1, 4), 3),
    (32, 16, 512, (1, 1, 4), 1),
    (32, 16, 256, (1, 1, 2), 2),
    (32, 16, 256, (1, 1, 2), 3),
    (16, 24, 512, (1, 1, 4), 1),
    (32, 24, 512, (1, 1, 4), 1),
    (16, 32, 512, (1, 1, 4), 1),
    (32, 32, 512, (1, 1, 4), 1),
    (16, 40, 512, (1, 1, 4), 1),
    (32, 40, 512, (1, 1, 4), 1),
    (16, 48, 512, (1, 2, 4), 1),
    (32, 48, 256, (2, 1, 2), 1),
)

MOST_COLUMNS = max(columns for _, columns, *_ in TILES)

# The same for an A that is widened, which reads fewer bytes for as many products: more rows, which
# share what is loaded of b (docs/benchmarks/log_few_tokens.rst, "8-bit weights and 16-bit tokens").
WIDENING_TILES: tuple[Tile, ...] = (
    (32, 8, 512, (2, 1, 4), 1),
    (32, 8, 1024, (1, 1, 4), 1),
    (64, 8, 512, (2, 1, 2), 2),
    (128, 8, 512, (2, 1, 2), 2),
    (32, 16, 512, (2, 1, 2), 1),
    (32, 16, 1024, (2, 1, 4), 1),
    (64, 16, 256, (4, 1, 1), 2),
    (128, 16, 256, (4, 1, 2), 1),
    (32, 24, 512, (2, 1, 2), 1),
    (64, 24, 256, (2, 1, 2), 2),
    (128, 24, 256, (4, 1, 2), 1),
    (32, 32, 512, (1, 1, 4), 1),
    (32, 32, 1024, (2, 1, 2), 1),
    (64, 32, 256, (2, 1, 2), 2),
    (128, 32, 256, (2, 1, 2), 2),
    (32, 48, 512, (2, 1, 4), 1),
    (128, 48, 256, (2, 1, 2), 1),
    (32, 64, 512, (2, 1, 2), 1),
    (64, 64, 512, (2, 1, 2), 1),
    (128, 64, 256, (4, 1, 1), 1),
)

# Constants of `predict`, fitted to the timings of those sweeps, to 7 and 9 % root mean square.
_LAUNCH, _WIDENING_LAUNCH = 1.77e-6, 2.07e-6  # seconds
_PER_SM = 2.4e11  # bytes a second that a multiprocessor reads once others have nothing left to do
_INTO_SM = 3.6e11  # bytes a second that its shared memory takes in
_STAGE, _WIDENING_STAGE = 0.02e-6, 0.083e-6  # seconds that a block needs for a stage, beside
_LATENCY, _WIDENING_LATENCY = 0.6e-6, 0.654e-6  # seconds, shared by the stages of a ring
_STEP = 7.2e-9  # seconds until a warp has widened 16 rows of a step of 32 elements of K
_PRODUCT = 4.5e-13  # seconds of a multiprocessor for each element of a widened stage and column


def widens(problem: Problem) -> bool:
    """Whether elements of A are widened to the type of b as they are multiplied."""
    return problem.dtype in WIDENED and problem.b_dtype in OF_16_BITS


def multiplied(problem: Problem) -> Problem:
    """The problem with A in the type in which it is multiplied."""
    return replace(problem, dtype=problem.b_dtype) if widens(problem) else problem


def fitting(problem: Problem) -> list[Config]:
    """Tiles with the least columns that hold those of b, where the ring of each block has room.

    A widening product may take several tiles for its columns, so it has others where those do not
    fit.
    """
    listed = WIDENING_TILES if widens(problem) else TILES
    columns = sorted({tile[1] for tile in listed})
    holding = [wide for wide in columns if wide >= problem.n][:1]
    others = [wide for wide in reversed(columns) if wide < problem.n] if widens(problem) else []
    for taken in holding + others:
        found = [placed(tile, problem) for tile in listed if tile[1] == taken]
        if able := [config for config in found if config.stages >= LEAST_STAGES]:
            return able
    return []


def configs(problem: Problem) -> list[Config]:
    """Candidates, best guess first."""
    chip = {"sms": 132, "bandwidth": 4.2e12}
    at_once = lambda c, blocks: tiles(problem, c) <= chip["sms"] * blocks  # noqa: E731
    # The more room beside the blocks of a launch, the more uneven the shares that multiprocessors
    # get of the next one.  So there are three blocks only where all tiles run at once by that.
    found = [
        c
        for c in fitting(problem)
        if c.blocks <= FEW_BLOCKS or (at_once(c, c.blocks) and not at_once(c, FEW_BLOCKS))
    ]
    return sorted(found, key=lambda config: predict(problem, config, chip))


def placed(tile: Tile, problem: Problem) -> Config:
    """A tile, with k for the size of elements, and as many stages as its blocks have room for."""
    m, n, k, warps, blocks = tile
    itemsize = TABLE[problem.b_dtype].itemsize
    config = Config(m, n, k * 2 // itemsize, warps, 0, blocks, problem.b_order == "row")
    room = (sparse_tile.SHARED_MEMORY.get(problem.compute_capability, 99) << 10) + BESIDE
    left = room // blocks - BESIDE - config.shared_memory(problem)
    return replace(config, stages=left // (config.stage_bytes(problem) + BARRIERS))


def tiles(problem: Problem, config: Config) -> int:
    """Tiles of the result."""
    return -(-problem.m // config.m) * -(-problem.n // config.n) * problem.batch


def stages_ahead(problem: Problem, config: Config) -> int:
    """Stages of a settled A that are read before b; fewer than a tile has, if it has several."""
    return max(1, min(AHEAD[config.n], -(-problem.k // config.k) - 1))


def predict(problem: Problem, config: Config, chip: dict) -> float:
    """Seconds: a launch, and times of memory and of a block, neither of which hides the other."""
    number, sms = tiles(problem, config), int(chip["sms"])
    blocks = min(number, sms * config.blocks)
    stages = -(-number // blocks) * -(-problem.k // config.k)
    memory, beside = _bytes_moved(problem) / chip["bandwidth"], -(-blocks // sms)
    if widens(problem):
        return _WIDENING_LAUNCH + math.hypot(memory, stages * _widening_stage(config, beside))
    memory += _uneven_bytes(problem, config, blocks, sms) / _PER_SM
    stage = _STAGE + _LATENCY / config.stages
    stage += beside * config.stage_bytes(problem) / _INTO_SM
    return _LAUNCH + math.hypot(memory, stages * stage)


def _uneven_bytes(problem: Problem, config: Config, blocks: int, sms: int) -> float:
    """What the busiest multiprocessor has to read more than others."""
    number = tiles(problem, config)
    busiest = sum(-(-(number - first) // blocks) for first in range(0, blocks, sms))
    more = max(0.0, busiest - number / sms)
    return more * -(-problem.k // config.k) * config.stage_bytes(problem)


def _widening_stage(config: Config, beside: int) -> float:
    """Seconds of a stage, of so many blocks beside one another."""
    rows, _, parts = config.warps
    steps = config.m // 16 / rows * (config.k // 32 / parts)  # of a warp
    products = config.m * config.k * config.n * beside
    return _WIDENING_STAGE + _WIDENING_LATENCY / config.stages + steps * _STEP + products * _PRODUCT


def _bytes_moved(problem: Problem) -> int:
    """Bytes that a product must move at least once."""
    wide = multiplied(problem)
    saved = TABLE[wide.dtype].itemsize - TABLE[problem.dtype].itemsize
    products = problem.batch if problem.a_batched else 1
    return sparse_tile.bytes_moved(wide) - products * problem.m * problem.k // 2 * saved
