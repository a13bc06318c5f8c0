"""Launcher of ``cuda/widen.cu``: 2:4 matrices of 8-bit elements as such of 16 bits."""

from __future__ import annotations

import math

import numpy as np

from sparse24 import _arrays, _memory_order, _spec
from sparse24._dtypes import OF_16_BITS, DType
from sparse24._records import Compressed24
from sparse24.kernels import loader
from sparse24.kernels.chip import chip

NAME = "widen"
TYPES = ("int8", "float8_e4m3fn", "float8_e5m2")  # of the elements
LEAST_CAPABILITY = 90  # of the arithmetic of widen_bytes.cuh
THREADS, WARPS = 256, 8  # of a block
SEGMENT = 1024  # elements of a row that a warp takes at a time
MAX_BLOCKS = 132 * 16
PIECE = 8  # bytes that a lane loads at a time

_SIZES = np.dtype(
    [("rows", "i8"), ("atoms", "i8"), ("pitch", "i8"), ("wide_pitch", "i8"), ("stored", "i4")],
    align=True,
)

COMPILE_CHECKS = [
    ((("ELEMENT", stored), ("OUTPUT", out)), arch, None)
    for stored in TYPES
    for out in OF_16_BITS
    for arch in ("sm_90a", "sm_120")
]


def takes(record: Compressed24, dtype: DType) -> bool:
    """Whether `launch` makes elements of type `dtype` of those of a record on a GPU."""
    if record.dtype.name not in TYPES or dtype.name not in OF_16_BITS or record.packed is None:
        return False
    values = record.values
    pitches = [stride for stride, n in zip(values.strides[:-1], values.shape) if n > 1]
    lies_well = not any(pitch % PIECE for pitch in (values.data.ptr, *pitches))
    if not values.size or not lies_well or not _memory_order.is_even(values, trailing=1):
        return False
    return int(chip(values.device.id).compute_capability) >= LEAST_CAPABILITY


def launch(record: Compressed24, dtype: DType) -> Compressed24:
    """The record with elements of 16 bits, on CuPy's current stream; nothing waits."""
    import cupy as cp

    *lead, m, stored = record.values.shape
    rows = record.values.reshape(math.prod(lead) * m, stored)
    packed = cp.ascontiguousarray(record.packed)
    wide = _arrays.empty_rows(cp, (*lead, m, stored), dtype.logical)
    repacked = cp.empty(packed.shape, np.uint8)
    atoms = packed.size // _spec.ATOM_BYTES
    pitches = rows.strides[0], wide.strides[-2] // wide.itemsize
    kernel = loader.function(NAME, NAME, (("ELEMENT", record.dtype.name), ("OUTPUT", dtype.name)))
    most = max(len(rows) * -(-stored // SEGMENT), atoms)
    blocks = min(-(-most // WARPS), MAX_BLOCKS)
    sizes = np.array([(len(rows), atoms, *pitches, stored)], _SIZES)
    kernel((blocks,), (THREADS,), (rows, packed, wide, repacked, loader.by_value(sizes)))
    return Compressed24(wide, None, repacked, record.shape, dtype)
