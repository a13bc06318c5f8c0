"""Operands of layers, refused where torch or a kernel would not say what is wrong."""

from __future__ import annotations

import torch
from torch import Tensor

from sparse24 import _check, _dtypes
from sparse24._errors import DeviceError, DTypeError, ShapeError, UnsupportedError

_MULTIPLIED = frozenset(getattr(torch, name) for name in _dtypes.NAMES)


def check_tensor(given, argument: str) -> None:
    """Refuse what is no dense tensor, by its name."""
    if not isinstance(given, Tensor):
        if isinstance(given, torch.fx.Proxy):
            raise UnsupportedError(
                "torch.fx.symbolic_trace cannot look into sparse layers; use torch.export, or a "
                "torch.fx.Tracer whose is_leaf_module is true of SparseLinear"
            )
        kind = type(given).__name__
        raise DTypeError(f"{argument} must be a torch.Tensor, got {kind}; use torch.as_tensor")
    if given.is_nested:
        raise DTypeError(
            f"{argument} must be a dense tensor, got a nested one; use "
            f"torch.nested.to_padded_tensor({argument}, 0.0)"
        )
    if given.layout is not torch.strided:
        raise DTypeError(
            f"{argument} must be a dense tensor, got layout {given.layout}; use .to_dense()"
        )


def check_device(x: Tensor, **others: Tensor | None) -> None:
    """Refuse tensors that are apart; where one has no elements, torch would make some up."""
    device = x.device
    for name, given in others.items():
        if given is not None and given.device != device:
            raise DeviceError(
                f"{name} must be on the device of x, {device}, got {given.device}; move it with "
                ".to()"
            )


def check_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, mask: Tensor | None = None
) -> Tensor | None:
    """The bias as a vector (m,), after the messages that a plain product would not give."""
    check_tensor(x, "x")
    check_tensor(weight, "weight")
    for name, given in (("bias", bias), ("mask", mask)):
        if given is not None:
            check_tensor(given, name)
    if weight.ndim != 2 or x.ndim < 1 or x.shape[-1] != weight.shape[1]:
        raise ShapeError(
            f"x must have shape (..., k) and weight (m, k), got {tuple(x.shape)} and "
            f"{tuple(weight.shape)}"
        )
    check_device(x, weight=weight, bias=bias, mask=mask)
    for name, given in (("x", x), ("weight", weight)):
        if given.dtype not in _MULTIPLIED:
            raise DTypeError(
                f"{name} must be of one of the types {', '.join(_dtypes.NAMES)}, got "
                f"{given.dtype}; use for example {name}.to(torch.float32)"
            )
    return _check.bias(bias, weight.shape[0])
