"""Products of the matrices of a packed stack with the tokens of experts.

torch's own grouped product, and ours, come here where the weight is a stack of packed matrices.
Tokens are rows, sorted by expert, as in `_torch.grouped_ops`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sparse24._errors import DTypeError, UnsupportedError
from sparse24._torch import chosen, grouped_ops
from sparse24._torch import matmul as torch_matmul
from sparse24._torch.check import check_experts, refuse_onnx
from sparse24._torch.matrix import PackedMatrix, undefined
from sparse24.kernels.grouped import MOST_GROUPS

_aten = torch.ops.aten
# What the experts of transformers call within torch.compile in types other than bfloat16.  It is
# not defined before they are imported, so it goes by its name.
OF_TRANSFORMERS = "transformers::grouped_mm_fallback"


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, offsets: Tensor,
    activation: str | None = None, gated: bool = False,
) -> Tensor:  # fmt: skip
    """`grouped_ops.grouped_dense` of a packed stack."""
    refuse_onnx()
    if isinstance(x, PackedMatrix) or not isinstance(weight, PackedMatrix) or not weight.stacked:
        raise undefined(grouped_ops.grouped_dense)
    return weight.of_experts(x, bias, offsets, activation, gated)


def grouped_mm(
    x: Tensor, weight: Tensor, offs: Tensor | None = None, bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    """``x[i0:i1] @ weight[i]``, where `offs` says at which token those of each expert end.

    Without it x is a stack, too, as in torch's own.
    """
    if offs is None:
        y = bmm(x, weight)
    elif bias is not None:
        raise UnsupportedError(
            "a grouped product with packed matrices has no bias=, as torch's own has none; use "
            "sparse24.torch.grouped_linear, which adds one"
        )
    else:
        of_rows, starts = weight.mT, _starts(offs)
        y = linear(x, of_rows, None, check_experts(x, of_rows, None, None, starts))
    if out_dtype not in (None, y.dtype):
        raise DTypeError(
            f"a grouped product with packed matrices is of {y.dtype}, the common type of its "
            f"operands, got out_dtype={out_dtype}; convert the product"
        )
    return y


def grouped_mm_backward(
    x: Tensor, weight: Tensor, offs: Tensor, dy: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of the tokens and, dense, of the weight."""
    return grouped_mm(dy, weight.mT, offs), grouped_ops.grouped_gradient(x, dy, _starts(offs))


def _starts(ends: Tensor) -> Tensor:
    return torch.nn.functional.pad(ends, (1, 0))


def bmm(a: Tensor, b: Tensor) -> Tensor:
    """``a[i] @ b[i]`` for each i: where one is a packed stack, the product of experts that have
    as many tokens each.
    """
    torch_matmul.check_bmm(a, b)
    if isinstance(a, PackedMatrix) and a.stacked:
        return bmm(b.mT, a.mT).mT
    if not isinstance(b, PackedMatrix) or not b.stacked:
        return torch_matmul.bmm(a, b)
    known = chosen.find(b.parts)
    if known is not None and a.shape[1] == 1:
        return _of_stack(a[:, 0], b, known)[:, None]
    experts, each, k = a.shape
    if experts > MOST_GROUPS:  # in one launch
        pairs = zip(a.split(MOST_GROUPS), b.split(MOST_GROUPS), strict=True)
        return torch.cat([bmm(*pair) for pair in pairs])
    offsets = torch.arange(experts + 1, device=a.device) * each
    of_rows = b.mT
    x = a.reshape(experts * each, k)
    y = linear(x, of_rows, None, check_experts(x, of_rows, None, None, offsets))
    return y.view(experts, each, b.shape[2])


def _of_stack(x: Tensor, copies: PackedMatrix, known: list[chosen.Chosen]) -> Tensor:
    """``x[i] @ copies[i]``, by the stack that these are of: tokens are sorted for it, and back."""
    experts = len(known[0].part)
    parts = [of_part.part for of_part in known]
    stack = copies.like(parts, (experts, *copies.shape[1:]), copies.turned).mT
    numbers, order = known[0].numbers.sort()
    offsets = torch.searchsorted(numbers, torch.arange(experts + 1, device=x.device))
    rows = x[order]
    y = linear(rows, stack, None, check_experts(rows, stack, None, None, offsets))
    return torch.empty_like(y).index_copy_(0, order, y)


RULES: dict[Any, Callable[..., Any]] = {
    _aten.bmm.default: bmm,
    _aten._grouped_mm.default: grouped_mm,
    grouped_ops.grouped_dense: linear,
    OF_TRANSFORMERS: grouped_mm,
    f"{OF_TRANSFORMERS}_backward": grouped_mm_backward,
}
