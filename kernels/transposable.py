"""Masks that serve a matrix and its transpose, on the GPU: launcher of ``cuda/transposable.cu``.

Nothing here waits for the device.
"""

from __future__ import annotations

import numpy as np

from sparse24 import _arrays, _spec
from sparse24._dtypes import NAMES, DType
from sparse24._records import Compressed24
from sparse24.kernels import compress, loader
from sparse24.kernels.call import KernelCall

NAME = "transposable"
TILES = 128  # that a block of tile_mask takes; one for each thread


def launch(x, row: DType) -> tuple[Compressed24, Compressed24]:
    """Prune (..., m, k) by the best 4x4 masks and compress it and its transpose.

    16-bit matrices with sides that are multiples of four and 16-byte aligned rows take one
    pass; all others get their mask first.
    """
    *_, m, k = x.shape
    dense = x.reshape(-1, m, k) if x.size else x
    if x.size and in_squares(dense, row):
        return _pack(dense, x.shape, row)
    keep = mask(x, row)
    rows, _ = compress.launch(x, row, rule="mask", mask=keep)
    turned = (y.swapaxes(-1, -2) for y in (x, keep))
    columns, _ = compress.launch(next(turned), row, rule="mask", mask=next(turned))
    return rows, columns


def mask(x, row: DType, *, out=None):
    """The mask alone: bool (..., m, k), 2:4 along both of the last two axes."""
    if out is None:
        out = _arrays.cupy_module().empty(x.shape, np.bool_)
    if not x.size:
        return out
    m, k = x.shape[-2:]
    dense, target = x.reshape(-1, m, k), out.reshape(-1, m, k)
    if in_squares(dense, row) and compress.row_alignment(target, 1, 8) == 8:
        loader.function(NAME, "square_mask", defines(row.name, pack=True))(
            (_squares(dense),),
            (256,),
            (dense, *dense.strides[:2], target, *target.strides[:2], m, k),
        )
    else:
        blocks = -(-k // (4 * TILES)) * -(-m // 4) * dense.shape[0]
        loader.function(NAME, "tile_mask", defines(row.name))(
            (blocks,), (TILES,), (dense, *dense.strides, target, *target.strides, m, k)
        )
    if target.data.ptr != out.data.ptr:
        out[...] = target.reshape(out.shape)
    return out


def in_squares(dense, row: DType) -> bool:
    """True if (batch, m, k) can be taken in squares of 8 x 8 elements, and packed in one pass."""
    whole = row.itemsize == 2 and dense.shape[1] % 4 == 0 and dense.shape[2] % 4 == 0
    return whole and compress.row_alignment(dense, 2) == 16


def _squares(dense) -> int:
    """Blocks of 128 x 128 elements."""
    batch, m, k = dense.shape
    return batch * -(-m // 128) * -(-k // 128)


def _pack(dense, shape, row):
    xp = _arrays.cupy_module()
    *batch, m, k = shape
    turned = (*batch, k, m)
    parts = []
    for rows, columns in ((m, k), (k, m)):
        parts.append(_arrays.empty_rows(xp, (*batch, rows, columns // 2), dense.dtype))
        parts.append(xp.empty((*batch, *_spec.packed_shape(rows, columns)), np.uint8))
    values, packed, t_values, t_packed = parts
    call_of(dense, row, *parts).enqueue()
    return (
        Compressed24(values, None, packed, tuple(shape), row),
        Compressed24(t_values, None, t_packed, turned, row),
    )


def call_of(
    dense, row: DType, values, packed, t_values, t_packed, *, squared: bool = False
) -> KernelCall:
    """What packs a matrix (batch, m, k) that is taken in squares, and its transpose, in one pass.

    With `squared` it packs the squared relu of the matrix.  Addresses and layouts of the arrays
    suffice.
    """
    *_, m, k = dense.shape
    kernel = loader.function(NAME, "tile_pack", defines(row.name, pack=True, squared=squared))
    arguments = (
        dense, *dense.strides[:2], values, values.strides[-2], packed,
        t_values, t_values.strides[-2], t_packed, m, k,
    )  # fmt: skip
    return KernelCall(kernel, _squares(dense), 256, arguments)


def defines(name: str, *, pack: bool = False, squared: bool = False) -> loader.Defines:
    """The macros of ``transposable.cu``."""
    return (("ELEMENT", name), ("PACK", int(pack)), ("SQUARED", int(squared)))


COMPILE_CHECKS = (
    *((defines(name), "sm_90a", None) for name in NAMES),
    *(
        (defines(name, pack=True, squared=squared), arch, None)
        for arch in ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120")
        for name in ("float16", "bfloat16")
        for squared in (False, True)
    ),
)
