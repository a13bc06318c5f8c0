"""Launch ``cuda/hybrid_evict.cu``: strips of an unstructured matrix as 2:4 matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sparse24 import _arrays
from sparse24.kernels import loader
from sparse24.kernels.hybrid_strips import ATOM, BLOCK, Strips, Tables, tables

NAME = "hybrid_evict"
ROWS = 128  # of a strip
DEARER = 1.6  # what a slot costs, relative to a column that stays where it is


@dataclass(frozen=True)
class Plan:
    """What stays where it is and what becomes slots; arrays as in the kernel's header.

    Attributes
    ----------
    tables : Tables
        What they make of the strips.
    """

    evicted: Any
    plain: Any
    slots: Any
    counts: Any
    tables: Tables


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
    return Plan(evicted, plain, slots, counts, laid_out(counts.get()))


def laid_out(counts: np.ndarray) -> Tables:
    """The tables of strips with so many blocks that stay, and slots, shape (strips, 2)."""
    return tables(counts[:, 0], counts[:, 1], ROWS)


def prepare(bits: Any, dearer: float = DEARER) -> Strips:
    """Rewrite a matrix as in `plan`; waits once, for the sizes of the strips."""
    return fill(bits, plan(bits, dearer))


def fill(bits: Any, made: Plan) -> Strips:
    """Rewrite a matrix as it was planned, without waiting."""
    xp, where = _arrays.cupy_module(), made.tables
    atoms = len(where.strip_of_atom)
    dense = xp.empty((atoms, ROWS, ATOM), np.uint16)
    sources = xp.empty((2 * atoms, BLOCK), np.int32)
    _kernel("fill")(
        (atoms,), (ATOM,),
        (bits, *bits.shape, _pitch(bits), made.evicted, made.plain, made.slots, made.counts,
         made.plain.shape[1], made.slots.shape[1],
         xp.asarray(where.strip_of_atom), xp.asarray(where.first),
         dense, sources),
    )  # fmt: skip
    return Strips(dense, sources, where)


def _pitch(bits: Any) -> np.int64:
    return np.int64(bits.strides[0] // 2)


def _kernel(name: str):
    return loader.function(NAME, name)


COMPILE_CHECKS = [((), "sm_90a", None)]
