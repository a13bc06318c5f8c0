"""Host side of ``cuda/include/mma_ring.cuh``: the shared memory of blocks that multiply by it."""

from __future__ import annotations

from sparse24._records import Problem
from sparse24.kernels.sparse_tile import SHARED_MEMORY, TABLE, TileConfig

BARRIERS = 16  # bytes for each stage: a barrier for its arrival, and one for its return


def shared_memory(config: TileConfig, itemsize: int) -> int:
    """Bytes of a block: its stages, or the sums that take their place, and the barriers behind."""
    return config.shared_memory(itemsize) + BARRIERS * config.stages


def suits(config: TileConfig, problem: Problem) -> bool:
    """Whether this specialisation can be compiled for the problem's types and chip."""
    room = SHARED_MEMORY.get(problem.compute_capability, 99) << 10
    fits = shared_memory(config, TABLE[problem.dtype].itemsize) <= room
    return fits and config.suits(problem)
