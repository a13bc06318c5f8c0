"""The custom operators of quantised matrices, which are passed as one tensor, their bricks.

On the CPU most products dequantise the matrix.  What they make is kept with the bricks.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from sparse24 import _foreign, _foreign_streams, _quantised, _storage
from sparse24._grouped_matmul import linear_of_experts
from sparse24._records import Compressed24, Operand24
from sparse24._torch import grouped_ops, kept_arrays, on_cpu
from sparse24._torch.factors import TURNED, Factor, empty_product, times
from sparse24._torch.operators import meaning_for_tracing, operator
from sparse24._torch.parts import named, typed
from sparse24.formats.quantised import Quantised24Array
from sparse24.kernels import bricks as layout

AXES = 3  # of the bricks of a matrix: blocks of rows, of columns, bytes
_BITS = {layout.size(bits): bits for bits in layout.BITS}


def bits_of(bricks: Tensor) -> int:
    """Bits of the integers."""
    return _BITS[bricks.shape[-1]]


def record_of(bricks: Tensor, m: int, k: int, dtype: torch.dtype) -> Compressed24:
    """The record of a matrix (m, k), or of a stack; nothing is copied."""
    stored = _foreign.view_of(bricks)
    shape = (*stored.shape[:-AXES], m, k)
    return _quantised.with_bricks(stored, shape, bits_of(bricks), named(dtype))


def multiplied(bricks: Tensor, m: int, k: int, dtype: torch.dtype) -> Quantised24Array:
    """The array for a product: kept, and with it what products prepare, on the CPU dequantised."""
    make = functools.partial(_array_of, bricks, m, k, dtype)
    return kept_arrays.kept([bricks], (m, k, dtype), make)


def _array_of(bricks: Tensor, m: int, k: int, dtype: torch.dtype) -> Quantised24Array:
    return Quantised24Array._of(record_of(bricks, m, k, dtype))


@operator
def quantised_product(
    bricks: Tensor, m: int, k: int, dtype: torch.dtype, dense: Tensor, bias: Tensor | None,
    form: str,
) -> Tensor:  # fmt: skip
    """A product with the quantised matrix A (m, k), as of `factors.times`."""
    if not bricks.is_cuda:
        return on_cpu.product(multiplied(bricks, m, k, dtype), dense, bias, form)
    turned = form in TURNED

    def operand() -> Operand24:
        a = _array_of(bricks, m, k, dtype)._operand
        return a.transposed() if turned else a

    stored = [] if turned else [bricks, bricks]
    whole = lambda wanted: with_zeros(bricks, m, k, wanted)  # noqa: E731
    return times(Factor(m, k, dtype, stored, operand, whole), dense, bias, form)


@meaning_for_tracing("quantised_product")
def _(bricks, m, k, dtype, dense, bias, form):
    return empty_product(dtype, m, k, dense, form)


@operator
def quantised_experts(
    bricks: Tensor,
    m: int,
    k: int,
    dtype: torch.dtype,
    x: Tensor,
    bias: Tensor | None,
    offsets: Tensor,
    turned: bool,
    activation: str | None,
    gated: bool,
) -> Tensor:
    """``finished(x[i0:i1] @ A[i].T + bias[i])`` with quantised matrices A (e, m, k).

    With `turned` their transposes are in their place; such a product is dense.
    """
    if turned:
        whole = with_zeros(bricks, m, k, torch.promote_types(x.dtype, dtype))
        return grouped_ops.grouped_dense(x, whole.mT, bias, offsets, activation, gated)
    weight = multiplied(bricks, m, k, dtype)
    return linear_of_experts(x, weight, bias, offsets, activation, gated=gated)


@meaning_for_tracing("quantised_experts")
def _(bricks, m, k, dtype, x, bias, offsets, turned, activation, gated):
    rows = k if turned else m
    common = torch.promote_types(x.dtype, dtype)
    return x.new_empty((x.shape[0], rows // 2 if gated else rows), dtype=common)


@operator
def dequantised(bricks: Tensor, m: int, k: int, dtype: torch.dtype) -> Tensor:
    """Quantised matrices (..., m, k) with their zeros, the elements rounded to the type."""
    return with_zeros(bricks, m, k, dtype)


def with_zeros(bricks: Tensor, m: int, k: int, dtype: torch.dtype) -> Tensor:
    """`dequantised`, from within an operator."""
    with _foreign_streams.stream_of(bricks):
        record = _quantised.dequantised(record_of(bricks, m, k, dtype), named(dtype))
        return typed(_storage.decompress(record), dtype)


@meaning_for_tracing("dequantised")
def _(bricks, m, k, dtype):
    return bricks.new_empty((*bricks.shape[:-AXES], m, k), dtype=dtype)
