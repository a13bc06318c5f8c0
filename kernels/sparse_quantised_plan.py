"""Tiles of ``sparse_quantised``, and how long each will take."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sparse24._dtypes import TABLE
from sparse24._records import Problem
from sparse24.kernels import bricks, decode_tiles
from sparse24.kernels.decode_tiles import DEALING, LEAST_STAGES, Tile, tiles

AHEAD = 4  # stages of a settled A that are asked for before b may be read, at most
PERIOD = 1 << 10  # of the swizzle of b, on which stages begin


@dataclass(frozen=True, slots=True)
class Config(decode_tiles.Config):
    """One specialisation."""

    def stage_bytes(self, problem: Problem) -> int:
        """Shared memory of a stage: bricks, and b."""
        of_a = self.m // bricks.ROWS * self.k // bricks.COLUMNS * bricks.size(problem.quantised)
        of_b = self.n * self.k * TABLE[problem.b_dtype].itemsize
        return -(-of_a // PERIOD) * PERIOD + of_b


# The best of sweeps on an H200 (docs/benchmarks/log_few_tokens.rst, "4-bit weights").
TILES: tuple[Tile, ...] = (
    Tile(32, 8, 512, (1, 1, 4), 2),
    Tile(32, 8, 1024, (2, 1, 4), 1),
    Tile(64, 8, 512, (1, 1, 4), 2),
    Tile(16, 16, 512, (1, 1, 4), 2),
    Tile(32, 16, 1024, (1, 1, 4), 1),
    Tile(32, 16, 1024, (1, 1, 4), 2),
    Tile(64, 16, 512, (1, 1, 4), 2),
    Tile(32, 32, 1024, (1, 1, 4), 1),
    Tile(64, 32, 512, (4, 1, 4), 1, wgmma=True),
    Tile(64, 32, 512, (4, 1, 2), 2, wgmma=True),
    Tile(32, 64, 512, (1, 2, 4), 1),
    Tile(64, 64, 512, (4, 1, 2), 1, wgmma=True),
    Tile(128, 64, 512, (8, 1, 1), 1, wgmma=True),
    Tile(128, 128, 256, (8, 1, 1), 1, wgmma=True),
    Tile(128, 128, 128, (8, 1, 1), 1, wgmma=True),
)

# Constants of `predict`, fitted to the timings of those sweeps, of tiles with up to eight times
# their columns: to 12 % root mean square.
_LAUNCH = 1.42e-6  # seconds
_TILE = 0.3e-6  # seconds until a block that has multiplied a tile has stored it
_LATENCY, _WGMMA_LATENCY = 0.88e-6, 0.54e-6  # seconds, shared by the stages of a multiprocessor
_STEP = 4.6e-9  # seconds until a warp has multiplied 16 rows by 32 columns of K
# Seconds until a warpgroup has multiplied 64 rows by 128 columns of K: up to 64 columns, and 128.
_ATOM, _WIDE_ATOM = 1.3e-7, 3.2e-7
# Seconds of a multiprocessor for each element of a stage; of mma.sp for each column of b, too.
_ELEMENT, _WGMMA_ELEMENT = 7.1e-12, 1.4e-11
_PRODUCT = 2.8e-13


def fitting(problem: Problem) -> list[Config]:
    """Tiles up to the least width that holds the columns of b, where the ring of each has room.

    Narrow ones, several along n, give more multiprocessors a share of few rows.
    """
    able = [tile for tile in TILES if problem.compute_capability == 90 or not tile.wgmma]
    width = min((tile.n for tile in able if tile.n >= problem.n), default=problem.n)
    by_rows = problem.b_order == "row"  # then a tile has all columns of b
    fits = lambda n: n == width if by_rows else n <= width  # noqa: E731
    found = [placed(tile, problem) for tile in able if fits(tile.n)]
    return [config for config in found if config.stages >= LEAST_STAGES]


def configs(problem: Problem) -> list[Config]:
    """Candidates, best guess first."""
    chip = {"sms": 132, "bandwidth": 4.2e12}
    return sorted(fitting(problem), key=lambda config: predict(problem, config, chip))


def placed(tile: Tile, problem: Problem, beside: int = 0) -> Config:
    """A tile with as many stages as its blocks have room for, beside so many other bytes."""
    m, n, k, warps, blocks, wgmma = tile
    config = Config(m, n, k, warps, 0, blocks, problem.b_order == "row", wgmma)
    return decode_tiles.filled(config, problem, beside)


def stages_ahead(problem: Problem, config: Config) -> int:
    """Stages of a settled A that are read before b."""
    return decode_tiles.stages_ahead(problem, config, AHEAD)


def predict(problem: Problem, config: Config, chip: dict) -> float:
    """Seconds: a launch, and times of memory and of a block, neither of which hides the other."""
    sms = int(chip["sms"])
    number = tiles(problem, config)
    blocks = min(number, sms * config.blocks)
    rounds, stages = -(-number // blocks), -(-problem.k // config.k)
    memory = bytes_moved(problem) / chip["bandwidth"]
    block = rounds * (stages * _stage(config, beside=-(-blocks // sms)) + _TILE)
    return _LAUNCH + math.hypot(memory, block)


def _stage(config: Config, beside: int) -> float:
    """Seconds of a stage, of so many blocks beside one another."""
    rows, _, parts = config.warps
    elements, in_rings = config.m * config.k * beside, config.stages * config.blocks
    if config.wgmma:
        atoms = config.k / bricks.COLUMNS / parts  # of a warpgroup
        atom = _WIDE_ATOM if config.n >= DEALING else _ATOM
        return _WGMMA_LATENCY / in_rings + atoms * atom + elements * _WGMMA_ELEMENT
    steps = config.m // bricks.ROWS / rows * (config.k // 32 / parts)  # of a warp
    return _LATENCY / in_rings + steps * _STEP + elements * (_ELEMENT + config.n * _PRODUCT)


def bytes_moved(problem: Problem) -> int:
    """Bytes that a product must move at least once."""
    of_a = math.prod(bricks.counts(problem.m, problem.k)) * bricks.size(problem.quantised)
    of_a *= problem.batch if problem.a_batched else 1
    item = TABLE[problem.b_dtype].itemsize
    of_b = (problem.batch if problem.b_batched else 1) * problem.k * problem.n * item
    out = problem.batch * problem.m * problem.n * TABLE[problem.out_dtype].itemsize
    return of_a + of_b + out
