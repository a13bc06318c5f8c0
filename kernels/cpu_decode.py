"""From stored elements to the type that products sum in, fast, on the CPU.

NumPy converts half precision one element at a time; these loops do it with integer steps
that LLVM vectorises.  8-bit floats go through a table.
"""

from __future__ import annotations

import functools

import numpy as np

from sparse24 import _dtypes
from sparse24.kernels._numba import njit, parallel, slices

_CHUNK = 1 << 16  # elements


@njit
def _half_to_float(bits, out):
    """IEEE half to float32: move the fields, then let a multiplication fix the exponent."""
    scale = np.float32(2.0**112)
    for i in range(bits.size):
        h = np.uint32(bits[i])
        x = np.uint32((h & 0x7FFF) << 13).view(np.float32) * scale
        word = np.float32(x).view(np.uint32)
        if h & 0x7C00 == 0x7C00:  # infinity and NaN
            word |= np.uint32(0x7F800000)
        out[i] = np.uint32(word | (h & 0x8000) << 16).view(np.float32)


@njit
def _bfloat_to_float(bits, out):
    for i in range(bits.size):
        out[i] = np.uint32(np.uint32(bits[i]) << 16).view(np.float32)


@njit
def _through_table(bits, table, out):
    for i in range(bits.size):
        out[i] = table[bits[i]]


@functools.cache
def _table(name: str) -> np.ndarray:
    every = np.arange(256, dtype=np.uint8).view(_dtypes.TABLE[name].logical)
    return every.astype(np.float32)


def decode_into(x: np.ndarray, dtype: _dtypes.DType, out: np.ndarray) -> None:
    """Convert the C-contiguous `x` into the C-contiguous `out` of the accumulator's type."""
    if dtype.name == "float16":
        _half_to_float(x.reshape(-1).view(np.uint16), out.reshape(-1))
    elif dtype.name == "bfloat16":
        _bfloat_to_float(x.reshape(-1).view(np.uint16), out.reshape(-1))
    elif dtype.is_float8:
        _through_table(x.reshape(-1).view(np.uint8), _table(dtype.name), out.reshape(-1))
    else:
        np.copyto(out, x)


def decoded(x: np.ndarray, dtype: _dtypes.DType) -> np.ndarray:
    """The array in the accumulator's type, on all threads; itself if it has that type.

    A transposed array is decoded in its own order and returned as a view.
    """
    if dtype.logical == dtype.accumulator:
        return x
    if x.ndim == 2 and x.T.flags.c_contiguous and not x.flags.c_contiguous:
        return decoded(x.T, dtype).T
    flat = np.require(x, requirements="CA").reshape(-1)
    out = np.empty(flat.size, dtype.accumulator)
    parts = slices(flat.size, _CHUNK)
    parallel(lambda i: decode_into(flat[parts[i]], dtype, out[parts[i]]), len(parts))
    return out.reshape(x.shape)
