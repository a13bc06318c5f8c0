"""In which order the rows of a matrix form strips: sorted, or in other blocks of 64, if that pays.

No row of a 2:4 matrix has more than two elements in a group of four, so a strip takes at least
twice as many columns as its fullest row has non-zeros.  One full row makes a strip as costly as a
dense one; if rows are sorted by their non-zeros, full rows share few strips.

A strip also takes every column in which one of its rows has an element: see `hybrid_row_blocks`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sparse24 import _arrays
from sparse24.kernels.hybrid_row_blocks import (
    WORTH_GROUPING,
    arranged,
    grouping,
    held_columns,
    placed,
)
from sparse24.kernels.hybrid_strips import ROW_BLOCK, Tables

# Times fewer columns from which rows are sorted.  Rows that are stored by number cannot be
# stored by the TMA; with zeros at random places even the bound below does not ask for sorting.
WORTH_SORTING = 1.05


@dataclass(frozen=True)
class Ordered:
    """A matrix whose rows are in the order of its strips.

    Attributes
    ----------
    bits : array of uint16, shape (m or more, k)
    rows : array of int32, shape (strips * rows of a strip,), or None
        Number of each row, m or more past the last; None if blocks of 64 have kept theirs.
    plan
        How strips of them are rewritten.
    tables : Tables
        Where the strips lie; first rows are numbers of the matrix itself if `rows` is None.
    """

    bits: Any
    rows: Any
    plan: Any
    tables: Tables


def least_columns(counts: np.ndarray, k: int, height: int) -> int:
    """Least columns of all strips of `height` rows together, if none is empty in a strip.

    `counts` are the non-zeros of each row.
    """
    fullest = np.maximum.reduceat(counts, np.arange(0, len(counts), height))
    return int(np.maximum(k, 2 * fullest).sum())


def sorting(counts: np.ndarray, k: int, height: int) -> np.ndarray | None:
    """Numbers of the rows, those with the most non-zeros first; None if that cannot pay."""
    if not counts.size:
        return None
    order = np.argsort(-counts, kind="stable")
    now, then = (least_columns(x, k, height) for x in (counts, counts[order]))
    return order if now >= WORTH_SORTING * then else None


def ordered(bits: Any, rewrite: Any) -> Ordered:
    """Plan the strips of a matrix (m, k) of uint16 in the best order; waits.

    Sorting parts rows with non-zeros in the same columns, which the bound does not see, and
    grouping blocks passes over how full they are.  Where either may pay, strips are therefore
    planned both ways.

    Parameters
    ----------
    rewrite : module
        ``hybrid_evict`` or ``hybrid_regroup``.
    """
    plan = rewrite.plan(bits)
    natural = Ordered(bits, None, plan, plan.tables)
    for other, worth in ((_by_density, WORTH_SORTING), (_by_columns, WORTH_GROUPING)):
        made = other(bits, rewrite)
        if made is not None and natural.tables.cost >= worth * made.tables.cost:
            return made
    return natural


def _by_density(bits: Any, rewrite: Any) -> Ordered | None:
    xp, (m, k) = _arrays.namespace(bits), bits.shape
    counts = _arrays.to_numpy(xp.count_nonzero(bits, axis=1))
    order = sorting(counts, k, rewrite.ROWS)
    if order is None:
        return None
    past = np.arange(m, m + -m % rewrite.ROWS)
    rows = xp.asarray(np.concatenate([order, past]).astype(np.int32))
    by_density = bits[rows[:m]]
    plan = rewrite.plan(by_density)
    return Ordered(by_density, rows, plan, plan.tables)


def _by_columns(bits: Any, rewrite: Any) -> Ordered | None:
    order = grouping(held_columns(bits), rewrite.ROWS // ROW_BLOCK)
    if order is None:
        return None
    by_columns = arranged(bits, order)
    plan = rewrite.plan(by_columns)
    return Ordered(by_columns, None, plan, placed(plan.tables, order))
