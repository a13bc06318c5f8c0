"""What experts do to their product before they give it: an activation, and a gate."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sparse24 import _check
from sparse24._errors import ShapeError

_functional = torch.nn.functional
_ACTIVATIONS = {
    None: lambda x: x,
    "relu": _functional.relu,
    "relu2": lambda x: _functional.relu(x).square(),
    "gelu": _functional.gelu,
    "gelu_tanh": lambda x: _functional.gelu(x, approximate="tanh"),
    "silu": _functional.silu,
}


def checked_finish(activation: Any, gated: Any) -> tuple[str | None, bool]:
    """The options as they were given, if they are among those that there are."""
    _check.one_of(activation, tuple(_ACTIVATIONS), argument="activation")
    return activation, _check.flag(gated, argument="gated")


def check_halves(weight: Tensor) -> None:
    """Refuse matrices (e, m, k) whose rows are not a gate and as many others."""
    if weight.shape[1] % 2:
        raise ShapeError(
            "weight must have an even number of rows with gated=True, of which the first half are "
            f"a gate for the others, got {tuple(weight.shape)}"
        )


def finished(y: Tensor, activation: str | None, gated: bool) -> Tensor:
    """``activation(y)``, or ``activation(gate) * up`` for ``y = [gate, up]`` (t, 2 m).

    By torch's functions, which learn.
    """
    activate = _ACTIVATIONS[activation]
    if not gated:
        return activate(y)
    gate, up = y.chunk(2, dim=1)
    return activate(gate) * up
