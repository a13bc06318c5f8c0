"""Decompress to dense, and convert metadata between its two orders, on the GPU.

Launcher of ``cuda/decompress.cu``.  Nothing here waits for the device.
"""

from __future__ import annotations

import numpy as np

from sparse24 import _arrays, _spec
from sparse24._dtypes import NAMES, DType
from sparse24._records import Compressed24
from sparse24.kernels import loader
from sparse24.kernels.call import KernelCall
from sparse24.kernels.compress import blocks, row_alignment, runs_by_columns

NAME = "decompress"


def launch(record: Compressed24, *, out=None):
    """Return the dense array (..., m, k), in storage dtype; written to `out`, of any strides."""
    if out is None:
        out = _arrays.cupy_module().empty(record.shape, record.values.dtype)
    _run(record, out, masked=False)
    return out


def mask(record: Compressed24, *, out=None):
    """Return where the dense array is not zero, bool (..., m, k)."""
    if out is None:
        out = _arrays.cupy_module().empty(record.shape, np.bool_)
    _run(record, out, masked=True)
    return out


def pack_metadata(metadata, k: int, itemsize: int):
    """Canonical metadata (..., m, ceil(k/8)) to packed (..., K atoms, M atoms, 1024)."""
    xp = _arrays.cupy_module()
    *batch, m, _ = metadata.shape
    packed = xp.empty((*batch, *_spec.packed_shape(m, k)), np.uint8)
    if metadata.size:
        _repack("pack", xp.ascontiguousarray(metadata), packed, m, k, itemsize)
    elif packed.size:
        packed.fill(_spec.EMPTY_CODE * 0x11)
    return packed


def unpack_metadata(packed, m: int, k: int, itemsize: int):
    """The inverse of `pack_metadata`, bit for bit."""
    xp = _arrays.cupy_module()
    metadata = xp.empty((*packed.shape[:-3], m, _spec.metadata_bytes_per_row(k)), np.uint8)
    if metadata.size:
        _repack("unpack", xp.ascontiguousarray(packed), metadata, m, k, itemsize)
    return metadata


def defines(
    name: str, *, packed: bool = True, mask: bool = False, out_alignment: int = 16
) -> loader.Defines:
    """The macros of ``decompress.cu``."""
    return (
        ("ELEMENT", name),
        ("CODES", int(packed)),
        ("MASK", int(mask)),
        ("OUT_ALIGNMENT", out_alignment),
    )


def codes_of(record: Compressed24):
    """Contiguous metadata of a record and whether it is packed."""
    packed = record.packed is not None
    codes = record.packed if packed else record.metadata
    return _arrays.cupy_module().ascontiguousarray(codes), packed


def values_by_row(record: Compressed24):
    """The stored elements as (batch, m, 2 ceil(k/4)), rows on 16-byte boundaries."""
    values = record.values.reshape(-1, *record.values.shape[-2:])
    aligned = values.strides[1] % 16 == 0 and values.strides[0] % 16 == 0
    if aligned and values.data.ptr % 16 == 0 and values.strides[2] == values.itemsize:
        return values
    fresh = _arrays.empty_rows(_arrays.cupy_module(), values.shape, values.dtype)
    fresh[...] = values
    return fresh


def _run(record, out, *, masked):
    if out.size == 0:
        return
    target = out.reshape(-1, *out.shape[-2:])
    codes, packed = codes_of(record)
    values = values_by_row(record)
    call_of(values, codes, target, record.dtype, packed=packed, masked=masked).enqueue()
    if not _shares(target, out):
        out[...] = target.reshape(out.shape)


def call_of(
    values, codes, target, row: DType, *, packed: bool = True, masked: bool = False
) -> KernelCall:
    """What writes the dense (batch, m, k) `target`, or where it is not zero.

    `values` as from `values_by_row`; addresses and layouts of the arrays suffice.
    """
    batch, m, k = target.shape
    item = target.dtype.itemsize
    by_columns = not masked and runs_by_columns(target, item)
    by_columns = by_columns and all(
        part % max(item, 4) == 0 for part in (target.data.ptr, target.strides[0], target.strides[2])
    )
    alignment = 16 if not by_columns and row_alignment(target, item) == 16 else 0
    macros = defines(row.name, packed=packed, mask=masked, out_alignment=alignment)
    name = "decompress_columns" if by_columns else "decompress_rows"
    kernel = loader.function(NAME, name, macros)
    count = batch * blocks(m, k, row.itemsize, by_columns)
    arguments = (values, *values.strides[:2], codes, target, *target.strides, m, k)
    return KernelCall(kernel, count, 256 if by_columns else 128, arguments)


def _shares(target, out) -> bool:
    return target.data.ptr == out.data.ptr


def _repack(name, source, target, m, k, itemsize):
    element = "int8" if itemsize == 1 else "float16"
    kernel = loader.function(NAME, name, defines(element))
    metadata = source if name == "pack" else target
    count = metadata.size // (m * metadata.shape[-1]) * blocks(m, k, itemsize, False)
    kernel((count,), (128,), (source, target, m, k))


COMPILE_CHECKS = (
    *((defines(name), "sm_90a", None) for name in NAMES),
    *((defines("bfloat16", packed=False, mask=mask), "sm_90a", None) for mask in (False, True)),
    *(
        (defines(name), arch, None)
        for arch in ("sm_80", "sm_86", "sm_89", "sm_100a", "sm_120")
        for name in ("bfloat16", "int8")
    ),
)
