"""Matrices in the marlin-24 form, packed element by element, as its kernel wants them."""

from __future__ import annotations

import numpy as np

from sparse24 import _dtypes

# Of groups with fewer than two non-zeros, the places that are stored: those of CUTLASS.
_STORED = {(): (2, 3), (0,): (0, 2), (1,): (1, 2), (2,): (2, 3), (3,): (2, 3)}


def quantised(m, k, bits, groups, dtype="float16"):
    """Integers (m, k) that obey 2:4, of all values, and factors (groups, m).

    Groups have two, one and no non-zeros.
    """
    row, column = np.ogrid[:m, :k]
    kept = np.array([(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)])[(row + column // 4 * 5) % 6]
    half = 1 << bits - 1
    integers = (row * 29 + column * 37 + column // 16) % (2 * half) - half
    kept = (kept == column[..., None] % 4).any(-1) & ((row + column // 4) % 11 > 0)
    integers[~kept] = 0
    scales = (1 + (np.arange(m) * 7 + np.arange(groups)[:, None] * 13) % 61) / 256
    return integers, scales.astype(_dtypes.TABLE[dtype].logical)


def weight(integers, scales):
    """What the two are a form of: products rounded once, to the type of the factors."""
    m, k = integers.shape
    exact = integers.reshape(m, len(scales), -1) * scales.T[..., None].astype(np.float64)
    return exact.reshape(m, k).astype(scales.dtype)


def packed(integers, scales, bits, *, permuted=True):
    """The arrays ``weight_packed``, ``scale_packed`` and ``meta``, as compressed-tensors has them.

    It takes the stored columns, k / 2, for those that groups of 128 divide, so it permutes no
    factors of two groups.  Before version 0.8 it permuted none.
    """
    m, k = integers.shape
    places = np.array([[_places(group) for group in row] for row in integers.reshape(m, -1, 4)])
    stored = np.take_along_axis(integers.reshape(m, -1, 4), places, -1).reshape(m, k // 2)
    codes = places[..., 0] | places[..., 1] << 2
    return (
        _packed_elements(stored + (1 << bits - 1), bits),
        _permuted(scales) if permuted and len(scales) > 2 else scales,
        _packed_codes(codes),
    )


def _places(group):
    found = tuple(np.flatnonzero(group).tolist())
    return _STORED.get(found, found)


def _packed_elements(stored, bits):
    """Tiles of 64 rows and 16 stored columns, in words of 32 bits, lowest bits first."""
    m, width = stored.shape
    place = np.arange(1024)  # in a tile
    lane, four, last = place // 32, place // 8 % 4, place % 8
    odd, half = (last // 4, last // 2 % 2) if bits == 4 else (last // 2 % 2, last // 4)
    row, column = lane // 4 * 8 + half * 4 + four, last % 2 * 8 + lane % 4 * 2 + odd
    lines = [
        np.concatenate([stored[i : i + 64, j : j + 16][row, column] for i in range(0, m, 64)])
        for j in range(0, width, 16)
    ]
    words = np.array(lines).reshape(width // 16, -1, 32 // bits).astype(np.uint32)
    shifted = words << np.arange(0, 32, bits, dtype=np.uint32)
    return np.bitwise_or.reduce(shifted, axis=-1).view(np.int32)


def _permuted(scales):
    to = np.array([i + j for i in range(0, scales.shape[1], 8) for j in (0, 4, 1, 5, 2, 6, 3, 7)])
    return scales[:, to]


def _packed_codes(codes):
    """Words of 16 bits, each with four codes of a row, where CUTLASS puts them."""
    m, count = codes.shape
    shifted = codes.reshape(m, count // 4, 4) << np.arange(0, 16, 4)
    flat = np.empty(m * count // 4, np.uint16)
    for row in range(m):
        to = row // 64 * 64 + row % 4 // 2 * 32 + row % 64 // 8 * 4 + row % 2 * 2 + row % 8 // 4
        for word in range(count // 4):
            swapped = (to + word) % 2  # the other two corners of a block of two by two
            at = (word ^ swapped) // 2 * 2 * m + (to ^ swapped) * 2 + (word ^ swapped) % 2
            flat[at] = np.bitwise_or.reduce(shifted[row, word])
    return flat.view(np.int16).reshape(count // 8, 2 * m)
