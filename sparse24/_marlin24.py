"""The ``marlin-24`` form of compressed-tensors: quantised 2:4 matrices, packed for a GPU kernel.

Three arrays hold a matrix (m, k): ``weight_packed``, its stored elements as integers of 4 or 8
bits, to which half their range was added; ``scale_packed``, a factor for each row or for each 128
columns of a row; and ``meta``, the codes of groups, the very ones of :ref:`layout`.  All are in
the order in which the threads of the kernel read them: bits of the row and of the column of an
element have changed places.  So each array is a transposed one with as many axes as such bits, or
runs of bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from sparse24._errors import FormatError
from sparse24._file_checks import Spec
from sparse24._quantised import Parts

PARTS = ("weight_packed", "scale_packed", "meta")
_GROUP = 128  # columns with a factor of their own, where a row has several
_ROWS, _COLUMNS = 64, 32  # of a tile: its elements, and so its codes, stand together
_DTYPES = {
    "weight_packed": (np.int32,),
    "scale_packed": (np.float16, ml_dtypes.bfloat16),
    "meta": (np.int16,),
}

# Axes of the elements as they are packed: tile along k, tile along m; of the row in its tile the
# bits 5 to 4, and 3; of the stored column in its tile the bits 2 to 1; of the row the bits 1 to 0;
# then three single bits, which `_ELEMENTS` names, outermost first.
_PACKED = (4, 2, 4, 4, 2, 2, 2)
_ELEMENTS = {
    4: (1, 2, 3, 7, 5, 0, 8, 4, 6),  # 0 of the column, 2 of the row, 3 of the column
    8: (1, 2, 3, 6, 5, 0, 8, 4, 7),  # 2 of the row, 0 of the column, 3 of the column
}
# Those of the codes, four in a word of 16 bits: the tiles; of the row the bits 1, 5 to 3, and 0;
# which of the two words of a row and tile; of the row the bit 2.
_WORDS = (2, 8, 2, 2, 2)
_CODES = (1, 3, 6, 2, 4, 0, 5)


@dataclass(frozen=True, slots=True)
class Layout:
    """What the shapes of the three arrays say.

    Attributes
    ----------
    m, k : int
        The shape of the matrix.
    bits : int
        Of an element: 4 or 8.
    groups : int
        Factors of a row.
    """

    m: int
    k: int
    bits: int
    groups: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.m, self.k


def layout(specs: Mapping[str, Spec]) -> Layout:
    """The layout of parts of these shapes and types, checked."""
    for part, known in _DTYPES.items():
        shape, dtype = specs[part]
        if len(shape) != 2 or dtype not in known:
            names = " or ".join(np.dtype(one).name for one in known)
            raise FormatError(
                f"{part} must be {names} and have two axes, got {dtype} of shape {shape}"
            )
    (tiles, width), (groups, m), meta = (specs[part][0] for part in PARTS)
    k = tiles * _COLUMNS
    if m % _ROWS:
        raise FormatError(
            f"scale_packed must have a column for each row of the matrix, a multiple of {_ROWS}, "
            f"got {m}"
        )
    if width not in (2 * m, 4 * m):
        raise FormatError(
            f"weight_packed must have {2 * m} columns for {m} rows of 4 bits, or {4 * m} for "
            f"8 bits, got {width}; other numbers of bits are not packed in this form"
        )
    if meta != (tiles, 2 * m):
        raise FormatError(
            f"meta must have shape {(tiles, 2 * m)} for a matrix of shape {(m, k)}, got {meta}"
        )
    if groups != 1 and groups * _GROUP != k:
        raise FormatError(
            f"scale_packed must have 1 row, or one for each {_GROUP} of {k} columns, got {groups}"
        )
    return Layout(m, k, 4 if width == 2 * m else 8, groups)


def unpack(parts: Mapping[str, np.ndarray], own: Layout, *, scales_permuted: bool) -> Parts:
    """Integers, metadata and factors (m, groups) of the canonical form; codes are not checked."""
    integers = _integers(parts["weight_packed"], own)
    scales = _scales(parts["scale_packed"], own, permuted=scales_permuted)
    return Parts(integers, _metadata(parts["meta"], own), scales.T)


def multiplied(parts: Parts) -> np.ndarray:
    """Values of the canonical form: products of integers and factors, rounded once."""
    (m, stored), groups = parts.integers.shape, parts.factors.shape[1]
    # Types of 16 bits hold these integers, so their product is the exact one, rounded.
    wide = parts.integers.astype(parts.factors.dtype).reshape(m, groups, stored // groups)
    wide *= parts.factors[..., None]
    return wide.reshape(m, stored)


def _integers(packed: np.ndarray, own: Layout) -> np.ndarray:
    """The stored elements (m, k / 2) before they are multiplied by factors."""
    bits = np.ascontiguousarray(packed, "<i4").view(np.uint8)
    if own.bits == 4:
        bits = np.stack([bits & 15, bits >> 4], axis=-1)
    tiles = bits.reshape(own.k // _COLUMNS, own.m // _ROWS, *_PACKED)
    rows = tiles.transpose(_ELEMENTS[own.bits]).reshape(own.m, own.k // 2)
    return (rows - np.uint8(1 << own.bits - 1)).view(np.int8)


def _scales(packed: np.ndarray, own: Layout, *, permuted: bool) -> np.ndarray:
    """The factors (groups, m)."""
    # compressed-tensors permutes them where 128 < k / 2: not where a row has two.
    if not permuted or own.groups <= 2:
        return packed
    return packed.reshape(own.groups, own.m // 8, 4, 2).swapaxes(2, 3).reshape(own.groups, own.m)


def _metadata(words: np.ndarray, own: Layout) -> np.ndarray:
    """The codes (m, k / 8), two a byte."""
    tiles = words.reshape(own.k // _COLUMNS, own.m // _ROWS, *_WORDS)
    rows = tiles.transpose(_CODES).reshape(own.m, own.k // 16)
    return np.ascontiguousarray(rows, "<i2").view(np.uint8)
