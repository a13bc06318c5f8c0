"""How many stages the ring of a block has, and how many such blocks a multiprocessor runs."""

from __future__ import annotations

from collections.abc import Callable

RESERVED = 1024  # bytes of shared memory that a block takes beside its own
LEAST_STAGES, MOST_STAGES = 2, 8


def deepest(size: Callable[[int], int], blocks: int, most_shared: int) -> tuple[int, int] | None:
    """How many stages fit, and blocks on a multiprocessor; None if not even two stages fit.

    Two blocks hide the beginning and the end of each other's tiles, so they count more than
    stages: docs/benchmarks/log_grouped.rst.

    Parameters
    ----------
    size : callable
        Bytes of shared memory of a block with so many stages.
    blocks : int
        Blocks that are wanted on a multiprocessor.
    most_shared : int
        Bytes that a single block may have: all of a multiprocessor's but `RESERVED`.
    """
    for fewer in range(blocks, 0, -1):
        room = (most_shared + RESERVED) // fewer - RESERVED
        for stages in range(MOST_STAGES, LEAST_STAGES - 1, -1):
            if size(stages) <= room:
                return stages, fewer
    return None
