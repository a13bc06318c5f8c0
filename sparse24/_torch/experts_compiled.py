"""Products of experts without gradients in code of ``torch.compile``, as `_torch.compiled`."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from sparse24._grouped_matmul import grouped_linear
from sparse24._torch import grouped_ops as grouped
from sparse24._torch.compiled import keeps_nothing
from sparse24._torch.kept import found_or_packed
from sparse24._torch.operators import meaning_for_tracing, operator
from sparse24._torch.packed import Origin
from sparse24._torch.traced import may_be_written


def by_packing(
    x: Tensor, origin: Origin, offsets: Tensor, dtype: torch.dtype | None,
    activation: str | None, gated: bool,
) -> Tensor:  # fmt: skip
    """The products of experts, finished, by operators that pack the weight anew."""
    parts, bias, shape = origin.pack(dtype), origin.vector(dtype), origin.weight.shape[1:]
    return grouped.grouped_product(parts, *shape, x, bias, offsets, False, activation, gated)


@operator
def kept_grouped_product(
    x: Tensor,
    weight: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    transposable: bool,
    offsets: Tensor,
    dtype: torch.dtype | None,
    activation: str | None,
    gated: bool,
) -> Tensor:
    """The products of `by_packing`, by a packed weight that is kept until its tensors change."""
    origin = Origin(weight, mask, bias, None, transposable)
    with torch.no_grad():
        if keeps_nothing(x, origin):
            return by_packing(x, origin, offsets, dtype, activation, gated)
        packed = found_or_packed(origin, dtype)
        packed.await_on_stream_of(x)
        return grouped_linear(
            x, packed.weight, packed.bias, offsets=offsets, activation=activation, gated=gated
        )


@meaning_for_tracing("kept_grouped_product")
def _(x, weight, mask, bias, transposable, offsets, dtype, activation, gated):
    origin = Origin(weight, mask, bias, None, transposable)
    return by_packing(x, origin, offsets, dtype, activation, gated)


@functools.partial(operator, keys=("CompositeImplicitAutograd",), like=kept_grouped_product)
def experts_product(x: Tensor, *facts) -> Tensor:
    """What a compiler traces: as `compiled.layer_product`."""
    weight, mask, bias, transposable, *rest = facts
    origin = Origin(weight, mask, bias, None, transposable)
    if any(may_be_written(t) for t in origin.tensors()):
        return by_packing(x, origin, *rest)
    return kept_grouped_product(x, *facts)
