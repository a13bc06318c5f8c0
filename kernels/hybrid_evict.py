"""Launch ``cuda/hybrid_evict.cu``: strips of an unstructured matrix as 2:4 matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sparse24 import _arrays
from sparse24.kernels import loader

NAME = "hybrid_evict"
ROWS = 128  # of a strip
BLOCK = 64  # columns that stay together: a stage of the product
ATOM = 2 * BLOCK
LEAST_ATOMS = 2  # of a strip: one for each of the blocks that may share it
DEARER = 1.6  # what a slot costs, relative to a column that stays where it is


@dataclass(frozen=True)
class Strips:
    """An (m, k) matrix as 2:4 strips.

    Attributes
    ----------
    dense : array of uint16, shape (atoms, 128, 128)
        The strips one after the other, 128 columns at a time; no group of four columns
        has more than two non-zeros in a row.
    sources : array of int32, shape (2 * atoms, 64)
        Which column of the matrix each column is; `k` or more for none.
    table : array of int32, shape (strips, 4)
        First stage (half an atom), stages, those of them whose columns are neighbours in
        the matrix, and the first row; the longest strips first.
    gathered : int
        Stages whose columns are not neighbours, of all strips.
    lengths : ndarray of int, shape (strips,)
        Stages of every strip, the longest first, on the host.
    """

    dense: Any
    sources: Any
    table: Any
    gathered: int
    lengths: np.ndarray


def tables(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What the (strips, 2) counts of blocks that stay, and of slots, make of the atoms.

    Returns
    -------
    table : ndarray of int32, shape (strips, 4)
        As in `Strips`.
    first : ndarray of int32, shape (strips,)
        First atom of every strip.
    strip_of_atom : ndarray of int32
    """
    stages = counts[:, 0] + -(-counts[:, 1] // BLOCK)
    atoms = np.maximum(-(-stages // 2), LEAST_ATOMS)
    first = np.cumsum(atoms) - atoms
    rows = np.arange(len(counts)) * ROWS
    table = np.stack([2 * first, 2 * atoms, counts[:, 0], rows], axis=1)
    order = np.argsort(-atoms, kind="stable")
    strip_of_atom = np.repeat(np.arange(len(counts)), atoms)
    return table[order].astype(np.int32), first.astype(np.int32), strip_of_atom.astype(np.int32)


@dataclass(frozen=True)
class Plan:
    """What stays where it is and what becomes slots; arrays as in the kernel's header.

    Attributes
    ----------
    sizes : ndarray of int, shape (strips, 2)
        Blocks of 64 columns that stay, and slots, on the host.
    """

    evicted: Any
    plain: Any
    slots: Any
    counts: Any
    sizes: np.ndarray

    @property
    def gathered(self) -> int:
        """Stages that gather their columns, of all strips."""
        return int(self.lengths.sum() - self.sizes[:, 0].sum())

    @property
    def lengths(self) -> np.ndarray:
        """Stages of every strip, the longest first."""
        return tables(self.sizes)[0][:, 1]


def plan(bits: Any, dearer: float = DEARER) -> Plan:
    """Decide for a CuPy matrix (m, k) of uint16 with contiguous rows, without -0.0; waits once."""
    xp = _arrays.cupy_module()
    m, k = bits.shape
    strips, blocks = -(-m // ROWS), -(-k // BLOCK)
    evicted = xp.empty((strips, blocks * BLOCK, 2), np.uint64)
    kept = xp.empty((strips, blocks), np.uint8)
    plain = xp.empty((strips, blocks), np.int32)
    slots = xp.empty((strips, ATOM * blocks + 4), np.int32)
    counts = xp.empty((strips, 2), np.int32)
    _kernel("evict")(
        (blocks, strips), (128,), (bits, m, k, _pitch(bits), evicted, kept, np.float32(dearer))
    )
    arguments = (evicted, kept, blocks, k, plain, slots, slots.shape[1], counts)
    _kernel("pack")((strips,), (32,), arguments)
    return Plan(evicted, plain, slots, counts, counts.get())


def prepare(bits: Any, dearer: float = DEARER) -> Strips:
    """Rewrite a matrix as in `plan`; waits once, for the sizes of the strips."""
    xp, made = _arrays.cupy_module(), plan(bits, dearer)
    table, first, strip_of_atom = tables(made.sizes)
    atoms = len(strip_of_atom)
    dense = xp.empty((atoms, ROWS, ATOM), np.uint16)
    sources = xp.empty((2 * atoms, BLOCK), np.int32)
    _kernel("fill")(
        (atoms,), (ATOM,),
        (bits, *bits.shape, _pitch(bits), made.evicted, made.plain, made.slots, made.counts,
         made.plain.shape[1], made.slots.shape[1], xp.asarray(strip_of_atom), xp.asarray(first),
         dense, sources),
    )  # fmt: skip
    return Strips(dense, sources, xp.asarray(table), made.gathered, made.lengths)


def _pitch(bits: Any) -> np.int64:
    return np.int64(bits.strides[0] // 2)


def _kernel(name: str):
    return loader.function(NAME, name)


COMPILE_CHECKS = [((), "sm_90a", None)]
