"""NumPy's ufuncs on sparse arrays: `numpy.matmul` multiplies, all others are refused."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparse24._errors import ArgumentError
from sparse24.formats.refusals import refusal


class MatmulAlone:
    """The attribute ``__array_ufunc__`` of a sparse array.

    NumPy asks the type for it, and finds a function.  CuPy asks the array and finds None, which
    says that ``x @ A`` is left to A: its way through NumPy's ufunc takes longer.
    """

    def __get__(self, array: Any, kind: type | None = None) -> Any:
        return _apply if array is None else None


def _apply(array: Any, ufunc: np.ufunc, method: str, /, *inputs: Any, **options: Any) -> Any:
    """What `ufunc` gives where `array` is one of its operands."""
    if ufunc is not np.matmul or method != "__call__":
        way = "" if method == "__call__" else f".{method}"
        raise refusal(array, f"numpy.{ufunc.__name__}{way}")
    given = ", ".join(f"{name}=" for name, value in options.items() if value is not None)
    if given:
        raise ArgumentError(
            f"numpy.matmul takes no {given} with {type(array).__name__}; call sparse24.matmul, "
            "which takes out= and dtype="
        )
    left, right = inputs
    return array.__matmul__(right) if left is array else array.__rmatmul__(left)
