"""How a sparse layer learns: the options that the torch, JAX and NumPy layers share."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sparse24 import _check
from sparse24._errors import ArgumentError

GRADIENTS = ("ste", "24dense", "24sparse", "ste_sampled")


@dataclass(frozen=True)
class Rule:
    """How a sparse layer learns.

    Parameters
    ----------
    gradient : {"ste", "24dense", "24sparse", "ste_sampled"}
        What reaches the pruned operand: all of its gradient (straight-through) or that of the
        kept elements; and, in the latter two, from a product with the output's gradient
        sampled to 2:4 along the tokens, so that this product is sparse as well.
    transposable : bool
        Prune by 4x4 tiles, so that the product with the transpose, in backward, is sparse.
    decay : float
        SR-STE: this times the pruned weights is added to the weight's gradient.
    seed : int
        Of the samples.
    """

    gradient: str = "ste"
    transposable: bool = False
    decay: float = 0.0
    seed: int = 0

    @property
    def straight(self) -> bool:
        """True if pruned elements receive their gradient too."""
        return self.gradient.startswith("ste")

    @property
    def samples(self) -> bool:
        """True if the output's gradient is sampled."""
        return self.gradient in ("24sparse", "ste_sampled")

    def __post_init__(self):
        _check.one_of(self.gradient, GRADIENTS, argument="gradient")
        _check.one_of(self.transposable, (True, False), argument="transposable")
        # torch.compile follows numbers as they are; of types torch 2.8 follows no union
        if not isinstance(self.decay, (int, float)):
            _check.number(self.decay, argument="decay")
        if not isinstance(self.seed, int) or self.seed < 0:
            _check.whole(self.seed, argument="seed", least=0)
        if not 0 <= self.decay < math.inf:  # NaN is not
            raise ArgumentError(f"decay must be at least 0 and finite, got {self.decay}")
