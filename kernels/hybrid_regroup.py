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
POOL = 2048  # most columns of a pool
ROOM = 2 * POOL  # slots of a pool
# What a column costs as each of the four members of a group, its elements being worth 1: a row that
# overflows, one that it fills for the next, 64 rows that are new to the group, 64 that it lacks.
OVERFLOW, FILLS = (0, 0, 270, 420), (0, 32, 3, 0)
FRESH, MISSING = (0, 2000, 160, 125), (0, 65, 165, 45)
BLOCKS = ROWS // 64  # of rows, of which an instruction multiplies one
_THREADS = 512


def pools(k: int) -> int:
    """To which the columns of a strip are dealt."""
    return max(1, -(-k // POOL))


def gray_ranks() -> np.ndarray:
    """The place of every set of blocks in an order in which neighbours differ by one; none last."""
    sets = np.arange(1 << BLOCKS)
    ranks = np.empty_like(sets)
    ranks[sets ^ sets >> 1] = sets[::-1]
    return ranks


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
    blocks: Any
    order: Any
    tables: Tables


def plan(bits: Any) -> Plan:
    """Group the columns of a CuPy matrix (m, k) of uint16, rows contiguous, no -0.0; waits once."""
    xp = _arrays.cupy_module()
    m, k = bits.shape
    grid = (pools(k), -(-m // ROWS))
    slots = xp.empty((*grid[::-1], ROOM), np.int32)
    taken = xp.empty((*slots.shape, ROWS // 32), np.uint32)
    blocks = xp.zeros((*grid[::-1], ROOM // GROUP), np.uint8)
    pitch = np.int64(bits.strides[0] // 2)
    _kernel("regroup")(grid, (_THREADS,), (bits, m, k, pitch, slots, taken, blocks))
    blocks = blocks.reshape(grid[1], -1)
    order, live = ordered(blocks)
    return Plan(slots, taken, blocks, order, laid_out(_arrays.to_numpy(live)))


def ordered(blocks: Any) -> tuple[Any, Any]:
    """Groups with the same blocks together.

    Parameters
    ----------
    blocks : array of uint8, shape (strips, width)
        0 where there is no group.

    Returns
    -------
    order : array of int32, shape (strips, width)
    live : array of uint8, shape (strips, width / 16)
        The blocks of every stage of them; 0 past the last.
    """
    xp, width = _arrays.namespace(blocks), blocks.shape[1]
    keys = xp.asarray(gray_ranks())[blocks] * width + xp.arange(width)
    order = xp.argsort(keys, axis=1).astype(np.int32)
    stages = xp.take_along_axis(blocks, order, axis=1).reshape(len(blocks), -1, BLOCK // GROUP)
    bits = stages[..., None] >> xp.arange(BLOCKS, dtype=np.uint8) & 1
    live = (bits.any(axis=2) << xp.arange(BLOCKS)).sum(axis=2)
    return order, live.astype(np.uint8)


def laid_out(live: np.ndarray) -> Tables:
    """The tables of strips whose stages have these blocks, shape (strips, most stages)."""
    stages = np.count_nonzero(live, axis=1)
    return tables(np.zeros_like(stages), BLOCK * stages, ROWS, live)


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
        (bits, *bits.shape, pitch, made.slots, made.taken, made.blocks, made.order,
         made.order.shape[1], xp.asarray(where.stages), xp.asarray(where.strip_of_atom),
         dense, sources),
    )  # fmt: skip
    return Strips(dense, sources, where)


def _kernel(name: str):
    return loader.function(NAME, name, (("ROWS", ROWS),))


COMPILE_CHECKS = [((("ROWS", ROWS),), "sm_90a", None)]
