"""The order in which the panel kernel reads a matrix: elements of units, spread over the banks.

A unit's part in a panel is taken by groups of eight lanes.  Eight rows share a group, or groups
one after the other; if a unit has fewer rows, several lanes of a group share a row.  NumPy and
CuPy share the array functions; which bank comes when is found on the CPU.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from sparse24 import _arrays
from sparse24.kernels.hybrid_gather_plan import MOST_HEIGHT, Units
from sparse24.kernels.hybrid_panel_order import BANKS, PADDING, bank_order, mix_rows

STEP = 4  # elements of a lane that are read together


class Words(NamedTuple):
    """A matrix as units; the arrays are those of the kernel's header."""

    values: Any
    places: Any
    begins: Any
    heights: Any
    rows: Any


def row_counts(bits: Any, lines: int, xp=np) -> Any:
    """Non-zeros of every row in every panel of `lines` columns of a dense (m, k) matrix."""
    m, k = bits.shape
    panels = -(-k // lines)
    whole = xp.zeros((m, panels * lines), bool)
    whole[:, :k] = bits != 0
    return whole.reshape(m, panels, lines).sum(2)


def lay_out(bits: Any, counts: Any, units: Units, lines: int, xp=np) -> Words:
    """The units of a dense (m, k) matrix, whose rows have `counts` non-zeros in every panel."""
    m, panels = counts.shape
    row, column = xp.nonzero(bits)
    panel, place = column // lines, column % lines
    segment, bank = row * panels + panel, place % BANKS
    needs = xp.bincount(segment * BANKS + bank, minlength=m * panels * BANKS)
    order = _row_order(xp, needs.reshape(m, panels, BANKS), units)
    unit_of_rank, line_of_rank = (xp.asarray(x) for x in units.places())
    slot = unit_of_rank * MOST_HEIGHT + line_of_rank  # of a row, by its rank
    rows = xp.full(len(units) * MOST_HEIGHT, -1, np.int32)
    rows[slot] = order
    rank = xp.empty(m, np.int64)
    rank[order] = xp.arange(m)
    heights = xp.asarray(units.heights)
    begins = _begins(counts[order], slot, heights, xp)
    groups = _Groups(xp, xp.tile(heights, panels), begins)
    part, line = panel * len(units) + unit_of_rank[rank[row]], line_of_rank[rank[row]]
    key = groups.lane(part, line, _within(xp, segment, bank)) * BANKS + bank
    at, pads, idle = groups.places(key)
    size = int(begins[-1]) * 32 * STEP
    values, places = xp.zeros(size, np.uint32), xp.empty(size, np.uint16)
    element = _sorted(xp, key)
    values[at] = bits[row, column][element]
    places[at] = place[element]
    places[pads] = lines + idle
    return Words(values, places, begins.astype(np.int32), heights.astype(np.int32), rows)


def _row_order(xp, needs, units: Units):
    """The rows, the longest first, in sets of eight that need all banks about alike."""
    lengths = needs.sum((1, 2))
    order = _sorted(xp, lengths.sum() - lengths)
    unit, line = units.places()
    sets = np.cumsum(line % BANKS == 0) - 1
    mixed = mix_rows(_arrays.to_numpy(needs[order]), sets, units.heights[unit])
    return order[xp.asarray(mixed)]


def _begins(counts, slot, heights, xp):
    """First step of every part of every unit; `counts` and `slot` are of the sorted rows."""
    units, panels = heights.size, counts.shape[1]
    held = xp.zeros((units * MOST_HEIGHT, panels), np.int64)
    held[slot] = counts
    longest = held.reshape(units, MOST_HEIGHT, panels).max(1)
    steps = -(-longest * heights[:, None] // (STEP * 32))
    return xp.concatenate([xp.zeros(1, np.int64), xp.cumsum(steps.T.ravel())])


class _Groups:
    """Groups of eight lanes, by part: how many, and where in memory their elements lie."""

    def __init__(self, xp, heights, begins):
        self.xp, self.heights, self.begins = xp, heights, begins
        self.tall = xp.maximum(heights, BANKS)  # lanes from one turn of a group to the next
        ends = xp.cumsum(self.tall // BANKS)
        self.firsts, self.count = ends - self.tall // BANKS, int(ends[-1])
        self.part = xp.searchsorted(ends, xp.arange(self.count), side="right")
        self.turns = xp.diff(begins)[self.part] * STEP * 32 // self.tall[self.part]

    def lane(self, part, line, within):
        """The lane, counted over all groups, that takes element number `within` of its row."""
        height = self.heights[part]
        shared = within % self.xp.maximum(BANKS // height, 1)
        group = self.firsts[part] + line // BANKS
        return group * BANKS + line % BANKS + shared * height

    def places(self, key):
        """Where elements go, sorted by `key`, lane and bank; where padding goes, and its bank."""
        xp = self.xp
        counts = xp.bincount(key, minlength=self.count * BANKS * BANKS)
        host = (_arrays.to_numpy(x) for x in (counts.reshape(-1, BANKS, BANKS), self.turns))
        banks = xp.asarray(bank_order(*host))
        ends = xp.cumsum(self.turns * BANKS)
        flat = xp.arange(banks.size)
        group = xp.searchsorted(ends, flat, side="right")
        turn, lane = xp.divmod(flat - (ends - self.turns * BANKS)[group], BANKS)
        part = self.part[group]
        tall = self.tall[part]
        number, other = xp.divmod(turn, 32 // tall)  # of an element of its lane; lanes further on
        lane_of_warp = (group - self.firsts[part]) * BANKS + lane + other * tall
        at = ((self.begins[part] + number // STEP) * 32 + lane_of_warp) * STEP + number % STEP
        real = banks < PADDING
        order = _sorted(xp, ((group * BANKS + lane) * BANKS + banks)[real])
        return at[real][order], at[~real], banks[~real].astype(np.uint16) - PADDING


def _within(xp, segment, bank):
    """Number of every element in its segment, sorted by banks."""
    order = _sorted(xp, segment * BANKS + bank)
    ordered = segment[order]
    number = xp.empty(segment.size, np.int64)
    number[order] = xp.arange(segment.size) - xp.searchsorted(ordered, ordered)
    return number


def _sorted(xp, key):
    """Indices that sort integers; equal ones keep their order."""
    return xp.argsort(key * key.size + xp.arange(key.size))
