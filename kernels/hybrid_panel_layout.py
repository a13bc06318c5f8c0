"""The order in which the panel kernel reads a matrix: elements of units, spread over the banks.

NumPy and CuPy share the array functions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from sparse24.kernels import hybrid_gather_layout
from sparse24.kernels.hybrid_gather_layout import BANKS, STEP
from sparse24.kernels.hybrid_gather_plan import MOST_HEIGHT, Units


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
    unit_of_rank, line_of_rank = (xp.asarray(x) for x in units.places())
    heights = xp.asarray(units.heights)
    order = hybrid_gather_layout._by_length(xp, counts.sum(1))
    slot = unit_of_rank * MOST_HEIGHT + line_of_rank  # of a row, by its rank
    rows = xp.full(len(units) * MOST_HEIGHT, -1, np.int32)
    rows[slot] = order
    rank = xp.empty(m, np.int64)
    rank[order] = xp.arange(m)
    lanes = 32 // heights  # that share a row
    begins = _begins(counts[order], slot, lanes, xp)
    row, column = xp.nonzero(bits)
    panel, place = column // lines, column % lines
    unit, line = unit_of_rank[rank[row]], line_of_rank[rank[row]]
    offset = line * xp.maximum(BANKS // heights, 1)[unit] % BANKS
    within = hybrid_gather_layout._spread(
        xp, row * panels + panel, counts.ravel(), place % BANKS, offset
    )
    step, lane = within // lanes[unit], line + within % lanes[unit] * heights[unit]
    at = ((begins[unit + panel * len(units)] + step // STEP) * 32 + lane) * STEP + step % STEP
    size = int(begins[-1]) * 32 * STEP
    values, places = xp.zeros(size, np.uint32), _padding(size, lines, xp)
    values[at] = bits[row, column]
    places[at] = place
    return Words(values, places, begins.astype(np.int32), heights.astype(np.int32), rows)


def _begins(counts, slot, lanes, xp):
    """First step of every part of every unit; `counts` and `slot` are of the sorted rows."""
    panels = counts.shape[1]
    held = xp.zeros((lanes.size * MOST_HEIGHT, panels), np.int64)
    held[slot] = counts
    longest = held.reshape(lanes.size, MOST_HEIGHT, panels).max(1)
    steps = -(-longest // (STEP * lanes[:, None]))
    return xp.concatenate([xp.zeros(1, np.int64), xp.cumsum(steps.T.ravel())])


def _padding(size: int, lines: int, xp):
    """Places of zeros, in a bank that the other lanes mostly do not read."""
    at = xp.arange(size)
    return (lines + (at % STEP + at // STEP) % BANKS).astype(np.uint16)
