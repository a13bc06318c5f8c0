"""In which order the rows of a matrix form strips: those of like density together, if that pays.

No row of a 2:4 matrix has more than two elements in a group of four, so a strip takes at least
twice as many columns as its fullest row has non-zeros.  One full row makes a strip as dear as a
dense one; sorted by their non-zeros, full rows share few strips.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sparse24 import _arrays

# Times fewer columns from which rows are sorted.  Rows that are stored by number miss the copy
# engine; with zeros that fall by chance even the bound below does not ask for it.
WORTH_SORTING = 1.05


@dataclass(frozen=True)
class Ordered:
    """A matrix whose rows are in the order of its strips.

    Attributes
    ----------
    bits : array of uint16, shape (m, k)
    rows : array of int32, shape (strips * rows of a strip,), or None
        Number of each row, m or more past the last; None if they have kept their order.
    plan
        How strips of them are rewritten.
    """

    bits: Any
    rows: Any
    plan: Any


def least_columns(counts: np.ndarray, k: int, height: int) -> int:
    """Of all strips of `height` rows with so many non-zeros, if no column is empty in a strip."""
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
    """Plan the strips of a matrix (m, k) of uint16 in the better order; waits.

    Sorting parts rows with non-zeros in the same columns, which the bound does not see.  Where it
    may pay, strips are therefore planned both ways.

    Parameters
    ----------
    rewrite : module
        ``hybrid_evict`` or ``hybrid_regroup``.
    """
    xp, (m, k), natural = _arrays.namespace(bits), bits.shape, rewrite.plan(bits)
    counts = _arrays.to_numpy(xp.count_nonzero(bits, axis=1))
    order = sorting(counts, k, rewrite.ROWS)
    if order is not None:
        past = np.arange(m, m + -m % rewrite.ROWS)
        rows = xp.asarray(np.concatenate([order, past]).astype(np.int32))
        by_density = bits[rows[:m]]
        made = rewrite.plan(by_density)
        now, then = (plan.tables.cost for plan in (natural, made))
        if now >= WORTH_SORTING * then:
            return Ordered(by_density, rows, made)
    return Ordered(bits, None, natural)
