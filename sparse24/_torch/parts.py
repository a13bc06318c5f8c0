"""Convert packed matrices between tensors and records of arrays; nothing is copied.

Tensors of a stack of matrices have one more axis, the first, as the stack has.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TypeGuard

import torch
from torch import Tensor

from sparse24 import _arrays, _dtypes, _foreign, _promotion, _spec, _storage
from sparse24._records import Compressed24, Operand24
from sparse24.formats.two_four import Sparse24Array


def dtype_of(x: Tensor) -> _dtypes.DType:
    """The element type of a tensor."""
    return named(x.dtype)


@functools.cache
def named(dtype: torch.dtype) -> _dtypes.DType:
    return _dtypes.lookup(str(dtype).removeprefix("torch."), argument="dtype")


def result_type(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    """The type of a product of operands of two, also of fp8, which torch promotes to nothing."""
    common, _ = _promotion.promote(named(a), named(b))
    return getattr(torch, common.result)


def empty_parts(x: Tensor, *shape: int) -> list[Tensor]:
    """Tensors like those that hold packed matrices (..., m, k) of the type of `x`."""
    *stack, m, k = shape
    columns = _spec.values_per_row(k)
    codes: tuple[int, ...] = (m, _spec.metadata_bytes_per_row(k))
    if x.device.type == "cuda":
        columns = _arrays.row_pitch(columns, x.element_size())
        codes = _spec.packed_shape(m, k)
    return [x.new_empty((*stack, m, columns)), x.new_empty((*stack, *codes), dtype=torch.uint8)]


def parts_of(record: Compressed24):
    """(values with their row padding, codes) as whole arrays."""
    values = record.values
    if not _arrays.is_cupy(values):
        return values, _storage.canonical(record)
    *rows, columns = values.shape
    pitch = _arrays.row_pitch(columns, values.itemsize)
    if pitch != columns:  # the rows' storage is that wide
        cupy = _arrays.cupy_module()
        shape = (*rows, pitch)
        strides = (*values.strides[:-1], values.itemsize)
        values = cupy.lib.stride_tricks.as_strided(values, shape, strides)
    return values, _storage.packed(record)


def tensors_of(record: Compressed24) -> list[Tensor]:
    """The tensors of `parts_of`."""
    values, codes = parts_of(record)
    return [typed(values, getattr(torch, record.dtype.name)), _foreign.to_torch(codes)]


def typed(x, dtype: torch.dtype) -> Tensor:
    """An array as a tensor of a type, which CuPy's of fp8, that are bits, do not tell."""
    made = _foreign.to_torch(x)
    return made if made.dtype == dtype else made.view(dtype)


def unpack(parts: list[Tensor], m: int, k: int) -> Sparse24Array:
    """The array that the tensors of `pack` describe; nothing is copied."""
    rows = record_of(parts[0], parts[1], m, k, dtype_of(parts[0]))
    columns = record_of(parts[2], parts[3], k, m, rows.dtype) if len(parts) == 4 else None
    return Sparse24Array(Operand24(rows, columns, None, rows.shape, rows.dtype))


def operand_of(parts: list[Tensor], m: int, k: int, *, turned: bool) -> Operand24:
    """The matrix (m, k), or its transpose, with what is stored for products from the left."""
    dtype = dtype_of(parts[0])
    if not turned:
        return Operand24(record_of(parts[0], parts[1], m, k, dtype), None, None, (m, k), dtype)
    if len(parts) == 4:
        return Operand24(record_of(parts[2], parts[3], k, m, dtype), None, None, (k, m), dtype)
    return Operand24(None, record_of(parts[0], parts[1], m, k, dtype), None, (k, m), dtype)


def record_of(values: Tensor, codes: Tensor, m: int, k: int, dtype: _dtypes.DType) -> Compressed24:
    """The record of one orientation of packed matrices (..., m, k)."""
    stored = _foreign.view_of(values)[..., : _spec.values_per_row(k)]
    bits = _foreign.view_of(codes)
    metadata, packed = (bits, None) if bits.ndim == stored.ndim else (None, bits)
    return Compressed24(stored, metadata, packed, (*stored.shape[:-2], m, k), dtype)


def in_type(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`x.to(dtype)`, which takes as long as an operator also where there is nothing to do."""
    return x if x.dtype == dtype else x.to(dtype)


def vector_type(*operands: torch.dtype, on_gpu: bool) -> torch.dtype:
    """In which type kernels add a bias to products of operands of these types.

    Sums of int8 are whole numbers that float32 may not hold, nor an int32 bias; on a GPU kernels
    add no other vectors to them.
    """
    whole = torch.int8 in operands and not on_gpu
    return torch.float64 if whole or torch.float64 in operands else torch.float32


def is_added_later(bias: Tensor | None, dense: Tensor) -> TypeGuard[Tensor]:
    """Whether a bias is added to a product on the CPU by torch.

    Products by float32 and float64 have the type in which they are summed.  So that gives what an
    epilogue does, which takes ten times as long with few tokens.
    """
    return bias is not None and not dense.is_cuda and dense.dtype in (torch.float32, torch.float64)


def added_to(product: Tensor, bias: Tensor) -> Tensor:
    """The product itself, with a bias for each column."""
    return product.add_(in_type(bias, product.dtype))


def without_autocast(x: Tensor) -> contextlib.AbstractContextManager:
    """The context in which products are of the types of their operands."""
    kind = x.device.type
    on = torch.is_autocast_enabled(kind)
    return torch.autocast(kind, enabled=False) if on else contextlib.nullcontext()
