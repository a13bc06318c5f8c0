"""Refuse tensors of torch whose gradient, or whose trace, a product would drop."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from sparse24._errors import ArgumentError, UnsupportedError


def refuse(x: Any, argument: str = "the operand") -> None:
    """Raise for a tensor that requires a gradient while torch records what is done with it.

    Also while torch traces: the result would be a constant there, without an error.  For arrays of
    other libraries this only asks whether they have such an attribute, and for NumPy arrays
    nothing.
    """
    if type(x) is np.ndarray or not hasattr(x, "requires_grad"):
        return
    if is_traced(x):
        raise UnsupportedError(
            f"{argument} must not be traced, as by torch.jit.trace or torch.export, where the "
            "result would become a constant; give the model a weight that torch.export can follow, "
            "made by sparse24.torch.to_sparse_semi_structured(A), or multiply outside"
        )
    if not _records(x):
        return
    raise ArgumentError(
        f"{argument} must not require a gradient, which this product cannot give, got "
        f"{type(x).__name__} of shape {tuple(x.shape)} with requires_grad=True; multiply within "
        "torch.no_grad(), pass it with .detach(), or use what is differentiable: matmul, linear, "
        "grouped_linear and the layers of sparse24.torch"
    )


def refuse_target(out: Any) -> None:
    """Refuse an `out` that requires a gradient, for functions other than products."""
    if not _records(out):
        return
    raise ArgumentError(
        "out must not require a gradient, which would not follow what is written, got "
        f"{type(out).__name__} of shape {tuple(out.shape)} with requires_grad=True; write within "
        "torch.no_grad(), or pass out.detach()"
    )


def _records(x: Any) -> bool:
    if type(x) is np.ndarray or not getattr(x, "requires_grad", False):
        return False
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(x, torch.Tensor) or not torch.is_grad_enabled():
        return False
    # Within torch.func's transforms none of the ways out is one: see `_foreign`.
    return not torch._C._functorch.is_functorch_wrapped_tensor(x)


def is_traced(x: Any) -> bool:
    """Whether torch records what is done with a tensor, and not for gradients only."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    is_scripted = torch._C._get_tracing_state() is not None
    if not is_scripted and not torch._C._len_torch_dispatch_stack():  # mostly
        return False
    if not isinstance(x, torch.Tensor):
        return False
    proxies = sys.modules.get("torch.fx.experimental.proxy_tensor")
    return is_scripted or (proxies is not None and proxies.get_proxy_mode() is not None)


def refuse_options(c: Any, epilogue: Any, scales: Any) -> None:
    """`refuse` for each array among the options of a product."""
    if "torch" not in sys.modules:
        return
    if c is not None:
        refuse(c, "c")
    if epilogue is not None:
        for name, value in getattr(epilogue, "__dict__", {}).items():
            refuse(value, name)
    for value in scales if isinstance(scales, tuple | list) else ():
        refuse(value, "scales")
