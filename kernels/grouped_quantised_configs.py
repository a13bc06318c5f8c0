"""The tiles of the grouped kernel for quantised matrices, their choice, and their shared memory."""

from __future__ import annotations

import functools

from sparse24._records import Problem
from sparse24.kernels import sparse_quantised_plan as plan
from sparse24.kernels.decode_tiles import LEAST_STAGES, Tile
from sparse24.kernels.grouped import REMEMBERED, table_bytes
from sparse24.kernels.sparse_quantised_plan import Config

# For few tiles with long rows; then for few columns of a group, for some, many and most.  With 8
# bits only shorter stages of the wide ones fit.  The last needs no instructions of warpgroups.
LONG, FEW, SOME, MANY, SHORTER, MOST, MOST_OF_8_BITS, ANYWHERE = TILES = (
    Tile(32, 8, 1024, (1, 1, 8), 1),
    Tile(64, 8, 256, (1, 1, 2), 4),
    Tile(128, 32, 256, (8, 1, 1), 2, wgmma=True),
    Tile(128, 64, 512, (8, 1, 1), 1, wgmma=True),
    Tile(128, 64, 256, (8, 1, 1), 1, wgmma=True),
    Tile(128, 128, 256, (8, 1, 1), 1, wgmma=True),
    Tile(128, 128, 128, (8, 1, 1), 1, wgmma=True),
    Tile(128, 16, 512, (2, 1, 4), 1),
)
# What a wave of each takes, relative to one another, and how many waves a launch takes beside: of
# sweeps on an H200 of six layers of 8 and 128 experts with 1/8 to 256 tokens each, unevenly shared.
# The tile that is chosen takes 1.017 times as long as the fastest: docs/benchmarks/log_grouped.rst,
# "4-bit experts".
COSTS = {
    LONG: 0.86, FEW: 2.95, SOME: 5.16, MANY: 3.96, SHORTER: 3.98, MOST: 6.0, MOST_OF_8_BITS: 6.06,
    ANYWHERE: 2.64,
}  # fmt: skip
BESIDE = {FEW: 0.25, SOME: 0.11, MANY: 0.04, SHORTER: 0.15, ANYWHERE: 0.2}  # others none
PARTLY_FILLED = 0.8  # tiles of a group, beside those that it fills


@functools.lru_cache(REMEMBERED)
def choose(
    groups: int, rows: int, k: int, columns: int, bits: int, multiprocessors: int, capability: int
) -> Config:
    """The tile for matrices of rows by k, and so many columns of all groups together."""
    tiles = fitting(bits, groups, capability)
    able = {place(tile, bits, groups, capability): tile for tile in tiles}

    def cost(config: Config) -> float:
        tile, of_groups = able[config], columns / config.n + PARTLY_FILLED * min(groups, columns)
        waves = -(-rows // config.m) * of_groups / (multiprocessors * config.blocks)
        whole_stages = -(-k // config.k) * config.k / k
        return COSTS[tile] * whole_stages * (max(1, waves) + BESIDE.get(tile, 0))

    return min(able, key=cost)


def fitting(bits: int, groups: int, capability: int) -> list[Tile]:
    """Tiles for whose ring there is room, beside the table of groups."""
    able = [tile for tile in TILES if capability == 90 or not tile.wgmma]
    return [x for x in able if place(x, bits, groups, capability).stages >= LEAST_STAGES]


def place(tile: Tile, bits: int, groups: int, capability: int = 90) -> Config:
    """The tile with as many stages as there is room for."""
    return plan.placed(tile, sized(bits, capability), beside=table_of(groups))


def sized(bits: int, capability: int = 90) -> Problem:
    """A problem that tells the sizes of stages."""
    types = ("float16",) * 3  # all that the kernel takes have 16 bits
    orders = "column", "column"
    return Problem(1, 1, 1, 1, *types, *orders, quantised=bits, compute_capability=capability)


def table_of(groups: int) -> int:
    """Bytes of the table of groups; the same for up to twice as many, to compile less."""
    return table_bytes(1 << groups.bit_length())
