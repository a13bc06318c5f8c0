"""torch's own functions on sparse arrays: products multiply, all others are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparse24 import _arrays, _check
from sparse24._errors import DTypeError, ShapeError


def apply(function: Callable, args: tuple, kwargs: dict) -> Any:
    """What `function` gives where a sparse array is one of its operands."""
    import torch

    products = (
        torch.matmul, torch.mm, torch.mv, torch.bmm, torch.Tensor.matmul, torch.Tensor.mm,
        torch.Tensor.bmm, torch.Tensor.__matmul__,
    )  # fmt: skip
    if function in products:
        return _multiply(*args, **kwargs)
    if function is torch.nn.functional.linear:
        return _linear(*args, **kwargs)
    raise DTypeError(
        f"torch's {function.__name__} does not take arrays of sparse24; multiply with @, "
        "torch.matmul or torch.nn.functional.linear, or call sparse24.convert.to_torch, which "
        "makes it dense"
    )


def _linear(input: Any, weight: Any, bias: Any = None) -> Any:
    y = _multiply(input, weight if weight.ndim < 2 else weight.mT)
    if bias is None:
        return y
    check_bias(bias, y.shape)
    return y + bias


def check_bias(bias: Any, shape: Any) -> None:
    """Refuse one that does not broadcast to a product, or that would spread the product."""
    ends = zip(bias.shape[::-1], shape[::-1], strict=False)
    if bias.ndim > len(shape) or any(n not in (1, wanted) for n, wanted in ends):
        raise ShapeError(
            f"bias must broadcast to the product's shape {tuple(shape)}, got shape "
            f"{tuple(bias.shape)}; reshape it"
        )


def _multiply(
    input: Any, other: Any = None, *, mat2: Any = None, vec: Any = None, out: Any = None
) -> Any:
    """``input @ other`` without asking torch again: the sparse operand multiplies.

    The names are torch's: `torch.mm` calls its second operand ``mat2``, `torch.mv` ``vec``.
    """
    other = next(x for x in (other, mat2, vec) if x is not None)
    y = other.__rmatmul__(input) if _arrays.is_torch(input) else input.__matmul__(other)
    return y if out is None else written(y, out)


def written(product: Any, out: Any) -> Any:
    """`out`, of the product's shape and type, with its elements."""
    _check.same_shape(out.shape, product.shape, argument="out", other="the product")
    if out.dtype != product.dtype:
        raise DTypeError(f"out must have dtype {product.dtype}, got {out.dtype}")
    return out.copy_(product)
