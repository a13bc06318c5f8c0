"""Tiles of ``sparse_decode``, which of them take a problem, and how long each will take."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from sparse24._dtypes import OF_16_BITS, TABLE
from sparse24._records import Problem
from sparse24.kernels import decode_tiles, sparse_tile
from sparse24.kernels.decode_tiles import LEAST_STAGES, Tile, tiles

WIDENED = ("int8", "float8_e4m3fn", "float8_e5m2")  # types of A that may meet a b of 16 bits
# Stages of a settled A that are asked for before b may be read, by columns of a tile: with more, b
# waits behind them (docs/benchmarks/log_few_tokens.rst, "Weights that are settled").
AHEAD = {8: 4, 16: 3, 24: 3, 32: 2, 40: 2, 48: 2, 64: 2}
FEWEST_OF_WGMMA = 25  # columns; with fewer, tiles of 24 or less are faster
FEW_BLOCKS = 2  # on a multiprocessor; see `configs`


@dataclass(frozen=True, slots=True)
class Config(decode_tiles.Config):
    """One specialisation."""

    def stage_bytes(self, problem: Problem) -> int:
        """Shared memory of a stage: A and its codes, and b."""
        a, b = TABLE[problem.dtype].itemsize, TABLE[problem.b_dtype].itemsize
        return self.m * self.k // 2 * a + self.m * self.k // 8 + self.n * self.k * b


# m, n, k, warps and blocks of each; k is in 16-bit elements, 8-bit types take twice as many.  The
# best of sweeps on an H200 (docs/benchmarks/log_few_tokens.rst, "A kernel for decoding" and "17 to
# 48 columns").
TILES: tuple[Tile, ...] = (
    Tile(16, 8, 512, (1, 1, 4), 2),
    Tile(16, 8, 512, (1, 1, 4), 3),
    Tile(16, 16, 512, (1, 1, 4), 2),
    Tile(16, 16, 512, (1, 1, 4), 3),
    Tile(32, 16, 512, (1, 1, 4), 1),
    Tile(32, 16, 256, (1, 1, 2), 2),
    Tile(32, 16, 256, (1, 1, 2), 3),
    Tile(16, 24, 512, (1, 1, 4), 1),
    Tile(32, 24, 512, (1, 1, 4), 1),
    Tile(16, 32, 512, (1, 1, 4), 1),
    Tile(32, 32, 512, (1, 1, 4), 1),
    Tile(16, 40, 512, (1, 1, 4), 1),
    Tile(32, 40, 512, (1, 1, 4), 1),
    Tile(16, 48, 512, (1, 2, 4), 1),
    Tile(32, 48, 256, (2, 1, 2), 1),
)

MOST_COLUMNS = max(tile.n for tile in TILES)

# The same for an A that is widened, which reads fewer bytes for as many products: more rows, which
# share what is loaded of b (docs/benchmarks/log_few_tokens.rst, "8-bit weights and 16-bit tokens").
WIDENING_TILES: tuple[Tile, ...] = (
    Tile(32, 8, 512, (2, 1, 4), 1),
    Tile(32, 8, 1024, (1, 1, 4), 1),
    Tile(64, 8, 512, (2, 1, 2), 2),
    Tile(128, 8, 512, (2, 1, 2), 2),
    Tile(32, 16, 512, (2, 1, 2), 1),
    Tile(32, 16, 1024, (2, 1, 4), 1),
    Tile(64, 16, 256, (4, 1, 1), 2),
    Tile(128, 16, 256, (4, 1, 2), 1),
    Tile(32, 24, 512, (2, 1, 2), 1),
    Tile(64, 24, 256, (2, 1, 2), 2),
    Tile(128, 24, 256, (4, 1, 2), 1),
    Tile(32, 32, 512, (1, 1, 4), 1),
    Tile(32, 32, 1024, (2, 1, 2), 1),
    Tile(64, 32, 256, (2, 1, 2), 2),
    Tile(128, 32, 256, (2, 1, 2), 2),
    Tile(32, 48, 512, (2, 1, 4), 1),
    Tile(128, 48, 256, (2, 1, 2), 1),
    Tile(32, 64, 512, (2, 1, 2), 1),
    Tile(64, 64, 512, (2, 1, 2), 1),
    Tile(128, 64, 256, (4, 1, 1), 1),
    Tile(64, 32, 512, (4, 1, 4), 1, wgmma=True),
    Tile(64, 64, 256, (4, 1, 2), 1, wgmma=True),
    Tile(128, 32, 256, (8, 1, 1), 2, wgmma=True),
    Tile(128, 64, 256, (8, 1, 1), 1, wgmma=True),
)

# Constants of `predict`, fitted to the timings of those sweeps, to 7 and 9 % root mean square.
_LAUNCH, _WIDENING_LAUNCH = 1.77e-6, 2.07e-6  # seconds
_PER_SM = 2.4e11  # bytes a second that a multiprocessor reads once others have nothing left to do
_INTO_SM = 3.6e11  # bytes a second that its shared memory takes in
_STAGE, _WIDENING_STAGE = 0.02e-6, 0.083e-6  # seconds that a block needs for a stage, beside
_LATENCY, _WIDENING_LATENCY = 0.6e-6, 0.654e-6  # seconds, shared by the stages of a ring
_STEP = 7.2e-9  # seconds until a warp has widened 16 rows of a step of 32 elements of K
_PRODUCT = 4.5e-13  # seconds of a multiprocessor for each element of a widened stage and column
# The same of tiles by warpgroups, to 12 %: seconds until one has multiplied 64 rows by 128 columns
# of K, those of a multiprocessor for each element of a stage, and those until a tile is stored.
_ATOM, _WGMMA_ELEMENT, _WGMMA_TILE = 1.15e-7, 2.0e-11, 0.91e-6


def widens(problem: Problem) -> bool:
    """Whether elements of A are widened to the type of b as they are multiplied."""
    return problem.dtype in WIDENED and problem.b_dtype in OF_16_BITS


def multiplied(problem: Problem) -> Problem:
    """The problem with A in the type in which it is multiplied."""
    return replace(problem, dtype=problem.b_dtype) if widens(problem) else problem


def fitting(problem: Problem) -> list[Config]:
    """Tiles that take a problem, where the ring of each block has room."""
    if widens(problem):
        return _widening_fitting(problem)
    width = min((tile.n for tile in TILES if tile.n >= problem.n), default=None)
    return _with_room(problem, [tile for tile in TILES if tile.n == width])


def _widening_fitting(problem: Problem) -> list[Config]:
    """Those with the least columns that hold those of b, and those by warpgroups of any width.

    A widening product may take several tiles for its columns, so it has others where those do not
    fit.
    """
    widths = sorted({tile.n for tile in WIDENING_TILES})
    holding = [wide for wide in widths if wide >= problem.n][:1]
    others = [wide for wide in reversed(widths) if wide < problem.n]
    wgmma = problem.compute_capability == 90 and problem.n >= FEWEST_OF_WGMMA
    for taken in holding + others:
        listed = [tile for tile in WIDENING_TILES if (wgmma if tile.wgmma else tile.n == taken)]
        if able := _with_room(problem, listed):
            return able
    return []


def _with_room(problem: Problem, listed: list[Tile]) -> list[Config]:
    found = [placed(tile, problem) for tile in listed]
    return [config for config in found if config.stages >= LEAST_STAGES]


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
    m, n, k, warps, blocks, wgmma = tile
    itemsize = TABLE[problem.b_dtype].itemsize
    config = Config(m, n, k * 2 // itemsize, warps, 0, blocks, problem.b_order == "row", wgmma)
    return decode_tiles.filled(config, problem)


def stages_ahead(problem: Problem, config: Config) -> int:
    """Stages of a settled A that are read before b."""
    return decode_tiles.stages_ahead(problem, config, AHEAD[config.n])


def predict(problem: Problem, config: Config, chip: dict) -> float:
    """Seconds: a launch, and times of memory and of a block, neither of which hides the other."""
    number, sms = tiles(problem, config), int(chip["sms"])
    blocks = min(number, sms * config.blocks)
    stages = -(-number // blocks) * -(-problem.k // config.k)
    memory, beside = _bytes_moved(problem) / chip["bandwidth"], -(-blocks // sms)
    if widens(problem):
        block = stages * _widening_stage(config, beside)
        block += -(-number // blocks) * _WGMMA_TILE * config.wgmma
        return _WIDENING_LAUNCH + math.hypot(memory, block)
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
    if config.wgmma:
        atoms = config.k / 128 / parts  # of a warpgroup
        return atoms * _ATOM + config.m * config.k * beside * _WGMMA_ELEMENT
    steps = config.m // 16 / rows * (config.k // 32 / parts)  # of a warp
    products = config.m * config.k * config.n * beside
    return _WIDENING_STAGE + _WIDENING_LATENCY / config.stages + steps * _STEP + products * _PRODUCT


def _bytes_moved(problem: Problem) -> int:
    """Bytes that a product must move at least once."""
    wide = multiplied(problem)
    saved = TABLE[wide.dtype].itemsize - TABLE[problem.dtype].itemsize
    products = problem.batch if problem.a_batched else 1
    return sparse_tile.bytes_moved(wide) - products * problem.m * problem.k // 2 * saved
