"""The tiles of the grouped kernel, their choice, and the shared memory that each takes."""

from __future__ import annotations

import functools

from sparse24 import _spec
from sparse24._dtypes import numpy_dtype
from sparse24.kernels.grouped import MOST_GROUPS, Types, table_bytes
from sparse24.kernels.sparse_wgmma_configs import MOST_STAGES, SHARED_MEMORY, Config

GATE_BYTES = 16  # two barriers

# Tiles for few columns a group, for some, for many, and for so many that groups fill wide tiles.
FEW, SOME, MANY, MOST = (
    Config(128, 32, spans=2), Config(128, 64, spans=2), Config(256, 128), Config(128, 256),
)  # fmt: skip
# What a wave of each takes, relative to the first.  Raced on an H100 for 17 layers of 2 to 256
# experts with 4 to 32768 tokens, unevenly shared; the tile that is chosen takes 1.008 times as long
# as the fastest: docs/benchmarks/log_grouped.rst.
COSTS = {FEW: 1.0, SOME: 1.2, MANY: 3.0, MOST: 2.8}
PARTLY_FILLED = 0.6  # tiles of a group, beside those that it fills
BEFORE = 0.3  # waves that would fit in before the first one begins
PROMOTED = Config(128, 128, spans=2)  # whose sums fit into the registers twice


def choose(groups: int, rows: int, columns: int, types: Types, multiprocessors: int) -> Config:
    """The tile for matrices of that many rows, and that many columns of all groups together."""
    if types.promotes:
        return PROMOTED

    def cost(tile: Config) -> float:
        of_groups = columns / tile.block_n + PARTLY_FILLED * min(groups, columns)
        waves = -(-rows // tile.block_m) * of_groups / multiprocessors
        return COSTS[tile] * (max(1, waves) + BEFORE)

    return min(COSTS, key=cost)


@functools.cache
def layout(config: Config, types: Types) -> tuple[int, int]:
    """How many stages fit, and the bytes of shared memory of a block with them."""
    itemsize, out_itemsize = (numpy_dtype(x).itemsize for x in (types.dtype, types.out_dtype))
    stage = (64 * config.block_m + 128 * config.block_n) * config.spans
    of_atom = _spec.ATOM_K * itemsize  # bytes of b along k
    parts, atoms = max(1, of_atom // (128 * config.spans)), max(1, 128 * config.spans // of_atom)
    slot = atoms * config.block_m // _spec.ATOM_M * _spec.ATOM_BYTES
    chunk = 32 if out_itemsize == 4 else min(64, config.block_n)
    staging = config.consumers * chunk * 64 * out_itemsize

    def total(stages: int) -> int:
        rings = stages * (stage + 16) + -(-stages // parts) * slot
        return rings + staging + GATE_BYTES + table_bytes(MOST_GROUPS)

    most = SHARED_MEMORY[config.blocks]
    stages = max(s for s in range(1, MOST_STAGES + 1) if total(s) <= most)
    return stages, total(stages)
