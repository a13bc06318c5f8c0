"""Which blocks of 64 rows form strips: those that are empty in the same columns.

A strip takes every column in which any of its rows has an element.  Where zeros are spread
unevenly, blocks have different columns, and a strip of blocks with the same columns takes fewer.
A block keeps its 64 rows together, so that the TMA can store it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from sparse24 import _arrays
from sparse24.kernels.hybrid_strips import FIRST_ROWS, Tables
from sparse24.kernels.hybrid_strips import ROW_BLOCK as BLOCK

# Times fewer columns from which strips of other blocks are planned.
WORTH_GROUPING = 1.01


def held_columns(bits: Any) -> Any:
    """In which columns the blocks of a matrix (m, k) of uint16 have elements: bool (blocks, k)."""
    xp, (m, k) = _arrays.namespace(bits), bits.shape
    held = xp.empty((-(-m // BLOCK), k), bool)
    whole = m // BLOCK
    held[:whole] = bits[: whole * BLOCK].reshape(whole, BLOCK, k).any(axis=1)
    held[whole:] = bits[whole * BLOCK :].any(axis=0)
    return held


def columns_of_strips(held: Any, size: int) -> int:
    """Columns of all strips of `size` successive blocks, of which there are whole strips; waits."""
    return int(held.reshape(-1, size, held.shape[1]).any(axis=1).sum())


def grouping(held: Any, size: int) -> list[int] | None:
    """An order of blocks of which each `size` form a strip; None if that cannot pay.  Waits.

    There are as many numbers as fill the last strip; those past the last block are empty.
    """
    if held.size == 0 or held.all():
        return None
    xp, past = _arrays.namespace(held), -len(held) % size
    wide = xp.concatenate([held, xp.zeros((past, held.shape[1]), bool)])
    order = _greedy(wide, size)
    now, then = (columns_of_strips(x, size) for x in (wide, wide[xp.asarray(order)]))
    return order if now > WORTH_GROUPING * then else None


def _greedy(held: Any, size: int) -> list[int]:
    """The fullest block left begins a strip; those that bring it the fewest new columns follow."""
    xp = _arrays.namespace(held)
    weights = held.astype(np.float32)  # so that counting is a product of matrices
    taken = xp.zeros(len(held), np.float32)
    counts = _arrays.to_numpy(held.sum(axis=1))
    left = dict.fromkeys(np.argsort(-counts, kind="stable").tolist())
    order: list[int] = []
    while left:
        block, lacks = next(iter(left)), xp.ones(held.shape[1], np.float32)
        for _ in range(size):
            order.append(block)
            del left[block]
            taken[block] = np.inf
            lacks *= 1 - weights[block]
            block = int((weights @ lacks + taken).argmin())
    return order


def arranged(bits: Any, order: list[int]) -> Any:
    """The rows of a matrix (m, k), its blocks in such an order: whole strips, padded."""
    xp, (m, k) = _arrays.namespace(bits), bits.shape
    wide = xp.zeros((len(order), BLOCK, k), bits.dtype)
    wide.reshape(-1, k)[:m] = bits
    return wide[xp.asarray(order)].reshape(-1, k)


def placed(where: Tables, order: list[int]) -> Tables:
    """The tables of strips of a matrix that was arranged so, with the rows of the matrix itself."""
    table = where.table.copy()
    table[:, FIRST_ROWS:] = BLOCK * np.asarray(order)[table[:, FIRST_ROWS:] // BLOCK]
    return replace(where, table=table)
