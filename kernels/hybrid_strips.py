"""Strips of an unstructured matrix as 2:4 matrices, which ``hybrid_wgmma`` multiplies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

BLOCK = 64  # columns of a stage of the product
ATOM = 2 * BLOCK
LEAST_ATOMS = 2  # of a strip: one for each of the blocks that may share it


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
    table : ndarray of int32, shape (strips, 4)
        First stage (half an atom), stages, those of them whose columns are neighbours in
        the matrix, and the first row; the longest strips first; on the host.
    gathered : int
        Stages whose columns are not neighbours, of all strips.
    lengths : ndarray of int, shape (strips,)
        Stages of every strip, the longest first, on the host.
    """

    dense: Any
    sources: Any
    table: np.ndarray
    gathered: int
    lengths: np.ndarray


@dataclass(frozen=True)
class Tables:
    """Where the strips lie, on the host.

    Attributes
    ----------
    table : ndarray of int32, shape (strips, 4)
        As in `Strips`.
    first : ndarray of int32, shape (strips,)
        First atom of every strip, from the top of the matrix down.
    strip_of_atom : ndarray of int32
    """

    table: np.ndarray
    first: np.ndarray
    strip_of_atom: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """Stages of every strip, the longest first."""
        return self.table[:, 1]

    @property
    def gathered(self) -> int:
        """Stages whose columns are not neighbours, of all strips."""
        return int((self.table[:, 1] - self.table[:, 2]).sum())


def tables(plain: np.ndarray, columns: np.ndarray, rows: int) -> Tables:
    """Lay out strips of so many rows, each of `plain` stages and then so many other columns."""
    stages = plain + -(-columns // BLOCK)
    atoms = np.maximum(-(-stages // 2), LEAST_ATOMS)
    first = np.cumsum(atoms) - atoms
    strips = np.arange(len(atoms))
    table = np.stack([2 * first, 2 * atoms, plain, strips * rows], axis=1)
    order = np.argsort(-atoms, kind="stable")
    return Tables(
        table[order].astype(np.int32), first.astype(np.int32),
        np.repeat(strips, atoms).astype(np.int32),
    )  # fmt: skip
