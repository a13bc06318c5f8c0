"""Reference in NumPy for ``cuda/hybrid_regroup.cu``: slow, and the same to the last bit."""

from __future__ import annotations

import numpy as np

from sparse24.kernels.hybrid_regroup import (
    BLOCKS,
    FILLS,
    FRESH,
    GROUP,
    MISSING,
    NEIGHBOURS,
    OVERFLOW,
    ROOM,
    ROWS,
    laid_out,
    ordered,
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
            fills = left[load >= 1].sum(0)
            own, of_group = _blocks(left), _blocks(load[:, None] > 0)
            fresh, missing = (own & ~of_group).sum(0), (of_group & ~own).sum(0)
            worth = count - OVERFLOW[member] * over - FILLS[member] * fills
            worth -= FRESH[member] * fresh + MISSING[member] * missing
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


def _blocks(held: np.ndarray) -> np.ndarray:
    """Whether 64 rows of columns (rows, columns) hold elements: shape (blocks, columns)."""
    held = np.pad(held, ((0, -len(held) % 64), (0, 0)))
    return np.any(held.reshape(-1, 64, held.shape[1]), axis=1)


def columns_of(pool: int, k: int) -> np.ndarray:
    """Columns of the matrix in a pool, in order; some may lie past its end."""
    number = pools(k)
    first = np.arange(pool * NEIGHBOURS, k, number * NEIGHBOURS)
    return (first[:, None] + np.arange(NEIGHBOURS)).ravel()


def prepare(bits: np.ndarray) -> Strips:
    """The strips of a matrix (m, k) of uint16."""
    m, k = bits.shape
    wide = np.pad(bits, ((0, -m % ROWS), (0, -k % NEIGHBOURS)))
    number, most = pools(k), ROOM // GROUP
    columns = np.full((len(wide) // ROWS, number * most, GROUP), k, np.int32)
    values = np.zeros((*columns.shape, ROWS), bits.dtype)
    for strip, pool in np.ndindex(len(columns), number):
        rows = wide[strip * ROWS : (strip + 1) * ROWS]
        found, elements = _pool(rows, columns_of(pool, k), k)
        here = slice(pool * most, pool * most + len(found))
        columns[strip, here], values[strip, here] = found, elements
    held = (values != 0).any(axis=2).reshape(*columns.shape[:2], BLOCKS, 64).any(axis=3)
    order, live = ordered((held << np.arange(BLOCKS)).sum(axis=2).astype(np.uint8))
    where = laid_out(live)
    dense = np.zeros((len(where.strip_of_atom), ROWS, ATOM), np.uint16)
    sources = np.full((2 * len(dense), BLOCK), k, np.int32)
    groups = BLOCK // GROUP
    for at, stage in enumerate(where.stages):
        strip = where.strip_of_atom[at // 2]
        chosen = order[strip, stage * groups : (stage + 1) * groups]
        width = GROUP * len(chosen)
        sources[at, :width] = columns[strip, chosen].ravel()
        part = values[strip, chosen].reshape(width, ROWS).T
        dense[at // 2, :, at % 2 * BLOCK :][:, :width] = part
    return Strips(dense, sources, where)


def _pool(rows: np.ndarray, columns: np.ndarray, none: int) -> tuple[np.ndarray, np.ndarray]:
    """The groups of a pool of a strip: columns, `none` where one is empty, and their elements."""
    slots, taken = regroup(rows[:, columns] != 0)
    values = np.where(taken, rows[:, columns[slots]].transpose(1, 2, 0), 0).astype(rows.dtype)
    return np.where(slots < 0, none, columns[slots]), values
