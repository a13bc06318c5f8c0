"""Sums, extremes and norms of a `Sparse24Tensor`: of the dense matrix, which is made for them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sparse24._errors import UnsupportedError
from sparse24._torch.matrix import PackedMatrix

_aten = torch.ops.aten
_LINEAR = (_aten.sum.default, _aten.sum.dim_IntList, _aten.mean.default, _aten.mean.dim)
_OTHERS = (
    _aten.max.default, _aten.max.dim, _aten.amax.default, _aten.min.default, _aten.min.dim,
    _aten.amin.default, _aten.linalg_vector_norm.default, _aten.count_nonzero.default,
    _aten.count_nonzero.dim_IntList,
)  # fmt: skip


def _reduced(function: Callable[..., Any], a: PackedMatrix, *axes: Any, **options: Any) -> Any:
    if function not in _LINEAR and a.requires_grad and torch.is_grad_enabled():
        raise UnsupportedError(
            f"{function} of a Sparse24Tensor has no gradient; call .to_dense() first, or .detach()"
        )
    return function(a.whole(), *axes, **options)


def equal(a: Tensor, b: Tensor) -> bool:
    a, b = (x.whole() if isinstance(x, PackedMatrix) else x for x in (a, b))
    return torch.equal(a, b)


RULES: dict[Any, Callable[..., Any]] = {
    _aten.equal.default: equal,
    **{function: functools.partial(_reduced, function) for function in (*_LINEAR, *_OTHERS)},
}
