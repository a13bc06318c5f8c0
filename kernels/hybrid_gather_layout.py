"""How the gather kernel stores a matrix: which rows make a unit, and where its words begin.

A word is an element and its column together; a unit is a few rows.  NumPy and CuPy share the
array functions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from sparse24.kernels import cpu_gather_order, hybrid_gather_order
from sparse24.kernels.hybrid_gather_order import STEP
from sparse24.kernels.hybrid_gather_plan import PANEL
from sparse24.kernels.hybrid_units import Units


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
    panels, count, most = counts.shape[1], len(units.heights), int(units.heights.max(initial=1))
    unit_of_rank, line_of_rank = (xp.asarray(x) for x in units.places())
    heights = xp.asarray(units.heights)
    by_length = _by_length(xp, counts.sum(1))
    slot = unit_of_rank * most + line_of_rank  # of a row, by its rank
    rows = xp.full(count * most, -1, np.int32)
    rows[slot] = by_length
    held = xp.zeros((count * most, panels), np.int64)
    held[slot] = counts[by_length]
    lanes = 32 // heights  # that share a row
    steps = -(-held.reshape(count, most, panels).max(1) // (STEP * lanes[:, None]))
    begins = xp.concatenate([xp.zeros(1, np.int64), xp.cumsum(steps.T.ravel())])
    begins, heights = begins.astype(np.int32), heights.astype(np.int32)
    order = cpu_gather_order.order if xp is np else hybrid_gather_order.order
    return Words(order(bits, rows, heights, begins), begins, heights, rows)


def _by_length(xp, length):
    return xp.argsort(-length, kind="stable") if xp is np else xp.argsort(-length)
