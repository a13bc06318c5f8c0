"""The tiles of the grouped kernel that widens, their choice, and their shared memory."""

from __future__ import annotations

import functools

from sparse24.kernels import sparse_mixed_plan as plan
from sparse24.kernels.grouped import MOST_GROUPS, REMEMBERED, table_bytes
from sparse24.kernels.grouped_wgmma_configs import GATE_BYTES
from sparse24.kernels.sparse_wgmma_configs import Config, Layout

FEWEST, FEW, SOME, MANY, SHARED, MOST = TILES = (
    Config(128, 32, staging=1),
    Config(256, 32, staging=1),
    Config(256, 64, staging=1),
    Config(128, 128, staging=1),
    Config(256, 128, staging=1),
    Config(128, 256, staging=1),
)
# What a wave of each takes, relative to one of MANY: of sweeps on an H200 of six layers of 8 to 128
# experts with 1/8 to 1024 tokens each, unevenly shared.  The tile that is chosen takes 1.01 times
# as long as the fastest: docs/benchmarks/log_grouped.rst, "Experts that are widened".
COSTS_OF_BYTES = {FEWEST: 0.88, FEW: 1.2, SOME: 1.47, MANY: 1.0, SHARED: 1.98, MOST: 1.45}
COSTS_OF_BRICKS = {SOME: 1.45, MANY: 1.0, SHARED: 1.92, MOST: 1.42}
PARTLY_FILLED = 1.0  # tiles of a group, beside those that it fills
BEFORE = 0.3  # waves that would fit in before the first one begins


@functools.lru_cache(REMEMBERED)
def choose(groups: int, rows: int, columns: int, bits: int, multiprocessors: int) -> Config:
    """The tile for matrices of that many rows, and that many columns of all groups together.

    `bits` is 0 for matrices of 8-bit elements, which are not quantised.
    """
    costs = COSTS_OF_BRICKS if bits else COSTS_OF_BYTES

    def cost(tile: Config) -> float:
        of_groups = columns / tile.block_n + PARTLY_FILLED * min(groups, columns)
        waves = -(-rows // tile.block_m) * of_groups / multiprocessors
        return costs[tile] * (max(1, waves) + BEFORE)

    return min(costs, key=cost)


def layout(config: Config, out_itemsize: int, bits: int) -> Layout:
    """Stages and bytes of shared memory, beside the gate's barriers and the table of groups."""
    return plan.layout(config, out_itemsize, bits, GATE_BYTES + table_bytes(MOST_GROUPS))
