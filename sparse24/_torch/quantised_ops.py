"""The custom operators of quantised matrices, which are passed as one tensor, their bricks.

On the CPU most products dequantise the matrix.  What they make is kept with the bricks until these
are written, as torch counts it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from sparse24 import _foreign, _foreign_streams, _quantised, _storage
from sparse24._records import Compressed24, Operand24
from sparse24._torch.factors import TURNED, Factor, empty_product, times
from sparse24._torch.operators import meaning_for_tracing, operator
from sparse24._torch.parts import named, typed
from sparse24.kernels import bricks as layout

_BITS = {layout.size(bits): bits for bits in layout.BITS}


def bits_of(bricks: Tensor) -> int:
    """Bits of the integers."""
    return _BITS[bricks.shape[-1]]


def record_of(bricks: Tensor, m: int, k: int, dtype: torch.dtype) -> Compressed24:
    """The record of a matrix (m, k); nothing is copied."""
    stored = _foreign.view_of(bricks)
    return _quantised.with_bricks(stored, (m, k), bits_of(bricks), named(dtype))


class _Kept(NamedTuple):
    facts: tuple  # the shape, the type, and how often the bricks were written
    record: Compressed24


_kept = WeakIdKeyDictionary()  # bricks on the CPU: `_Kept` of the latest product


def _multiplied_record(bricks: Tensor, m: int, k: int, dtype: torch.dtype) -> Compressed24:
    """The record for a product, which on the CPU keeps what the product dequantises.

    Not of inference tensors, whose writes torch does not count.
    """
    if bricks.is_cuda or bricks.is_inference():
        return record_of(bricks, m, k, dtype)
    facts = (m, k, dtype, bricks._version)
    known = _kept.get(bricks)
    if known is None or known.facts != facts:
        known = _kept[bricks] = _Kept(facts, record_of(bricks, m, k, dtype))
    return known.record


@operator
def quantised_product(
    bricks: Tensor, m: int, k: int, dtype: torch.dtype, dense: Tensor, bias: Tensor | None,
    form: str,
) -> Tensor:  # fmt: skip
    """A product with the quantised matrix A (m, k), as of `factors.times`."""
    turned = form in TURNED

    def operand() -> Operand24:
        record = _multiplied_record(bricks, m, k, dtype)
        a = Operand24(record, None, None, (m, k), record.dtype)
        return a.transposed() if turned else a

    stored = [] if turned else [bricks, bricks]
    whole = lambda wanted: _dense(bricks, m, k, wanted)  # noqa: E731
    return times(Factor(m, k, dtype, stored, operand, whole), dense, bias, form)


@meaning_for_tracing("quantised_product")
def _(bricks, m, k, dtype, dense, bias, form):
    return empty_product(dtype, m, k, dense, form)


@operator
def dequantised(bricks: Tensor, m: int, k: int, dtype: torch.dtype) -> Tensor:
    """The quantised matrix with its zeros, its elements rounded to the type."""
    return _dense(bricks, m, k, dtype)


def _dense(bricks: Tensor, m: int, k: int, dtype: torch.dtype) -> Tensor:
    with _foreign_streams.stream_of(bricks):
        record = _quantised.dequantised(record_of(bricks, m, k, dtype), named(dtype))
        return typed(_storage.decompress(record), dtype)


@meaning_for_tracing("dequantised")
def _(bricks, m, k, dtype):
    return bricks.new_empty((m, k), dtype=dtype)
