"""NumPy's ufuncs on sparse arrays: those that have a method there; all others are refused."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparse24._errors import ArgumentError
from sparse24.formats.refusals import refusal
from sparse24.formats.unary import KEEP_ZEROS

# The methods of an array that is the first operand, and of one that is the second; "" for none.
METHODS = {
    np.matmul: ("__matmul__", "__rmatmul__"),
    np.multiply: ("__mul__", "__rmul__"),
    np.divide: ("__truediv__", ""),
    np.negative: ("__neg__",),
    np.positive: ("__pos__",),
    np.absolute: ("__abs__",),
    **{ufunc: (name,) for ufunc, name in KEEP_ZEROS.items()},
}
if hasattr(np, "matvec"):  # from NumPy 2.2 on; of a matrix, not of one that stands for vectors
    METHODS |= {np.matvec: ("_matvec", ""), np.vecmat: ("", "_vecmat")}
# Functions of NumPy's that reach an array as a method of a ufunc.
CALLED: dict[tuple[np.ufunc, str], str] = {
    (np.logical_or, "reduce"): "any",
    (np.logical_and, "reduce"): "all",
    (np.multiply, "reduce"): "prod",
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
    if method != "__call__":
        called = CALLED.get((ufunc, method), f"{ufunc.__name__}.{method}")
        raise refusal(array, f"numpy.{called}")
    first, *second = inputs
    is_second = first is not array and any(y is array for y in second)  # else it may be an out=
    own = _method(array, ufunc, -1 if is_second else 0)
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
    return own(*second) if first is array else own(first)


def _method(array: Any, ufunc: np.ufunc, place: int) -> Any:
    """The method for `ufunc` of an array that is the first of its operands, or the last."""
    names = METHODS.get(ufunc, ("",))
    if hasattr(type(array), names[place]):
        return getattr(array, names[place])
    takes_vectors = ufunc.signature and any(names)
    which = " with itself as the vectors" if takes_vectors and not names[place] else ""
    raise refusal(array, f"numpy.{ufunc.__name__}{which}")


def _in_place(array: Any, sign: str) -> ArgumentError:
    """The error for ``y @= A`` and ``y *= A``, which reach a ufunc with out= and axes= of NumPy's.

    A product reads y until its end, and ``y * A`` is a sparse array: y cannot hold either.
    """
    return ArgumentError(
        f"a dense array y has no y {sign}= A with {type(array).__name__}; write y = y {sign} A"
    )
