"""Launcher of ``cuda/dequantise.cu``: quantised 2:4 matrices as those of 16 bits."""

from __future__ import annotations

import math

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
    """The record with elements of 16 bits, on CuPy's current stream; nothing waits.

    A stack takes one launch where no atom of codes has rows of two matrices, else one for each.
    """
    *batch, m, k = record.shape
    if batch and m % _spec.ATOM_M == 0:
        return _in_one_launch(record, dtype)
    values, packed = _rooms(record.shape, dtype)
    for at in np.ndindex(*batch):
        _fill(record.values[at], values[at], packed[at], k, record.quantised, dtype)
    return Compressed24(values, None, packed, record.shape, dtype)


def _in_one_launch(record: Compressed24, dtype: DType) -> Compressed24:
    """The stack as one matrix of many rows, whose codes are then put in order."""
    *batch, m, k = record.shape
    rows = math.prod(batch) * m
    values, packed = _rooms((rows, k), dtype)
    blocks = rows // bricks.ROWS
    one = record.values.reshape(blocks, *record.values.shape[-2:])
    _fill(one, values, packed, k, record.quantised, dtype)
    values = values.reshape(*batch, m, values.shape[1])
    atoms, _, size = packed.shape
    xp = _arrays.cupy_module()
    codes = xp.moveaxis(packed.reshape(atoms, *batch, m // _spec.ATOM_M, size), 0, -3)
    return Compressed24(values, None, xp.ascontiguousarray(codes), record.shape, dtype)


def _rooms(shape: tuple[int, ...], dtype: DType):
    """Arrays for the elements and the packed codes of matrices, of which the codes are empty."""
    xp, (*batch, m, k) = _arrays.cupy_module(), shape
    values = _arrays.empty_rows(xp, (*batch, m, _spec.values_per_row(k)), dtype.logical)
    codes = (*batch, *_spec.packed_shape(m, k))
    return values, xp.full(codes, _spec.EMPTY_CODE * 0x11, np.uint8)


def _fill(packed_bricks, values, packed, k: int, bits: int, dtype: DType) -> None:
    """The elements and codes of a matrix, by the kernel."""
    if not packed_bricks.size:
        return
    kernel = loader.function(NAME, NAME, (("OUTPUT", dtype.name), ("BITS", bits)))
    pieces = packed_bricks.size // bricks.size(bits)
    pieces *= bricks.element_bytes(bits) // _arrays.VECTOR
    blocks = min(-(-pieces // THREADS), MAX_BLOCKS)
    pitch = values.strides[0] // values.itemsize
    sizes = values.shape[0], k, values.shape[1], packed.shape[1]
    kernel((blocks,), (THREADS,), (packed_bricks, values, pitch, packed, *sizes))
