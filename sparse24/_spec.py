"""The 2:4 bit layout, written once.

Everything here is a number or a table; nothing imports an array library but
NumPy.  CUDA and Numba code repeat some of these numbers, and a test compares.

Code of a group of four elements (source: PTX ISA, ``mma.sp`` sparse matrix storage)::

    kept pair   (0,1)  (0,2)  (0,3)  (1,2)  (1,3)  (2,3)
    code         0x4    0x8    0xC    0x9    0xD    0xE      low 2 bits: first, high 2: second

A group with fewer than two non-zeros still stores two values and a legal code:

    one non-zero at i < 3   code (i, 3), second value 0
    one non-zero at 3       code (0, 3), first value 0
    none                    code (0, 1), both values 0
"""

from __future__ import annotations

import numpy as np

GROUP = 4  # elements in a group along K
KEPT = 2  # stored elements of a group
CODES_PER_BYTE = 2  # canonical metadata: low K in the low nibble

PAIRS = ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))
CODE_OF_PAIR = {pair: pair[0] | (pair[1] << 2) for pair in PAIRS}
LEGAL_CODES = tuple(CODE_OF_PAIR[pair] for pair in PAIRS)  # 4 8 C 9 D E
EMPTY_CODE = CODE_OF_PAIR[(0, 1)]  # a group without non-zeros, and padding

# Packed metadata: atoms of 64 rows by 128 columns, 1024 bytes each, M-fastest then K.
ATOM_M = 64
ATOM_K = 128
ATOM_BYTES = 1024
ATOM_K_TF32 = 64  # pattern 1:2 in TF32: a code covers two elements

FORMAT_VERSION = 1  # of saved files


def groups(k: int) -> int:
    """Number of groups of four along a row of `k` elements."""
    return -(-k // GROUP)


def values_per_row(k: int) -> int:
    """Stored elements of a row of `k` elements."""
    return KEPT * groups(k)


def metadata_bytes_per_row(k: int) -> int:
    """Canonical metadata bytes of a row of `k` elements."""
    return -(-groups(k) // CODES_PER_BYTE)


def packed_shape(m: int, k: int, *, atom_k: int = ATOM_K) -> tuple[int, int, int]:
    """Shape of the packed metadata of an (m, k) matrix: (K atoms, M atoms, bytes)."""
    return (-(-k // atom_k), -(-m // ATOM_M), ATOM_BYTES)


def _atom_nibbles_16bit() -> np.ndarray:
    """Place, in nibbles, of the code of (row, group) inside a 64x128 atom of 16-bit elements.

    Bit offset (k = first element of the group, w = row // 16, r8 = row // 8 % 2, g = row % 8)::

        (k & 15) + 16 r8 + 32 (k >> 5) + 128 g + 1024 ((k >> 4) & 1) + 2048 w

    so the four 32-bit words that a thread feeds to four k32 instructions are adjacent.
    Source: CUTLASS, sm90 sparse layout E, derived anew; see the layout page.
    """
    row = np.arange(ATOM_M)[:, None]
    k = GROUP * np.arange(ATOM_K // GROUP)[None, :]
    words = ATOM_K // 32
    w, r8, g = row >> 4, (row >> 3) & 1, row & 7
    bit = (k & 15) + 16 * r8 + 32 * (k >> 5) + 32 * words * g
    bit = bit + 256 * words * ((k >> 4) & 1) + 512 * words * w
    return bit // 4


def _atom_nibbles_8bit() -> np.ndarray:
    """Place of the code of (row, group) for 8-bit elements: plain row-major, 16 bytes a row."""
    row = np.arange(ATOM_M)[:, None]
    group = np.arange(ATOM_K // GROUP)[None, :]
    return row * (ATOM_K // GROUP) + group


ATOM_NIBBLES_16BIT = _atom_nibbles_16bit()
ATOM_NIBBLES_8BIT = _atom_nibbles_8bit()
# A pair of TF32 elements, of which one is stored, has the bytes and the place of four in 16 bits.
ATOM_NIBBLES_TF32 = ATOM_NIBBLES_16BIT


def atom_nibbles(itemsize: int) -> np.ndarray:
    """Nibble places (64, 32) inside an atom for elements of `itemsize` bytes.

    8-bit elements have their own order; all wider ones share the 16-bit order.
    """
    return ATOM_NIBBLES_8BIT if itemsize == 1 else ATOM_NIBBLES_16BIT


def _tile_masks() -> np.ndarray:
    """The 90 masks of a 4x4 tile with two places in every row and column, ascending.

    Bit 4 * row + column of a mask is that place.
    """
    rows = [1 << i | 1 << j for i, j in PAIRS]
    full = [
        r0 | r1 << 4 | r2 << 8 | r3 << 12
        for r0 in rows
        for r1 in rows
        for r2 in rows
        for r3 in rows
        if all(sum(r >> column & 1 for r in (r0, r1, r2, r3)) == KEPT for column in range(GROUP))
    ]
    return np.array(sorted(full), np.uint16)


TILE_MASKS = _tile_masks()
