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


def checked_rule(gradient: str, transposable: bool, decay: float, seed: int) -> Rule:
    """The rule of these options, or the error that names the wrong one.

    Not part of making a `Rule`: up to torch 2.10, torch.compile makes them of symbols.
    """
    _check.one_of(gradient, GRADIENTS, argument="gradient")
    transposable = _check.flag(transposable, argument="transposable")
    if not isinstance(decay, (int, float)):  # torch.compile follows these as they are
        decay = _check.number(decay, argument="decay")
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        _check.whole(seed, argument="seed", least=0)
    if not 0 <= decay < math.inf:  # NaN is not
        raise ArgumentError(f"decay must be at least 0 and finite, got {decay}")
    return Rule(gradient, transposable, constant(decay), seed)


def constant(number: float) -> float:
    """The same number, made a constant for torch.compile.

    With symbolic sizes torch.compile makes floats symbols, too, and before torch 2.11 its backward
    then takes a size for the float.  The values of a set it treats as constants.
    """
    (known,) = {number}
    return known
