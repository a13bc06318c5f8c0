"""What experts do to their product before they give it: an activation, and a gate."""

from __future__ import annotations

from typing import NamedTuple

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


class Finish(NamedTuple):
    """``activation(y)``, or ``activation(gate) * up`` for ``y = [gate, up]``."""

    activation: str | None = None
    gated: bool = False

    @classmethod
    def checked(cls, activation, gated) -> Finish:
        """Of options as they were given."""
        _check.one_of(activation, tuple(_ACTIVATIONS), argument="activation")
        return cls(activation, bool(_check.one_of(gated, (True, False), argument="gated")))

    def check_rows(self, weight: Tensor) -> None:
        """Refuse matrices (e, m, k) that have no two halves."""
        if self.gated and weight.shape[1] % 2:
            raise ShapeError(
                "weight must have an even number of rows with gated=True, those of a gate over as "
                f"many that it gates, got {tuple(weight.shape)}"
            )

    def __call__(self, y: Tensor) -> Tensor:
        """By torch's functions, which learn; y is (t, m)."""
        activate = _ACTIVATIONS[self.activation]
        if not self.gated:
            return activate(y)
        gate, up = y.chunk(2, dim=1)
        return activate(gate) * up


PLAIN = Finish()
