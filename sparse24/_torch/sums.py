"""Sums and differences of two `Sparse24Tensor`, and the averages of weights that are made of them.

They go by way of the dense matrices, and are packed anew where they obey 2:4, as those of
elements at the same places do.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sparse24 import _is_24
from sparse24._errors import PatternError, ShapeError
from sparse24._torch import ops
from sparse24._torch.arithmetic import refuse_float8
from sparse24._torch.copies import copy_into, refuse_lent
from sparse24._torch.matrix import PackedMatrix, undefined

_aten = torch.ops.aten


def add(a: Any, b: Any, *, alpha: Any = 1) -> PackedMatrix:
    return _combined(_aten.add.Tensor, functools.partial(torch.add, alpha=alpha), a, b)


def subtract(a: Any, b: Any, *, alpha: Any = 1) -> PackedMatrix:
    return _combined(_aten.sub.Tensor, functools.partial(torch.sub, alpha=alpha), a, b)


def lerp_all(to: list[Tensor], ends: list[Tensor], weight: Any) -> None:
    """What torch's averages on a GPU do to the parameters of one type, dense ones among them."""
    for x in to:
        if isinstance(x, PackedMatrix):
            refuse_lent(x)
    between = functools.partial(torch.lerp, weight=weight)
    made = [_between(between, x, end) for x, end in zip(to, ends, strict=True)]
    for x, new in zip(to, made, strict=True):  # once none of them was refused
        copy_into(x, new) if isinstance(x, PackedMatrix) else x.copy_(new)


def _between(function: Callable[..., Tensor], x: Tensor, end: Tensor) -> Tensor:
    if not isinstance(x, PackedMatrix) and not isinstance(end, PackedMatrix):
        return function(x, end)
    return _combined(_aten._foreach_lerp_.Scalar, function, x, end)


@torch._disable_dynamo  # after a break in a graph it runs as it is
def _combined(operation: Any, function: Callable[..., Tensor], a: Any, b: Any) -> PackedMatrix:
    """`function` of both as dense matrices, packed along the axes of the first."""
    if not isinstance(a, PackedMatrix) or not isinstance(b, PackedMatrix):
        raise undefined(operation)
    unseen = a.is_meta or torch.compiler.is_compiling()  # nobody can look at it
    if unseen or (a.ndim > 2 and not a.stacked):
        raise undefined(operation)
    if a.shape != b.shape:
        raise ShapeError(
            f"two Sparse24Tensors of one shape are added up, got {tuple(a.shape)} and "
            f"{tuple(b.shape)}; cut the larger one first"
        )
    refuse_float8(a, b)
    dense = function(a.whole(), b.whole())
    dense = dense.masked_fill(dense == 0, 0)  # so that no -0.0 is stored
    stored = dense.mT.contiguous() if a.turned else dense
    along = [stored, stored.mT.contiguous()][: len(a.parts) // 2]
    if not all(_is_24.is_24(x) for x in along):
        raise PatternError(
            f"{operation} of two Sparse24Tensors must obey 2:4 as they do, and has more than 2 "
            "elements in a group, since theirs are at different places; call .to_dense() on both. "
            "Weights to be averaged stay dense, as those of sparse24.torch.SparseLinear, and their "
            "average is packed"
        )
    parts = [part for x in along for part in ops.pack(x, None, False)]
    return type(a)(parts, a.shape, turned=a.turned)


RULES: dict[Any, Callable[..., Any]] = {
    _aten.add.Tensor: add,
    _aten.sub.Tensor: subtract,
    _aten._foreach_lerp_.Scalar: lerp_all,
}
