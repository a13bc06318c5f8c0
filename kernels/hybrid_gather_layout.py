"""The order in which the gather kernel reads a matrix: words of units, spread over the banks.

A word is an element and its column together; a unit is a few rows.  NumPy and CuPy share the
array functions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from sparse24.kernels.hybrid_gather_plan import PANEL
from sparse24.kernels.hybrid_units import Units

BANKS = 8  # lines of 16 bytes that shared memory serves at a time
PARTS = 4  # of 4 bytes, of the banks of such a line
STEP = 4  # words of a lane that are read together


class Words(NamedTuple):
    """A matrix as units; the arrays are those of the kernel's header, the last one apart."""

    words: Any
    begins: Any
    heights: Any
    rows: Any


def row_counts(bits: Any, xp=np) -> Any:
    """Non-zeros of every row in every panel of a dense (m, k) matrix."""
    m, k = bits.shape
    panels = -(-k // PANEL)
    whole = xp.zeros((m, panels * PANEL), bool)
    whole[:, :k] = bits != 0
    return whole.reshape(m, panels, PANEL).sum(2)


def lay_out(bits: Any, counts: Any, units: Units, xp=np) -> Words:
    """The units of a dense (m, k) matrix, whose rows have `counts` non-zeros in every panel."""
    m, k = bits.shape
    panels, count, most = -(-k // PANEL), len(units.heights), int(units.heights.max(initial=1))
    unit_of_rank, line_of_rank = (xp.asarray(x) for x in units.places())
    heights = xp.asarray(units.heights)
    order = _by_length(xp, counts.sum(1))
    slot = unit_of_rank * most + line_of_rank  # of a row, by its rank
    rows = xp.full(count * most, -1, np.int32)
    rows[slot] = order
    held = xp.zeros((count * most, panels), np.int64)
    held[slot] = counts[order]
    lanes = 32 // heights  # that share a row
    steps = -(-held.reshape(count, most, panels).max(1) // (STEP * lanes[:, None]))
    begins = xp.concatenate([xp.zeros(1, np.int64), xp.cumsum(steps.T.ravel())])
    words = xp.zeros(int(begins[-1]) * 32 * STEP, np.uint32)
    rank = xp.empty(m, np.int64)
    rank[order] = xp.arange(m)
    row, column = xp.nonzero(bits)
    at, line = unit_of_rank[rank[row]], line_of_rank[rank[row]]
    segment = row * panels + column // PANEL
    within = _places(xp, segment, counts.ravel(), column, line, heights[at])
    step, lane = within // lanes[at], line + within % lanes[at] * heights[at]
    place = ((begins[at + column // PANEL * count] + step // STEP) * 32 + lane) * STEP
    value = bits[row, column].astype(np.uint32)
    words[place + step % STEP] = value << 16 | (column % PANEL * 16).astype(np.uint32)
    return Words(words, begins.astype(np.int32), heights.astype(np.int32), rows)


def _by_length(xp, length):
    return xp.argsort(-length, kind="stable") if xp is np else xp.argsort(-length)


def _places(xp, segment, counts, column, line, height):
    """Place of every element in its segment, such that lanes rarely read the same banks.

    Eight neighbouring lanes read at the same time from eight lines of 16 bytes in different banks,
    and all 32 lanes from 32 lines of 4 bytes.  Where a row has not enough elements for that in some
    bank, there are others.
    """
    lanes = 32 // height  # that share a row
    bank, first = column % BANKS, line * xp.maximum(BANKS // height, 1)
    lane = line + height * ((bank - first) % BANKS % lanes)
    part = lane // BANKS * xp.maximum(lanes // BANKS, 1)
    group = segment * BANKS + bank
    order = _stable(xp, group)
    of_group = xp.bincount(group, minlength=BANKS * counts.size)
    turn = xp.empty(group.size, np.int64)
    turn[order] = _spread(
        xp, group[order], of_group, (column // BANKS % PARTS)[order], part[order], PARTS
    )
    return _spread(xp, segment, counts, bank, first, BANKS, turn)


def _spread(xp, segment, counts, bank, offset, banks, turn=None):
    """Place of every element in its segment: banks in turn, beginning with bank `offset`.

    Elements are sorted by segment.  `turn` is an element's among those of its segment and bank, by
    default as they come.  Elements of banks that have more than their share fill the places of
    those that have less.
    """
    size = segment.size
    ends = xp.cumsum(counts)
    start = (ends - counts)[segment]
    if turn is None:
        turn = _turn(xp, segment * banks + bank)
    place = start + turn * banks + (bank - offset) % banks
    fits = place < ends[segment]
    free = xp.ones(size, bool)
    free[place[fits]] = False
    place[~fits] = xp.flatnonzero(free)
    return place - start


def _stable(xp, group):
    """The order that sorts by group, and leaves it as it is within one."""
    return xp.argsort(group * group.size + xp.arange(group.size))


def _turn(xp, group):
    """How many earlier elements of its group every element has."""
    size = group.size
    if not size:
        return xp.zeros(0, np.int64)
    order = _stable(xp, group)
    ordered = group[order]
    first = xp.ones(size, bool)
    first[1:] = ordered[1:] != ordered[:-1]
    starts = xp.flatnonzero(first)
    turn = xp.empty(size, np.int64)
    turn[order] = xp.arange(size) - starts[xp.cumsum(first) - 1]
    return turn
