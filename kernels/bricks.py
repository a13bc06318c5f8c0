"""The layout of quantised 2:4 matrices, `cuda/include/bricks.cuh`, by operations on whole arrays.

A brick holds 16 rows by 128 columns: their stored elements, as integers of 4 or 8 bits, their codes
and a factor for each row.  Everything here takes NumPy and CuPy arrays.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from sparse24 import _spec
from sparse24._arrays import namespace

ROWS, COLUMNS = 16, 128  # of a brick
STORED = COLUMNS // 2  # elements of a row of a brick
CODES, FACTORS = 256, 64  # bytes
BITS = (4, 8)
_STEPS, _LANES = 4, 4  # of 32 columns in a brick; that share a row


class Parts(NamedTuple):
    """What bricks hold.

    Attributes
    ----------
    integers : array of int8, shape (m, at least k / 2)
        Stored elements, as many in a row as in whole bricks or less.
    codes : array of uint8, shape (K atoms, M atoms, 1024)
        Packed metadata for elements of 16 bits.
    factors : array of float32, shape (m, K atoms)
    """

    integers: Any
    codes: Any
    factors: Any


def element_bytes(bits: int) -> int:
    """Bytes of the elements of a brick."""
    return ROWS * STORED * bits // 8


def size(bits: int) -> int:
    """Bytes of a brick."""
    return element_bytes(bits) + CODES + FACTORS


def counts(m: int, k: int) -> tuple[int, int]:
    """Bricks along the rows and the columns of a matrix."""
    return -(-m // ROWS), -(-k // COLUMNS)


def pack(parts: Parts, bits: int):
    """Bricks, uint8 (row blocks, K atoms, bytes), of the parts of a matrix."""
    xp = namespace(parts.integers)
    m, atoms = parts.factors.shape
    blocks = -(-m // ROWS)
    bricks = xp.empty((blocks, atoms, size(bits)), np.uint8)
    elements, codes, factors = _fields(bricks, bits)
    elements[...] = _ordered(_padded(parts.integers, blocks * ROWS, atoms * STORED), bits)
    codes[...] = _by_bricks(parts.codes).swapaxes(0, 1)[:blocks]
    rows = _padded(parts.factors, blocks * ROWS, atoms).astype(np.float32, copy=False)
    by_blocks = xp.ascontiguousarray(rows.reshape(blocks, ROWS, atoms).swapaxes(1, 2))
    factors[...] = by_blocks.view(np.uint8)
    return bricks


def unpack(bricks, m: int, k: int, bits: int) -> Parts:
    """The parts of a matrix (m, k); rows of integers as long as those of 2:4 values."""
    xp = namespace(bricks)
    blocks, atoms, _ = bricks.shape
    elements, codes, factors = _fields(bricks, bits)
    integers = _in_rows(elements, bits).reshape(blocks * ROWS, atoms * STORED)
    packed = xp.full((atoms, *_spec.packed_shape(m, k)[1:]), _spec.EMPTY_CODE * 0x11, np.uint8)
    _by_bricks(packed)[:, :blocks] = codes.swapaxes(0, 1)
    by_blocks = xp.ascontiguousarray(factors).view(np.float32)
    rows = xp.ascontiguousarray(by_blocks.swapaxes(1, 2)).reshape(blocks * ROWS, atoms)
    return Parts(integers[:m, : _spec.values_per_row(k)], packed, rows[:m])


def _fields(bricks, bits: int):
    """Views of the elements, codes and factors."""
    codes_at = element_bytes(bits)
    factors_at = codes_at + CODES
    return bricks[..., :codes_at], bricks[..., codes_at:factors_at], bricks[..., factors_at:]


def _by_bricks(packed):
    """A view of packed metadata: K atoms, row blocks, bytes."""
    atoms, high, _ = packed.shape
    return packed.reshape(atoms, high * _spec.ATOM_M // ROWS, CODES)


def _padded(x, rows: int, columns: int):
    """A matrix with zeros behind its rows and columns."""
    if x.shape == (rows, columns):
        return x
    padded = namespace(x).zeros((rows, columns), x.dtype)
    padded[: x.shape[0], : x.shape[1]] = x[:, :columns]
    return padded


# Axes of elements by rows: row block, row, atom, then of the elements of a row of a brick those of
# `_by_lanes`.  A lane multiplies the pairs 2 t + 8 half + e of a step (bricks.cuh).
def _ordered(integers, bits: int):
    """Elements (row blocks, atoms, bytes) of integers (rows, columns)."""
    xp = namespace(integers)
    blocks, atoms = integers.shape[0] // ROWS, integers.shape[1] // STORED
    if bits == 8:  # step, half, lane, e
        by_rows = integers.reshape(blocks, ROWS, atoms, _STEPS, 2, _LANES, 2)
        ordered = xp.ascontiguousarray(by_rows.transpose(0, 2, 3, 1, 5, 4, 6))
        return ordered.view(np.uint8).reshape(blocks, atoms, element_bytes(bits))
    # chunk, step % 2, half, lane, e
    by_rows = integers.view(np.uint8).reshape(blocks, ROWS, atoms, _STEPS // 2, 2, 2, _LANES, 2)
    low, high = (by_rows[..., half, :, :] for half in range(2))
    pairs = low & 15 | high << 4  # ..., chunk, step % 2, lane, e
    ordered = xp.ascontiguousarray(pairs.transpose(0, 2, 3, 1, 5, 6, 4))
    return ordered.reshape(blocks, atoms, element_bytes(bits))


def _in_rows(elements, bits: int):
    """The inverse of `_ordered`: int8 (row blocks, rows, atoms, stored elements)."""
    xp = namespace(elements)
    blocks, atoms, _ = elements.shape
    if bits == 8:
        ordered = xp.ascontiguousarray(elements).view(np.int8)
        by_lanes = ordered.reshape(blocks, atoms, _STEPS, ROWS, _LANES, 2, 2)
        by_rows = by_lanes.transpose(0, 3, 1, 2, 5, 4, 6)
        return xp.ascontiguousarray(by_rows).reshape(blocks, ROWS, atoms, STORED)
    by_lanes = elements.reshape(blocks, atoms, _STEPS // 2, ROWS, _LANES, 2, 2)
    pairs = by_lanes.transpose(0, 3, 1, 2, 6, 4, 5)  # ..., chunk, step % 2, lane, e
    both = xp.stack([pairs & 15, pairs >> 4], axis=-3)
    signed = (both ^ 8).view(np.int8) - np.int8(8)
    return signed.reshape(blocks, ROWS, atoms, STORED)
