"""The order in which the panel kernel reads a matrix: elements of units, spread over the banks.

A unit's part in a panel is taken by groups of eight lanes.  Eight rows share a group, or groups
one after the other; if a unit has fewer rows, several lanes of a group share a row.  The
non-zeros are found where the matrix is, and their order on the CPU.  Reference: `reference_panel`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from sparse24 import _arrays
from sparse24.kernels.hybrid_panel_plan import Form, form_of
from sparse24.kernels.hybrid_units import Units

STEP = 4  # turns of a warp whose elements are read together, 32 each
BANKS = 8  # of 16 bytes; as many lanes are served together
PADDING = 8  # beside a bank: a lane has no element


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


def lay_out(bits: Any, counts: np.ndarray, units: Units, lines: int, xp=np) -> Words:
    """The units of a dense (m, k) matrix, whose rows have `counts` non-zeros in every panel."""
    from sparse24.kernels import hybrid_panel_order  # with Numba, which takes long to import

    form = form_of(bits.dtype.itemsize)
    row, column = xp.nonzero(bits)
    values = bits[row, column]
    place = _arrays.to_numpy((column % lines).astype(np.uint16))
    starts = np.concatenate([[0], np.cumsum(counts.ravel())])
    order = _row_order(counts, starts, place, units)
    unit_of_rank, line_of_rank = units.places()
    slot = unit_of_rank * form.height + line_of_rank  # of a row, by its rank
    rows = np.full(len(units) * form.height, -1, np.int32)
    rows[slot] = order
    heights = units.heights.astype(np.int32)
    begins = begins_of(counts[order], slot, units.heights, form)
    at, places = hybrid_panel_order.order_parts(heights, rows, begins, starts, place, lines, form)
    ordered = xp.zeros(places.size, bits.dtype)
    ordered[xp.asarray(at)] = values
    arrays = (places, begins.astype(np.int32), heights, rows)
    return Words(ordered, *(xp.asarray(x) for x in arrays))


def _row_order(
    counts: np.ndarray, starts: np.ndarray, place: np.ndarray, units: Units
) -> np.ndarray:
    """The rows, the longest first, in sets of eight that need all banks about alike."""
    from sparse24.kernels import hybrid_panel_mix

    order = np.argsort(-counts.sum(1), kind="stable")
    unit, line = units.places()
    sets = np.cumsum(line % BANKS == 0) - 1
    needs = hybrid_panel_mix.bank_needs(starts, place).reshape(*counts.shape, BANKS)
    return order[hybrid_panel_mix.mix_rows(needs[order], sets, units.heights[unit])]


def begins_of(counts: np.ndarray, slot: np.ndarray, heights: np.ndarray, form: Form) -> np.ndarray:
    """Where the parts of units begin, as the kernel's header says.

    `counts` and `slot` are of the sorted rows.
    """
    units, panels = heights.size, counts.shape[1]
    held = np.zeros((units * form.height, panels), np.int64)
    held[slot] = counts
    longest = held.reshape(units, form.height, panels).max(1)
    turns = (-(-longest * heights[:, None] // 32)).T.ravel()
    steps = np.concatenate([[0], np.cumsum(-(-turns // STEP))])
    begins = STEP * steps
    if form.tensor:  # plain lanes take whole steps
        begins[:-1] += turns % STEP
    return begins
