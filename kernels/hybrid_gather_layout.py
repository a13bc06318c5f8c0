"""The order in which the gather kernel reads a matrix: words of units, spread over the banks.

A word is an element and its column together; a unit is a few rows.  NumPy and CuPy share the
array functions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

PANEL = 4096  # columns of the matrix that a block reads b for
BANKS = 8  # lines of 16 bytes that shared memory serves at a time
STEP = 4  # words of a lane that are read together


def lay_out(bits: Any, height: int, xp=np) -> tuple[Any, Any, Any]:
    """Words, first steps and rows of the units of a dense (m, k) matrix; see the kernel's header.

    `height` is the number of rows of a unit; `xp` is the array library.
    """
    m, k = bits.shape
    panels = -(-k // PANEL)
    row, column = xp.nonzero(bits)
    value = bits[row, column].astype(np.uint32)
    segment = row * panels + column // PANEL
    counts = xp.bincount(segment, minlength=m * panels).reshape(m, panels)
    order = _by_length(xp, counts.sum(1))
    units = -(-m // height)
    rows = xp.full(units * height, -1, np.int32)
    rows[:m] = order
    rank = xp.empty(m, np.int64)
    rank[order] = xp.arange(m)
    lanes = 32 // height
    held = xp.zeros((units * height, panels), np.int64)
    held[:m] = counts[order]
    steps = -(-held.reshape(units, height, panels).max(1) // (STEP * lanes))
    begins = xp.concatenate([xp.zeros(1, np.int64), xp.cumsum(steps.T.ravel())])
    words = xp.zeros(int(begins[-1]) * 32 * STEP, np.uint32)
    line = rank[row] % height
    within = _spread(xp, segment, counts.ravel(), column % BANKS, line % BANKS)
    position = within // lanes
    unit = rank[row] // height + column // PANEL * units
    at = ((begins[unit] + position // STEP) * 32 + line + within % lanes * height) * STEP
    words[at + position % STEP] = value << 16 | (column % PANEL * 16).astype(np.uint32)
    return words, begins.astype(np.int32), rows


def _by_length(xp, length):
    return xp.argsort(-length, kind="stable") if xp is np else xp.argsort(-length)


def _spread(xp, segment, counts, bank, offset):
    """Place of every element in its segment: banks in turn, beginning with bank `offset`.

    Elements of banks that have more than their share fill the places of those that have less.
    """
    size = segment.size
    ends = xp.cumsum(counts)
    start = (ends - counts)[segment]
    turn = _turn(xp, segment * BANKS + bank)
    place = start + turn * BANKS + (bank - offset) % BANKS
    fits = place < ends[segment]
    free = xp.ones(size, bool)
    free[place[fits]] = False
    place[~fits] = xp.flatnonzero(free)
    return place - start


def _turn(xp, group):
    """How many earlier elements of its group every element has."""
    size = group.size
    if not size:
        return xp.zeros(0, np.int64)
    order = xp.argsort(group * size + xp.arange(size))
    ordered = group[order]
    first = xp.ones(size, bool)
    first[1:] = ordered[1:] != ordered[:-1]
    starts = xp.flatnonzero(first)
    turn = xp.empty(size, np.int64)
    turn[order] = xp.arange(size) - starts[xp.cumsum(first) - 1]
    return turn
