"""How a sparse layer learns: one description for all bridges."""

from __future__ import annotations

from dataclasses import dataclass

from sparse24 import _check
from sparse24._errors import ArgumentError

GRADIENTS = ("ste", "24dense", "24sparse")


@dataclass(frozen=True)
class Rule:
    """How a sparse layer learns.

    Parameters
    ----------
    gradient : {"ste", "24dense", "24sparse"}
        What reaches the pruned operand: all of its gradient (straight-through), that of the
        kept elements, or that of the kept elements from a product with the output's gradient
        sampled to 2:4 along the tokens, so that this product is sparse as well.
    transposable : bool
        Prune by 4x4 tiles, so that the product with the transpose, in backward, is sparse.
    decay : float
        SR-STE: this times the pruned weights is added to the weight's gradient.
    seed : int
        Of the samples of ``"24sparse"``.
    """

    gradient: str = "ste"
    transposable: bool = False
    decay: float = 0.0
    seed: int = 0

    def __post_init__(self):
        _check.one_of(self.gradient, GRADIENTS, argument="gradient")
        if self.decay < 0:
            raise ArgumentError(f"decay must be at least 0, got {self.decay}")
