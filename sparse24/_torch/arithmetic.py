"""Factors, signs and absolute values of a `Sparse24Tensor`: of the elements that it stores.

A zero of the matrix stays one, also beside an infinite factor, as in arrays of sparse24.  Types
are those that torch gives dense tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sparse24 import _dtypes
from sparse24._errors import ShapeError, UnsupportedError
from sparse24._torch import ops
from sparse24._torch.matrix import PackedMatrix, undefined

_aten = torch.ops.aten
_STORED = frozenset(getattr(torch, name) for name in _dtypes.NAMES)
_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def multiply(a: Any, b: Any) -> PackedMatrix:
    if isinstance(a, PackedMatrix) and isinstance(b, PackedMatrix):
        raise undefined(_aten.mul.Tensor, "call .to_dense() on one of them")
    return _scaled(torch.mul, a, b) if isinstance(a, PackedMatrix) else _scaled(torch.mul, b, a)


def divide(a: Any, b: Any, **options: Any) -> PackedMatrix:
    if isinstance(b, PackedMatrix) or options:
        raise undefined(_aten.div.Tensor)
    return _scaled(torch.div, a, b)


def negative(a: PackedMatrix) -> PackedMatrix:
    return _mapped(torch.neg, a)


def absolute(a: PackedMatrix) -> PackedMatrix:
    if a.requires_grad and torch.is_grad_enabled():
        raise UnsupportedError(
            "abs() of a Sparse24Tensor has no gradient; call .to_dense() first, or .detach()"
        )
    return _mapped(torch.abs, a)


def _mapped(function: Callable[..., Tensor], a: PackedMatrix, factors: list | None = None) -> Any:
    """`function` of each orientation's elements, and of their factors."""
    refuse_float8(a)
    parts = []
    for i in range(0, len(a.parts), 2):
        values, codes = a.parts[i : i + 2]
        made = function(values) if factors is None else function(values, factors[i // 2])
        zero = (values == 0) | (made == 0)  # so that no -0.0 is stored, nor 0 * inf
        parts += [made.masked_fill(zero, 0), codes]
    return type(a)(parts, a.shape, turned=a.turned)


def refuse_float8(*matrices: PackedMatrix) -> None:
    for a in matrices:
        if a.dtype in _FLOAT8:
            raise UnsupportedError(
                f"torch has no arithmetic of {a.dtype}; use .to(torch.float32), or .to_array(), "
                "whose arrays have it"
            )


def _scaled(function: Callable[..., Tensor], a: PackedMatrix, factor: Any) -> PackedMatrix:
    if not isinstance(factor, Tensor):
        return _mapped(function, _in_result_type(function, a, factor), [factor] * 2)
    _check_factor(factor, a)
    a = _in_result_type(function, a, factor)
    if factor.numel() == 1:
        return _mapped(function, a, [factor.reshape(())] * 2)
    return _mapped(function, a, _at_places(a, factor))


def _check_factor(factor: Tensor, a: PackedMatrix) -> None:
    shape = _own_shape(a)
    ends = zip(factor.shape[::-1], shape[::-1], strict=False)
    if factor.ndim > len(shape) or any(n not in (1, wanted) for n, wanted in ends):
        raise ShapeError(
            f"a factor of shape {tuple(factor.shape)} does not broadcast to "
            f"{tuple(shape)}, the shape of the Sparse24Tensor; reshape it"
        )
    if factor.requires_grad and torch.is_grad_enabled() and factor.numel() == a.numel() > 1:
        raise UnsupportedError(
            "a factor for each element has no gradient beside a Sparse24Tensor; call .to_dense() "
            "first, or .detach() of the factor"
        )


def _own_shape(a: PackedMatrix) -> torch.Size:
    """Without the axes of ``expand``."""
    return a.shape if a.stacked else a.shape[-2:]


def _in_result_type(function: Callable[..., Tensor], a: PackedMatrix, factor: Any) -> PackedMatrix:
    """The matrix in the type that torch gives the result."""
    refuse_float8(a)
    few = factor.new_empty(0) if isinstance(factor, Tensor) and factor.ndim else factor
    wanted = function(a.parts[0].new_empty(0), few).dtype
    if wanted not in _STORED:
        raise UnsupportedError(
            f"elements of {a.dtype} and the factor give {wanted}, which is not stored; convert one "
            "of them with .to(...)"
        )
    return a if wanted == a.dtype else a.converted(wanted)


def _at_places(a: PackedMatrix, factor: Tensor) -> list[Tensor]:
    """The factors of each orientation's elements."""
    m, k = a.stored_shape
    factor = factor.to(a.dtype).expand(_own_shape(a))
    factor = factor.mT if a.turned else factor
    if len(a.parts) == 2 and (factor.stride(-1) == 0 or k == 1):  # one for each row
        return [factor[..., :1]]
    return ops.like(a.parts, m, k, factor.contiguous())
