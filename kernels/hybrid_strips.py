"""Strips of an unstructured matrix as 2:4 matrices, which ``hybrid_wgmma`` multiplies."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

BLOCK = 64  # columns of a stage of the product
ROW_BLOCK = 64  # rows of an instruction
FIRST_ROWS = 3  # from this column of a table of strips on
ATOM = 2 * BLOCK
LEAST_ATOMS = 2  # of a strip: one for each of the blocks that may share it
# The part of a stage's time that does not depend on its elements: rows of b are fetched anyway.
# docs/benchmarks/log_hybrid.rst.
FIXED_SHARE = 0.35
GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True)
class Tables:
    """Where the strips lie, and what their stages are; on the host.

    Attributes
    ----------
    table : ndarray of int32, shape (strips, FIRST_ROWS + rows of a strip / 64)
        First stage (half an atom), stages, those of them whose columns are neighbours in
        the matrix, and the first row of each 64; the dearest strips first.
    first : ndarray of int32, shape (strips,)
        First atom of every strip, from the top of the matrix down.
    strip_of_atom : ndarray of int32, shape (atoms,)
    stages : ndarray of int32, shape (2 * atoms,)
        Which of its strip's stages stands there: they may be interleaved.
    live : ndarray of uint16, shape (2 * atoms,)
        Which 64 rows of a stage have elements, a bit each.
    shares : ndarray of float, shape (strips,)
        Of 64 rows in the stages of a strip, those that have elements; in the order of `table`.
    """

    table: np.ndarray
    first: np.ndarray
    strip_of_atom: np.ndarray
    stages: np.ndarray
    live: np.ndarray
    shares: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """Stages of every strip, the dearest first."""
        return self.table[:, 1]

    @property
    def cost(self) -> float:
        """What a product costs, in stages of which all rows have elements."""
        return float(cost(self.lengths, self.shares).sum())

    @property
    def gathered(self) -> int:
        """Stages whose columns are not neighbours, of all strips."""
        return int((self.table[:, 1] - self.table[:, 2]).sum())


@dataclass(frozen=True)
class Strips:
    """An (m, k) matrix as 2:4 strips.

    Attributes
    ----------
    dense : array of uint16, shape (atoms, rows of a strip, 128)
        The strips one after the other, 128 columns at a time; no group of four columns
        has more than two non-zeros in a row.
    sources : array of int32, shape (2 * atoms, 64)
        Which column of the matrix each column is; `k` or more for none.
    tables : Tables
    """

    dense: Any
    sources: Any
    tables: Tables


def cost(stages: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """What strips cost, in stages of which all rows have elements."""
    return stages * (FIXED_SHARE + (1 - FIXED_SHARE) * shares)


def interleaved(count: int) -> np.ndarray:
    """The numbers below `count`, neighbours far apart: every stretch of them has some of all."""
    step = round(GOLDEN * count)
    while math.gcd(step, count) > 1:
        step += 1
    return np.arange(count) * step % count


def tables(
    plain: np.ndarray, columns: np.ndarray, rows: int, live: np.ndarray | None = None
) -> Tables:
    """Lay out strips of so many rows, each of `plain` stages and then so many other columns.

    Parameters
    ----------
    live : ndarray of uint8, shape (strips, most stages), optional
        Which 64 rows of each stage have elements; with it stages are interleaved, so that each
        part of a strip costs about as much as any other.
    """
    count = plain + -(-columns // BLOCK)
    atoms = np.maximum(-(-count // 2), LEAST_ATOMS)
    first = np.cumsum(atoms) - atoms
    strip_of_atom = np.repeat(np.arange(len(atoms)), atoms).astype(np.int32)
    order = np.arange if live is None else interleaved
    stages = np.concatenate([np.zeros(0, int), *(order(2 * x) for x in atoms)]).astype(np.int32)
    if live is None:
        masks = np.full(len(stages), (1 << rows // ROW_BLOCK) - 1, np.uint16)
    else:
        wide = np.pad(live, ((0, 0), (0, max(0, 2 * int(atoms.max(initial=0)) - live.shape[1]))))
        masks = wide[np.repeat(strip_of_atom, 2), stages].astype(np.uint16)
    bits = (masks[:, None] >> np.arange(rows // ROW_BLOCK) & 1).mean(axis=1)
    shares = np.add.reduceat(bits, 2 * first) / (2 * atoms) if len(atoms) else np.zeros(0)
    row_blocks = np.arange(len(atoms))[:, None] * rows + np.arange(0, rows, ROW_BLOCK)
    table = np.column_stack([2 * first, 2 * atoms, plain, row_blocks])
    dearest = np.argsort(-cost(2 * atoms, shares), kind="stable")
    return Tables(
        table[dearest].astype(np.int32), first.astype(np.int32), strip_of_atom, stages, masks,
        shares[dearest],
    )  # fmt: skip
