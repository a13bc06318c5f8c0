"""Launch ``cuda/hybrid_regroup.cu``: strips as 2:4 matrices, their columns grouped anew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sparse24 import _arrays
from sparse24.kernels import loader
from sparse24.kernels.hybrid_strips import ATOM, BLOCK, Strips, Tables, tables

NAME = "hybrid_regroup"
ROWS = 256  # of a strip
GROUP = 4
NEIGHBOURS = 32  # columns that are dealt to a pool together
POOL = 1024  # most columns of a pool
ROOM = 2 * POOL  # slots of a pool
# What counts for a column that joins a group, in order: rows that overflow, its own, and rows
# that it fills for the next.
OVERFLOW, ELEMENT, FILLS = 1000, 2, 3
_THREADS = 256


def pools(k: int) -> int:
    """To which the columns of a strip are dealt."""
    return max(1, -(-k // POOL))


@dataclass(frozen=True)
class Plan:
    """Which columns form groups; arrays as in the kernel's header.

    Attributes
    ----------
    tables : Tables
        What they make of the strips.
    """

    slots: Any
    taken: Any
    groups: Any
    tables: Tables


def plan(bits: Any) -> Plan:
    """Group the columns of a CuPy matrix (m, k) of uint16, rows contiguous, no -0.0; waits once."""
    xp = _arrays.cupy_module()
    m, k = bits.shape
    grid = (pools(k), -(-m // ROWS))
    slots = xp.empty((*grid[::-1], ROOM), np.int32)
    taken = xp.empty((*slots.shape, ROWS // 32), np.uint32)
    groups = xp.empty(grid[::-1], np.int32)
    pitch = np.int64(bits.strides[0] // 2)
    _kernel("regroup")(grid, (_THREADS,), (bits, m, k, pitch, slots, taken, groups))
    return Plan(slots, taken, groups, laid_out(groups.get()))


def laid_out(groups: np.ndarray) -> Tables:
    """The tables of strips with so many groups in their pools, shape (strips, pools)."""
    columns = GROUP * groups.sum(axis=1, dtype=np.int64)
    return tables(np.zeros_like(columns), columns, ROWS)


def prepare(bits: Any) -> Strips:
    """Rewrite a matrix as in `plan`; waits once, for the sizes of the strips."""
    return fill(bits, plan(bits))


def fill(bits: Any, made: Plan) -> Strips:
    """Rewrite a matrix as it was planned, without waiting."""
    xp, where = _arrays.cupy_module(), made.tables
    atoms = len(where.strip_of_atom)
    dense = xp.empty((atoms, ROWS, ATOM), np.uint16)
    sources = xp.empty((2 * atoms, BLOCK), np.int32)
    pitch = np.int64(bits.strides[0] // 2)
    _kernel("fill")(
        (atoms,), (ATOM,),
        (bits, *bits.shape, pitch, made.slots, made.taken, made.groups, made.groups.shape[1],
         xp.asarray(where.strip_of_atom), xp.asarray(where.first), dense, sources),
    )  # fmt: skip
    return Strips(dense, sources, where.table, where.gathered, where.lengths)


def _kernel(name: str):
    return loader.function(NAME, name, (("ROWS", ROWS),))


COMPILE_CHECKS = [((("ROWS", ROWS),), "sm_90a", None)]
