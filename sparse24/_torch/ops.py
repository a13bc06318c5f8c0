"""The custom operators of the torch bridge: pack, multiply, mask.

A packed 2:4 matrix, or a stack of them, is passed as a plain list of tensors, (values, codes) for
each orientation, so that autograd, checkpointing and ``torch.compile`` treat it like any others.
CPU tensors are seen as NumPy arrays and CUDA tensors as CuPy arrays; nothing is copied, work goes
to torch's current stream, and memory comes from torch's pool.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sparse24 import (
    _arrays,
    _compress,
    _compress_records,
    _dtypes,
    _excess,
    _foreign,
    _foreign_streams,
    _prune,
    _storage,
)
from sparse24._errors import DTypeError
from sparse24._records import Compressed24
from sparse24._torch import on_cpu
from sparse24._torch import repack as torch_repack
from sparse24._torch import replay as torch_replay
from sparse24._torch.factors import TURNED, Factor, empty_product, times
from sparse24._torch.operators import meaning_for_tracing, operator
from sparse24._torch.parts import (
    dtype_of,
    empty_parts,
    in_type,
    operand_of,
    parts_of,
    record_of,
    tensors_of,
    typed,
)
from sparse24._torch.settled import made
from sparse24._torch.under_mask import under_mask


@operator
def pack(x: Tensor, mask: Tensor | None, transposable: bool) -> list[Tensor]:
    """Values and codes of matrices (..., m, k), pruned by magnitude or by `mask`.

    Two tensors, or four for a transposable matrix: those of the transpose follow.
    """
    key = torch_repack.packing_key(x, mask, transposable)
    known = torch_replay.find(key)
    if known is not None:
        return made(known(x, mask))
    with _foreign_streams.stream_of(x):
        array, dtype = _foreign.view_of(x), dtype_of(x)
        records: tuple[Compressed24, ...]
        if mask is None and transposable:
            records = _compress_records.transposable_records(array, dtype)
        elif mask is None:
            records = (_compress_records.compress_rows(array, dtype, "magnitude")[0],)
        else:
            keep = _compress.checked_mask(_foreign.view_of(mask), array)
            turned = array.swapaxes(-1, -2), keep.swapaxes(-1, -2)
            turns = ((array, keep), turned)[: 1 + transposable]
            records = tuple(_by_mask(a, m, dtype, axis) for (a, m), axis in zip(turns, (-1, -2)))
        if key is not None:
            torch_replay.keep(key, torch_repack.Packing.of(x, mask, transposable))
        return made([part for record in records for part in tensors_of(record)])


def _by_mask(array, keep, dtype: _dtypes.DType, axis: int) -> Compressed24:
    """The elements under a mask, which on the CPU is seen to be 2:4; on the GPU that would wait."""
    record, status = _compress_records.compress_rows(array, dtype, "mask", keep)
    if not _arrays.is_cupy(array):
        _excess.refuse(status, record.shape, axis=axis, argument="mask")
    return record


@meaning_for_tracing("pack")
def _(x, mask, transposable):
    shapes = (x.shape, x.mT.shape)[: 1 + transposable]
    return [part for shape in shapes for part in empty_parts(x, *shape)]


@operator
def product(
    parts: list[Tensor], m: int, k: int, dense: Tensor, bias: Tensor | None, form: str
) -> Tensor:
    """A product with the packed matrix A (m, k), as of `factors.times`."""
    known = None if parts[0].is_cuda else on_cpu.multiplied(parts, m, k, form)
    if known is not None:
        return on_cpu.product(known, dense, bias, form)
    turned = form in TURNED
    stored = parts[2:] if turned else parts[:2]
    operand = functools.partial(operand_of, parts, m, k, turned=turned)
    whole_in = lambda dtype: in_type(whole(parts, m, k), dtype)  # noqa: E731
    return times(Factor(m, k, parts[0].dtype, stored, operand, whole_in), dense, bias, form)


@meaning_for_tracing("product")
def _(parts, m, k, dense, bias, form):
    return empty_product(parts[0].dtype, m, k, dense, form)


@operator
def dense(parts: list[Tensor], m: int, k: int) -> Tensor:
    """The packed matrices with their zeros."""
    return whole(parts, m, k)


def whole(parts: list[Tensor], m: int, k: int) -> Tensor:
    """`dense`, from within an operator."""
    key = torch_repack.unpacking_key(parts, m, k)
    known = torch_replay.find(key)
    if known is not None:
        return known(parts)
    with _foreign_streams.stream_of(parts[0]):
        record = record_of(parts[0], parts[1], m, k, dtype_of(parts[0]))
        unpacked = typed(_storage.decompress(record), parts[0].dtype)
        if key is not None:
            torch_replay.keep(key, torch_repack.Unpacking.of(parts, m, k))
        return unpacked


@meaning_for_tracing("dense")
def _(parts, m, k):
    return parts[0].new_empty((*parts[0].shape[:-2], m, k))


@operator
def like(parts: list[Tensor], m: int, k: int, x: Tensor) -> list[Tensor]:
    """Values of `x` (m, k) in the places of a packed matrix, for each orientation it holds."""
    return each_way(_values_like, parts, m, k, x)


def each_way(
    gathered: Callable[[Compressed24, Any], Any], parts: list[Tensor], m: int, k: int, x: Tensor
) -> list[Tensor]:
    """``gathered(record, x)``, arrays of values, for each orientation of a packed matrix."""
    with _foreign_streams.stream_of(x):
        array, dtype = _foreign.view_of(x), dtype_of(x)
        both = ((parts[:2], m, k, array), (parts[2:], k, m, array.swapaxes(-1, -2)))
        found = []
        for (values, codes), rows, columns, turned in both[: len(parts) // 2]:
            record = record_of(values, codes, rows, columns, dtype)
            found.append(typed(gathered(record, turned), x.dtype))
        return found


def _values_like(record: Compressed24, x):
    if not _arrays.is_cupy(x):
        from sparse24.kernels import reference

        return reference.like(_storage.canonical(record), x)
    from sparse24.kernels import like as kernel

    return parts_of(kernel.launch(record, x))[0]


@meaning_for_tracing("like")
def _(parts, m, k, x):
    return [torch.empty_like(values) for values in parts[::2]]


@operator
def keep(x: Tensor, transposable: bool) -> Tensor:
    """Where `pack` keeps elements, as booleans; kept zeros included."""
    with _foreign_streams.stream_of(x):
        return _prune.mask(x, transposable=transposable).contiguous()


@meaning_for_tracing("keep")
def _(x, transposable):
    return torch.empty_like(x, dtype=torch.bool, memory_format=torch.contiguous_format)


@operator
def kept_gradient(gradient: Tensor, x: Tensor, transposable: bool) -> Tensor:
    """`gradient` where `pack` keeps elements of `x`, elsewhere 0."""
    return under_mask(gradient, keep(x, transposable))


@meaning_for_tracing("kept_gradient")
def _(gradient, x, transposable):
    return torch.empty_like(gradient, memory_format=torch.contiguous_format)


@operator
def masked_gradient(
    parts: list[Tensor], m: int, k: int, gradient: Tensor, weight: Tensor | None, decay: float
) -> Tensor:
    """`gradient` where the packed matrix stores elements, elsewhere 0 or, with a `weight`,
    ``gradient + decay * weight``; all of one type.
    """
    if gradient.dtype != parts[0].dtype:
        raise DTypeError(f"gradient must be of {parts[0].dtype}, got {gradient.dtype}")
    key = torch_repack.masking_key(parts, gradient, weight, decay)
    known = torch_replay.find(key)
    if known is not None:
        return known(parts, gradient, weight)
    with _foreign_streams.stream_of(gradient):
        record = record_of(parts[0], parts[1], m, k, dtype_of(parts[0]))
        dense = _foreign.view_of(gradient)
        decaying = None if weight is None else _foreign.view_of(weight)
        if _arrays.is_cupy(dense):
            from sparse24.kernels import like

            result = like.masked_gradient(record, dense, weight=decaying, decay=decay)
            torch_replay.keep(key, torch_repack.Masking.of(parts, gradient, weight, decay))
        else:
            from sparse24.kernels import reference

            codes = _storage.canonical(record)
            result = reference.masked_gradient(codes, dense, decaying, decay)
        return typed(result, gradient.dtype)


@meaning_for_tracing("masked_gradient")
def _(parts, m, k, gradient, weight, decay):
    return torch.empty_like(gradient, memory_format=torch.contiguous_format)
