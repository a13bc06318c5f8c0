"""What ``cuda/hybrid_regroup.cu`` means, in NumPy: slow, and the same to the last bit."""

from __future__ import annotations

import numpy as np

from sparse24.kernels.hybrid_regroup import (
    ELEMENT,
    FILLS,
    GROUP,
    NEIGHBOURS,
    OVERFLOW,
    ROWS,
    laid_out,
    pools,
)
from sparse24.kernels.hybrid_strips import ATOM, BLOCK, Strips


def regroup(held: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Group the columns of a pool (rows, columns) of which no row keeps more than two of a group.

    Returns
    -------
    slots : ndarray of int, shape (groups, 4)
        Numbers of columns; -1 where a slot is empty.
    taken : ndarray of bool, shape (groups, 4, rows)
        Which elements of each column the slot has.
    """
    left = held.copy()
    slots, taken = [], []
    while left.any():
        load, joined = np.zeros(len(left), int), np.zeros(left.shape[1], bool)
        columns, rows = np.full(GROUP, -1), np.zeros((GROUP, len(left)), bool)
        for member in range(GROUP):
            count = left.sum(0)
            over = left[load == 2].sum(0)
            fills = left[load >= 1].sum(0) if member < GROUP - 1 else 0
            worth = ELEMENT * count - OVERFLOW * over - FILLS * fills
            may = (count > 0) & ~joined & (2 * over <= count)
            if not may.any():
                break
            best = int(np.where(may, worth, worth.min() - 1).argmax())
            columns[member], rows[member] = best, left[:, best] & (load < 2)
            left[:, best] &= load == 2
            load += rows[member]
            joined[best] = True
        slots.append(columns)
        taken.append(rows)
    shape = (len(slots), GROUP)
    return np.array(slots, int).reshape(shape), np.array(taken, bool).reshape(*shape, len(held))


def columns_of(pool: int, k: int) -> np.ndarray:
    """Columns of the matrix in a pool, in order; some may lie past its end."""
    number = pools(k)
    first = np.arange(pool * NEIGHBOURS, k, number * NEIGHBOURS)
    return (first[:, None] + np.arange(NEIGHBOURS)).ravel()


def prepare(bits: np.ndarray) -> Strips:
    """The strips of a matrix (m, k) of uint16."""
    m, k = bits.shape
    wide = np.pad(bits, ((0, -m % ROWS), (0, -k % NEIGHBOURS)))
    strips, groups = [], []
    for top in range(0, len(wide), ROWS):
        made = [_pool(wide[top : top + ROWS], columns_of(i, k), k) for i in range(pools(k))]
        groups.append([len(columns) // GROUP for columns, _ in made])
        columns, values = (np.concatenate(part, axis=-1) for part in zip(*made))
        strips.append((columns, values))
    where = laid_out(np.array(groups))
    dense = np.zeros((len(where.strip_of_atom), ROWS, ATOM), np.uint16)
    sources = np.full((2 * len(dense), BLOCK), k, np.int32)
    for (columns, values), first in zip(strips, where.first):
        for i in range(0, len(columns), ATOM):
            atom, width = first + i // ATOM, min(ATOM, len(columns) - i)
            dense[atom, :, :width] = values[:, i : i + width]
            sources[2 * atom : 2 * atom + 2].reshape(-1)[:width] = columns[i : i + width]
    return Strips(dense, sources, where.table, where.gathered, where.lengths)


def _pool(rows: np.ndarray, columns: np.ndarray, none: int) -> tuple[np.ndarray, np.ndarray]:
    """The slots of a pool of a strip: columns, `none` where one is empty, and their elements."""
    slots, taken = regroup(rows[:, columns] != 0)
    slots, taken = slots.ravel(), taken.reshape(-1, len(rows))
    values = np.where(taken, rows[:, columns[slots]].T, 0).astype(rows.dtype)
    return np.where(slots < 0, none, columns[slots]), values.T
