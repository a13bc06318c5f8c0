"""The custom operators of experts: sparse and dense grouped products, and their gradients.

Tokens are rows, sorted by expert: those from ``i0 = offsets[i]`` to ``i1 = offsets[i + 1]`` belong
to expert i.  They are operators, as those of `_torch.ops` are, because ``torch.compile`` cannot
look into loops whose length the offsets decide.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from sparse24._grouped_matmul import linear_of_experts
from sparse24._torch import grouped_mm as dense
from sparse24._torch import kept_arrays, ops
from sparse24._torch.finish import finished
from sparse24._torch.operators import meaning_for_tracing, operator
from sparse24._torch.parts import in_type, unpack, without_autocast
from sparse24._torch.settled import is_made_anew
from sparse24.formats.two_four import Sparse24Array


@operator
def grouped_product(
    parts: list[Tensor],
    m: int,
    k: int,
    x: Tensor,
    bias: Tensor | None,
    offsets: Tensor,
    turned: bool,
    activation: str | None,
    gated: bool,
) -> Tensor:
    """``finished(x[i0:i1] @ A[i].T + bias[i])`` with packed matrices A (e, m, k).

    With `turned` their transposes are in their place; such a product is dense where these are not
    packed.
    """
    return _product(unpack, parts, m, k, x, bias, offsets, turned, activation, gated)


@functools.partial(operator, like=grouped_product)
def stack_product(parts, *facts):
    """`grouped_product` of a `Sparse24Tensor`, which keeps what products with it prepare."""
    return _product(_kept, parts, *facts)


def _product(unpacked, parts, m, k, x, bias, offsets, turned, activation, gated) -> Tensor:
    """`grouped_product` with the array that `unpacked` makes."""
    stored, shape = (parts[2:], (k, m)) if turned else (parts[:2], (m, k))
    if stored:
        weight = unpacked(stored, *shape)
        return linear_of_experts(x, weight, bias, offsets, activation, gated=gated)
    return grouped_dense(x, ops.whole(parts, m, k).mT, bias, offsets, activation, gated)


def _kept(parts: list[Tensor], m: int, k: int) -> Sparse24Array:
    if is_made_anew(*parts):  # by a graph, of whose replays torch counts no writes
        return unpack(parts, m, k)
    return kept_arrays.kept(parts, (m, k), functools.partial(unpack, parts, m, k))


@meaning_for_tracing("grouped_product")
@meaning_for_tracing("stack_product")
def _(parts, m, k, x, bias, offsets, turned, activation, gated):
    rows = k if turned else m
    shape = x.shape[0], rows // 2 if gated else rows
    return x.new_empty(shape, dtype=_common(x, parts[0]))


@operator
def grouped_dense(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    offsets: Tensor,
    activation: str | None = None,
    gated: bool = False,
) -> Tensor:
    """``finished(x[i0:i1] @ weight[i].T + bias[i])`` for a dense weight (e, m, k).

    In the common type of both.  A stack that is packed has a rule for it.
    """
    common = _common(x, weight)
    with without_autocast(x):
        y = dense.products(in_type(x, common), in_type(weight, common).mT, offsets)
        y = y if bias is None else dense.add_rows(y, bias, offsets)
        return finished(y, activation, gated)


@meaning_for_tracing("grouped_dense")
def _(x, weight, bias, offsets, activation=None, gated=False):
    rows = weight.shape[1] // 2 if gated else weight.shape[1]
    return x.new_empty((x.shape[0], rows), dtype=_common(x, weight))


@operator
def grouped_gradient(dy: Tensor, x: Tensor, offsets: Tensor) -> Tensor:
    """``dy[i0:i1].T @ x[i0:i1]``, shape (e, m, k), in the type of dy; 0 without tokens."""
    with without_autocast(dy):
        x = in_type(x, dy.dtype)  # a narrower x has met a wider weight
        return dense.gradients(dy, x, offsets)


@meaning_for_tracing("grouped_gradient")
def _(dy, x, offsets):
    return dy.new_empty((offsets.shape[0] - 1, dy.shape[1], x.shape[1]))


@operator
def grouped_sum(dy: Tensor, offsets: Tensor) -> Tensor:
    """``dy[i0:i1].sum(0)``, shape (e, m); 0 without tokens."""
    return dense.sums(dy, offsets)


@meaning_for_tracing("grouped_sum")
def _(dy, offsets):
    return dy.new_empty((offsets.shape[0] - 1, dy.shape[1]))


def _common(x: Tensor, weight: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, weight.dtype)
