"""Quantised matrices of a conversion: what cannot be one, how one is made, and what it loses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

import sparse24 as s24
from sparse24 import _dtypes
from sparse24._errors import ArgumentError, DTypeError, Sparse24Error
from sparse24._file_checks import Spec
from sparse24._quantised import FLOATS
from sparse24.formats.quantised import Quantised24Array
from sparse24.formats.two_four import Sparse24Array

if TYPE_CHECKING:
    from sparse24._checkpoint import Recipe


def check(recipe: Recipe, specs: Mapping[str, Spec], held: Mapping[str, int]) -> None:
    """Refuse what cannot be written with integers of `recipe.bits`, before any work.

    Parameters
    ----------
    specs
        Of the eligible matrices and stacks.
    held
        The bits of those that the checkpoint holds quantised.
    """
    if recipe.pattern != (2, 4):
        raise ArgumentError(
            f"--quantise writes 2:4 matrices, got --pattern {'{}:{}'.format(*recipe.pattern)}; "
            "drop one of them"
        )
    for name, (_, dtype) in specs.items():
        if _dtypes.lookup(dtype).name not in FLOATS:
            raise DTypeError(
                f"{name} holds {dtype}, and --quantise takes {', '.join(FLOATS)}; leave it out "
                "with --include or --exclude"
            )
    for name, bits in held.items():
        if bits != recipe.bits:
            raise ArgumentError(
                f"{name} is quantised to {bits} bits already, got --quantise {recipe.bits}; name "
                f"--quantise {bits}, or leave it out with --include or --exclude"
            )
        if recipe.axis != -1:
            raise ArgumentError(
                f"{name} is quantised along its rows already, got --axis {recipe.axis}; drop it, "
                "or leave the matrix out with --include or --exclude"
            )


def quantised(
    name: str, array: Sparse24Array, bits: int, inputs: np.ndarray | None = None
) -> Quantised24Array:
    """A matrix or a stack of a checkpoint with elements rounded to integers times scales.

    Where the inputs of its layer are known, so that outputs change least.  Those of experts are
    the inputs of each of them, as in pruning.
    """
    method = "mse" if inputs is None else "gptq"
    try:
        seen = _of_each(inputs, array)
        return s24.quantise(array, bits=bits, method=method, calibration=seen)
    except Sparse24Error as error:
        raise type(error)(f"{name}: {error}") from error


def rounding_error(rounded: Quantised24Array, array: Sparse24Array) -> float:
    """What rounding changes, by the root of the sum of squares; as a share of that of `array`."""
    lost = whole = 0.0
    for one, matrix in [(rounded, array)] if array.ndim == 2 else zip(rounded, array, strict=True):
        exact = matrix.values.astype(np.float64)  # of one matrix: a stack is large without that
        whole += np.square(exact).sum()
        lost += np.square(one.dequantise("float64").values - exact).sum()
    return math.sqrt(lost / whole) if whole else 0.0


def _of_each(inputs: np.ndarray | None, array: Sparse24Array) -> Any:
    """The inputs of a matrix, or for each matrix of a stack what is known of all of them."""
    if inputs is None or array.ndim == 2:
        return inputs
    return [s24.Calibration(inputs)] * len(array)
