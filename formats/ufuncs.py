"""NumPy's ufuncs on sparse arrays: those that have an operator there; all others are refused."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparse24._errors import ArgumentError
from sparse24.formats.refusals import refusal

# The operators of an array that is the first operand, and of one that is the second.
OPERATORS = {
    np.matmul: ("__matmul__", "__rmatmul__"),
    np.multiply: ("__mul__", "__rmul__"),
    np.divide: ("__truediv__", "__rtruediv__"),
    np.negative: ("__neg__",),
    np.positive: ("__pos__",),
    np.absolute: ("__abs__",),
}
SIGNS = {np.matmul: "@", np.multiply: "*"}  # which y *= A turns into a call of a ufunc


class Ufuncs:
    """The attribute ``__array_ufunc__`` of a sparse array.

    NumPy asks the type for it, and finds a function.  CuPy asks the array and finds None, which
    says that ``x @ A`` is left to A: its way through NumPy's ufunc takes longer.
    """

    def __get__(self, array: Any, kind: type | None = None) -> Any:
        return _apply if array is None else None


def _apply(array: Any, ufunc: np.ufunc, method: str, /, *inputs: Any, **options: Any) -> Any:
    """What `ufunc` gives where `array` is one of its operands."""
    if ufunc not in OPERATORS or method != "__call__":
        way = "" if method == "__call__" else f".{method}"
        raise refusal(array, f"numpy.{ufunc.__name__}{way}")
    first, *second = inputs
    if first is not array and ufunc in SIGNS and any(first is y for y in options.get("out") or ()):
        raise _in_place(array, SIGNS[ufunc])
    given = ", ".join(f"{name}=" for name, value in options.items() if value is not None)
    if given:
        way_out = "call sparse24.matmul, which takes out= and dtype="
        if ufunc is not np.matmul:
            way_out = "leave it out, and convert the result with .astype(...)"
        raise ArgumentError(
            f"numpy.{ufunc.__name__} takes no {given} with {type(array).__name__}; {way_out}"
        )
    if first is array:
        return getattr(array, OPERATORS[ufunc][0])(*second)
    return getattr(array, OPERATORS[ufunc][1])(first)


def _in_place(array: Any, sign: str) -> ArgumentError:
    """The error for ``y @= A`` and ``y *= A``, which reach a ufunc with out= and axes= of NumPy's.

    A product reads y until its end, and ``y * A`` is a sparse array: y cannot hold either.
    """
    return ArgumentError(
        f"a dense array y has no y {sign}= A with {type(array).__name__}; write y = y {sign} A"
    )
