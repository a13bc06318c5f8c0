"""Arrays on the CPU a few rows at a time, where copies of all would leave the cache."""

from __future__ import annotations

import math
from collections.abc import Iterator

BLOCK = 1 << 16  # elements of which there are copies at a time


def blocks_of_rows(shape: tuple[int, ...]) -> Iterator[tuple]:
    """Keys of blocks of whole rows of an array on the CPU, whose copies stay in the cache."""
    each = math.prod(shape[1:])
    if len(shape) > 2 and each > BLOCK:
        for i in range(shape[0]):
            yield from ((i, *key) for key in blocks_of_rows(shape[1:]))
        return
    step = shape[0] if len(shape) == 1 else BLOCK // max(1, each)
    for start in range(0, shape[0], max(1, step)):
        yield (slice(start, start + max(1, step)),)
