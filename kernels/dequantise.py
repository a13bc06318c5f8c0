"""Launcher of ``cuda/dequantise.cu``: a quantised 2:4 matrix as one of 16 bits."""

from __future__ import annotations

import numpy as np

from sparse24 import _arrays, _spec
from sparse24._dtypes import OF_16_BITS, DType
from sparse24._records import Compressed24
from sparse24.kernels import bricks, loader

NAME = "dequantise"
THREADS = 256
MAX_BLOCKS = 132 * 16

COMPILE_CHECKS = [
    ((("OUTPUT", out), ("BITS", bits)), arch, None)
    for out in OF_16_BITS
    for bits in bricks.BITS
    for arch in ("sm_80", "sm_90a", "sm_120")
]


def launch(record: Compressed24, dtype: DType) -> Compressed24:
    """The record with elements of 16 bits, on CuPy's current stream; nothing waits."""
    import cupy as cp

    m, k = record.shape
    values = _arrays.empty_rows(cp, (m, _spec.values_per_row(k)), dtype.logical)
    packed = cp.full(_spec.packed_shape(m, k), _spec.EMPTY_CODE * 0x11, np.uint8)
    if record.values.size:
        kernel = loader.function(NAME, NAME, (("OUTPUT", dtype.name), ("BITS", record.quantised)))
        pieces = record.values.size // bricks.size(record.quantised)
        pieces *= bricks.element_bytes(record.quantised) // _arrays.VECTOR
        blocks = min(-(-pieces // THREADS), MAX_BLOCKS)
        pitch = values.strides[0] // values.itemsize
        sizes = m, k, values.shape[1], packed.shape[1]
        kernel((blocks,), (THREADS,), (record.values, values, pitch, packed, *sizes))
    return Compressed24(values, None, packed, record.shape, dtype)
