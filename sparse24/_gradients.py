"""Refuse tensors of torch whose gradient a product would drop."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from sparse24._errors import ArgumentError


def refuse(x: Any, argument: str = "the operand") -> None:
    """Raise for a tensor that requires a gradient while torch records what is done with it.

    For arrays of other libraries this only asks whether they have such an attribute, and for
    NumPy arrays nothing.
    """
    if not _records(x):
        return
    raise ArgumentError(
        f"{argument} must not require a gradient, which this product cannot give, got "
        f"{type(x).__name__} of shape {tuple(x.shape)} with requires_grad=True; multiply within "
        "torch.no_grad(), pass it with .detach(), or use what is differentiable: linear, "
        "grouped_linear and the layers of sparse24.torch"
    )


def refuse_target(x: Any, argument: str = "out") -> None:
    """The same of a tensor that something else than a product is to be written to."""
    if not _records(x):
        return
    raise ArgumentError(
        f"{argument} must not require a gradient, which would not follow what is written, got "
        f"{type(x).__name__} of shape {tuple(x.shape)} with requires_grad=True; write within "
        f"torch.no_grad(), or pass {argument}.detach()"
    )


def _records(x: Any) -> bool:
    if type(x) is np.ndarray or not getattr(x, "requires_grad", False):
        return False
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(x, torch.Tensor) or not torch.is_grad_enabled():
        return False
    # Within torch.func's transforms none of the ways out is one: see `_foreign`.
    return not torch._C._functorch.is_functorch_wrapped_tensor(x)


def refuse_options(c: Any, epilogue: Any, scales: Any) -> None:
    """The same of arrays among the options of a product."""
    if "torch" not in sys.modules:
        return
    if c is not None:
        refuse(c, "c")
    if epilogue is not None:
        for name, value in getattr(epilogue, "__dict__", {}).items():
            refuse(value, name)
    for value in scales if isinstance(scales, tuple | list) else ():
        refuse(value, "scales")
