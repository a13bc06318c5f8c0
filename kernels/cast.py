"""Launcher of `cuda/cast.cu`: conversion between element types, fp8 included."""

from __future__ import annotations

import math

import numpy as np

from sparse24 import _arrays
from sparse24._dtypes import NAMES, TABLE, DType
from sparse24.kernels import loader

NAME = "cast"
THREADS = 256
MAX_BLOCKS = 4096
VECTOR_BYTES = 16  # that a thread loads or stores at once


def _vector(*types: DType) -> int:
    """Elements that a thread converts where it can move those of the wider type at once."""
    return VECTOR_BYTES // max(row.itemsize for row in types)


COMPILE_CHECKS = [
    ((("ELEMENT", source), ("OUTPUT", out), ("VECTOR", vector)), arch, None)
    for source in ("float32", "float64")
    for out in NAMES
    for vector in {1, _vector(TABLE[source], TABLE[out])}
    for arch in ("sm_80", "sm_90a", "sm_120")
]


def launch(x, source: DType, target: DType):
    """Return a copy of `x` as another type; enqueued on CuPy's current stream, without waiting.

    Parameters
    ----------
    x : cupy.ndarray, shape (..., columns)
        The last axis contiguous; with more than two axes not empty.  fp8 is carried as ``uint8``.
    source, target : DType
        The types of `x` and of the result.

    Returns
    -------
    cupy.ndarray of the shape of `x`
        Rows on 16-byte boundaries; fp8 as ``uint8``.
    """
    import cupy as cp

    flat = x.reshape(math.prod(x.shape[:-1]), x.shape[-1]) if x.ndim != 2 else x
    carried = np.dtype(np.uint8) if target.is_float8 else target.logical
    out = _arrays.empty_rows(cp, flat.shape, carried)
    if flat.size:
        vector = _vector(source, target)
        if not (_is_aligned(flat, vector) and _is_aligned(out, vector)):
            vector = 1
        macros = ("ELEMENT", source.name), ("OUTPUT", target.name), ("VECTOR", vector)
        kernel = loader.function(NAME, NAME, macros)
        blocks = min(-(-flat.size // (vector * THREADS)), MAX_BLOCKS)
        pitches = flat.strides[0] // flat.dtype.itemsize, out.strides[0] // out.dtype.itemsize
        rows, columns = flat.shape
        kernel((blocks,), (THREADS,), (flat, pitches[0], out, pitches[1], rows, columns))
    return out if x.ndim == 2 else _arrays.unflatten_rows(out, x.shape)


def _is_aligned(x, vector: int) -> bool:
    """Whether so many elements can be moved at once, in every row."""
    needed = vector * x.dtype.itemsize
    return x.data.ptr % needed == 0 and (len(x) == 1 or x.strides[0] % needed == 0)
