"""Fast conversions on the CPU between stored elements and the type in which products are summed.

NumPy converts half precision one element at a time; these loops use integer operations that
LLVM vectorises.  8-bit floats are converted by a table to float32, or by such loops to half
precision, which represents all of them.
"""

from __future__ import annotations

import functools

import numpy as np

from sparse24 import _dtypes
from sparse24.kernels._numba import njit, parallel, slices

_CHUNK = 1 << 16  # elements


@njit
def _half_to_float(bits, out):
    """IEEE half to float32: move the fields, and count the steps of what is below 2**-14.

    No subnormal float32 occurs on the way, which a thread may flush to zero.
    """
    for i in range(bits.size):
        h = np.uint32(bits[i])
        size = np.uint32(h & 0x7FFF)
        steps = np.float32(np.float32(np.int32(size)) * np.float32(2.0**-24)).view(np.uint32)
        whole = np.uint32((size << 13) + (112 << 23))
        if size >= 0x7C00:  # infinity and NaN
            whole |= np.uint32(0x7F800000)
        word = steps if size < 0x0400 else whole
        out[i] = np.uint32(word | (h & 0x8000) << 16).view(np.float32)


@njit
def _bfloat_to_float(bits, out):
    for i in range(bits.size):
        out[i] = np.uint32(np.uint32(bits[i]) << 16).view(np.float32)


@njit
def _through_table(bits, table, out):
    for i in range(bits.size):
        out[i] = table[bits[i]]


@njit
def _e4m3_to_half(bits, out):
    for i in range(bits.size):
        size = np.int32(bits[i] & 0x7F)
        # below 8 it counts steps of 2**-9: a float32 whose fields are moved to half's
        word = np.float32(np.float32(size) * np.float32(2.0**-9)).view(np.uint32)
        tiny = max(np.int32(word >> 13) - (112 << 10), 0)
        half = tiny if size < 8 else (size << 7) + (8 << 10)
        out[i] = (0x7E00 if size == 0x7F else half) | np.int32(bits[i] & 0x80) << 8


def halves(x: np.ndarray, dtype: _dtypes.DType) -> np.ndarray:
    """8-bit floats in C order as the bits of equal float16, int16."""
    bits = x.view(np.uint8)
    if dtype.name == "float8_e5m2":  # half precision cut short
        return np.left_shift(bits, 8, dtype=np.uint16).view(np.int16)
    out = np.empty(x.shape, np.uint16)
    _e4m3_to_half(bits.reshape(-1), out.reshape(-1))
    return out.view(np.int16)


@functools.cache
def _table(name: str) -> np.ndarray:
    every = np.arange(256, dtype=np.uint8).view(_dtypes.TABLE[name].logical)
    return every.astype(np.float32)


def decode_into(x: np.ndarray, dtype: _dtypes.DType, out: np.ndarray) -> None:
    """Convert `x` into `out`, both in C order, of a type that holds all of `dtype`."""
    if dtype.name == "float16":
        _half_to_float(x.reshape(-1).view(np.uint16), out.reshape(-1))
    elif dtype.name == "bfloat16":
        _bfloat_to_float(x.reshape(-1).view(np.uint16), out.reshape(-1))
    elif dtype.is_float8:
        _through_table(x.reshape(-1).view(np.uint8), _table(dtype.name), out.reshape(-1))
    else:
        np.copyto(out, x)


def decoded(x: np.ndarray, dtype: _dtypes.DType, work=None) -> np.ndarray:
    """The array in the type `work`, by default the accumulator's; itself if it has that type.

    A transposed array is decoded in its own order and returned as a view.
    """
    work = np.dtype(dtype.accumulator if work is None else work)
    if dtype.logical == work:
        return x
    if x.ndim == 2 and x.flags.f_contiguous and not x.flags.c_contiguous:
        return decoded(x.T, dtype, work).T
    out = np.empty(x.shape, work)
    whole = np.require(x, requirements="CA")
    if x.size <= _CHUNK:
        decode_into(whole, dtype, out)
        return out
    flat, to = whole.reshape(-1), out.reshape(-1)
    parts = slices(flat.size, _CHUNK)
    parallel(lambda i: decode_into(flat[parts[i]], dtype, to[parts[i]]), len(parts), out.nbytes)
    return out


@njit
def encode_half(x, words, out):
    """float32, and its bits, to IEEE half: round to nearest even, overflow to infinity."""
    for i in range(words.size):
        sign = words[i] >> 16 & 0x8000
        size = words[i] & 0x7FFFFFFF
        # 0.5 has half's smallest step as its last bit, so the sum rounds tiny numbers
        tiny = np.float32(np.float32(abs(x[i])) + np.float32(0.5)).view(np.uint32) - 0x3F000000
        whole = (size - 0x38000000 + 0xFFF + (size >> 13 & 1)) >> 13
        large = 0x7E00 if size > 0x7F800000 else 0x7C00
        bits = tiny if size < 0x38800000 else (large if size >= 0x47800000 else whole)
        out[i] = sign | bits


@njit
def encode_bfloat(words, out):
    """The bits of float32 to bfloat16: round to nearest even; NaNs become quiet."""
    for i in range(words.size):
        x = words[i]
        rounded = (x + 0x7FFF + (x >> 16 & 1)) >> 16
        out[i] = (x >> 16 | 0x40) if x & 0x7FFFFFFF > 0x7F800000 else rounded


@njit
def encode_e4m3(x, words, out):
    """float32, and its bits, to float8_e4m3fn: round to nearest even, overflow to 448."""
    for i in range(words.size):
        sign = words[i] >> 24 & 0x80
        size = words[i] & 0x7FFFFFFF
        # 2**14 has the smallest step of this type, 2**-9, as its last bit
        tiny = np.float32(np.float32(abs(x[i])) + np.float32(2.0**14)).view(np.uint32) - 0x46800000
        whole = min((size - 0x3C000000 + 0x7FFFF + (size >> 20 & 1)) >> 20, 0x7E)
        bits = tiny if size < 0x3C800000 else whole
        out[i] = sign | (0x7F if size > 0x7F800000 else bits)
