"""Operands that are refused before JAX sees them: its errors would not say what to do."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from sparse24 import _check
from sparse24._errors import ArgumentError, DTypeError
from sparse24._jax.calls import is_traced
from sparse24._other_formats import in_place_of
from sparse24.formats.base import SparseArray


def check_array(x: Any, *, argument: str) -> None:
    """Refuse what JAX does not take as an array."""
    if isinstance(x, jax.Array | np.ndarray | np.generic) or hasattr(x, "__jax_array__"):
        return
    if isinstance(x, SparseArray):
        way = "sparse24.jax.matmul multiplies by it, in compiled code too"
    else:
        taker = "from_dlpack" if hasattr(x, "__dlpack__") else "asarray"
        way = f"make it a dense one, as by jax.numpy.{taker}"
    raise DTypeError(f"{argument} must be an array of JAX or NumPy, got {type(x).__name__}; {way}")


def not_one_sparse(a: Any, b: Any) -> ArgumentError:
    """The error of a product of two sparse operands, or of none."""
    got, instead = f"got {_check.shown(a)} and {_check.shown(b)}", in_place_of(a, b)
    if is_traced(a, b) and not instead:  # as which jax.jit passes whatever has a shape and a type
        return ArgumentError(
            f"one operand must be a sparse array, {got}; a sparse array that is an argument of a "
            "transformed function arrives there as a tracer: let the function close over it, or "
            "name it in static_argnums of jax.jit; for two arrays of JAX use jax.numpy.matmul"
        )
    return ArgumentError(
        f"one operand must be a sparse array, as a Sparse24Array is, the other one of JAX, {got}; "
        f"use jax.numpy.matmul or sparse24.matmul{instead}"
    )
