"""Numba kernels on flat lists of groups of four, shared by the CPU entry points.

Elements are unsigned integers of their type's size, so four compiled versions of each
kernel serve all seven types.  The *flags* of a group are four bits: bit i is set where
element i is to be kept.  Nothing in the main loops branches, so LLVM vectorises them.

Meaning: `reference`.  Codes: `_spec`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sparse24 import _dtypes
from sparse24.kernels._numba import njit


class Bits(NamedTuple):
    """What the bits of a type mean, as scalars of its unsigned carrier."""

    size: np.generic  # the bits without the sign; every bit for integers
    infinity: np.generic  # a larger magnitude is a NaN
    is_integer: bool


_INFINITY = {
    "float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000, "float64": 0x7FF << 52,
    "float8_e4m3fn": 0x7E, "float8_e5m2": 0x7C, "int8": 0xFF,
}  # fmt: skip


def bits_of(dtype: _dtypes.DType) -> Bits:
    carrier = dtype.storage.type
    is_integer = dtype.name == "int8"
    size = int(np.iinfo(carrier).max) >> (not is_integer)
    return Bits(carrier(size), carrier(_INFINITY[dtype.name]), is_integer)


@njit
def magnitude(x, size, infinity, is_integer):
    """Unsigned rank of an element: grows with its magnitude, all NaNs alike on top."""
    if is_integer:
        return min(np.uint64(x), np.uint64(256) - np.uint64(x))
    rank = np.uint64(x & size)
    return np.uint64(size) if rank > infinity else rank


@njit
def _best_two(ab, ac, ad, bc, bd, cd):
    """Flags of the elements that go before at least two others; `ab`: a goes before b."""
    a = (ab & ac) | (ab & ad) | (ac & ad)
    b = ((not ab) & bc) | ((not ab) & bd) | (bc & bd)
    c = ((not ac) & (not bc)) | ((not ac) & cd) | ((not bc) & cd)
    d = ((not ad) & (not bd)) | ((not ad) & (not cd)) | ((not bd) & (not cd))
    return np.uint8(a | (b << 1) | (c << 2) | (d << 3))


@njit
def flag_largest(x, size, infinity, is_integer, flags):
    for g in range(flags.size):
        a = magnitude(x[4 * g], size, infinity, is_integer)
        b = magnitude(x[4 * g + 1], size, infinity, is_integer)
        c = magnitude(x[4 * g + 2], size, infinity, is_integer)
        d = magnitude(x[4 * g + 3], size, infinity, is_integer)
        flags[g] = _best_two(a >= b, a >= c, a >= d, b >= c, b >= d, c >= d)


@njit
def _before(x, y):
    """Order of scores: NaN first, then the larger, then the earlier."""
    return (x != x) | ((x >= y) & (y == y))


@njit
def flag_best_scores(scores, flags):
    for g in range(flags.size):
        a, b, c, d = scores[4 * g], scores[4 * g + 1], scores[4 * g + 2], scores[4 * g + 3]
        flags[g] = _best_two(
            _before(a, b), _before(a, c), _before(a, d), _before(b, c), _before(b, d), _before(c, d)
        )


@njit
def flag_mask(mask, flags):
    for g in range(flags.size):
        flags[g] = mask[4 * g] | mask[4 * g + 1] << 1 | mask[4 * g + 2] << 2 | mask[4 * g + 3] << 3


@njit
def select(x, flags, out):
    """Zero what is not flagged."""
    for g in range(flags.size):
        f = np.int64(flags[g])
        for i in range(4):
            out[4 * g + i] = x[4 * g + i] & x.dtype.type(-(f >> i & 1))


@njit
def _first_excess(x, flags, drop_zeros, size):
    """The first group that keeps more than two elements."""
    for g in range(flags.size):
        count = 0
        for i in range(4):
            count += (flags[g] >> i & 1) & ((x[4 * g + i] & size != 0) | (not drop_zeros))
        if count > 2:
            return g
    return -1


@njit
def store(x, flags, drop_zeros, size, values, codes):
    """Store the flagged elements and their codes; first and number of groups of more than two.

    Of more than two, the first and the last are stored.  -0.0 is stored as +0.0.
    """
    zero = x.dtype.type(0)  # a plain 0 would turn uint64 into float64
    bad = 0
    for g in range(flags.size):
        a, b, c, d = x[4 * g], x[4 * g + 1], x[4 * g + 2], x[4 * g + 3]
        a, b = a if a & size else zero, b if b & size else zero
        c, d = c if c & size else zero, d if d & size else zero
        f = flags[g]
        if drop_zeros:
            f &= (a != 0) | (b != 0) << 1 | (c != 0) << 2 | (d != 0) << 3
        fa, fb, fc, fd = f & 1, f >> 1 & 1, f >> 2 & 1, f >> 3
        bad += fa + fb + fc + fd > 2
        fb &= 1 ^ (fa & (fc | fd))
        fc &= 1 ^ (fd & (fa | fb))
        ab = fa | fb
        # none: (0, 1); i < 3 alone: (i, 3); 3 alone: (0, 3); two: those
        first = (fb & (1 ^ fa)) | (fc & (1 ^ ab)) << 1
        second = (1 ^ (fc & ab)) | (fc | fd | (fa ^ fb)) << 1
        codes[g] = first | second << 2
        values[2 * g] = a if fa else (b if fb else (c if fc else zero))
        values[2 * g + 1] = d if fd else (c if fc & ab else (b if fb & fa else zero))
    return (_first_excess(x, flags, drop_zeros, size) if bad else -1), bad


@njit
def join_codes(codes, metadata):
    """Two codes a byte, low K in the low nibble, an odd row filled up with 0x4."""
    count = codes.shape[1]
    for row in range(codes.shape[0]):
        for i in range(count // 2):
            metadata[row, i] = codes[row, 2 * i] | codes[row, 2 * i + 1] << 4
        if count % 2:
            metadata[row, count // 2] = codes[row, count - 1] | 0x40


@njit
def split_codes(metadata, codes):
    """The inverse of `join_codes`."""
    count = codes.shape[1]
    for row in range(codes.shape[0]):
        for i in range(count // 2):
            codes[row, 2 * i] = metadata[row, i] & 15
            codes[row, 2 * i + 1] = metadata[row, i] >> 4
        if count % 2:
            codes[row, count - 1] = metadata[row, count // 2] & 15


@njit
def scatter(values, codes, out):
    zero = values.dtype.type(0)
    for g in range(codes.size):
        first, second = codes[g] & 3, codes[g] >> 2
        a, b = values[2 * g], values[2 * g + 1]
        for i in range(4):
            out[4 * g + i] = b if second == i else (a if first == i else zero)


@njit
def gather(x, codes, size, values):
    zero = x.dtype.type(0)
    for g in range(codes.size):
        a, b = x[4 * g + (codes[g] & 3)], x[4 * g + (codes[g] >> 2)]
        values[2 * g] = a if a & size else zero
        values[2 * g + 1] = b if b & size else zero
