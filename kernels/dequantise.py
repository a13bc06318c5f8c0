"""Launcher of ``cuda/dequantise.cu``: quantised 2:4 matrices as such of 16 bits."""

from __future__ import annotations

import math

import numpy as np

from sparse24 import _arrays, _spec
from sparse24._dtypes import OF_16_BITS, DType
from sparse24._records import Compressed24
from sparse24.kernels import bricks, loader

NAME = "dequantise"
THREADS, WARPS = 256, 8  # of a block; a warp takes a brick at a time
MAX_BLOCKS = 132 * 16

_SIZES = np.dtype(
    [("m", "i4"), ("k", "i4"), ("values_per_row", "i4"), ("batch", "i4"), ("pitch", "i8")]
)

COMPILE_CHECKS = [
    ((("OUTPUT", out), ("BITS", bits)), arch, None)
    for out in OF_16_BITS
    for bits in bricks.BITS
    for arch in ("sm_80", "sm_90a", "sm_120")
]


def launch(record: Compressed24, dtype: DType) -> Compressed24:
    """The record with elements of 16 bits, on CuPy's current stream; nothing waits."""
    import cupy as cp

    *lead, m, k = record.shape
    values = _arrays.empty_rows(cp, (*lead, m, _spec.values_per_row(k)), dtype.logical)
    packed = cp.empty((*lead, *_spec.packed_shape(m, k)), np.uint8)
    if record.values.size:
        kernel = loader.function(NAME, NAME, (("OUTPUT", dtype.name), ("BITS", record.quantised)))
        blocks = min(-(-math.prod(record.values.shape[:-1]) // WARPS), MAX_BLOCKS)
        pitch = values.strides[-2] // values.itemsize
        sizes = np.array([(m, k, values.shape[-1], math.prod(lead), pitch)], _SIZES)
        arguments = record.values, values, packed, loader.by_value(sizes)
        kernel((blocks,), (THREADS,), arguments)
    return Compressed24(values, None, packed, record.shape, dtype)
