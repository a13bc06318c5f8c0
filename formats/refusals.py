"""NumPy operations that sparse arrays refuse, with errors that say what works instead."""

from __future__ import annotations

import numbers
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np

from sparse24._errors import ArgumentError, DTypeError

_REDUCTIONS = ("sum", "mean", "max", "min", "amax", "amin")  # NumPy's, which call methods


def refusal(array: Any, operation: str) -> DTypeError:
    """The error of arithmetic that a sparse array does not have."""
    return DTypeError(
        f"{type(array).__name__} does not support {operation}, only {array._has}; for other "
        "arithmetic use .toarray(), or .tocsr() for a SciPy matrix"
    )


def _refuse(operator: str) -> Callable[..., Any]:
    def refuse(self, *others: Any) -> Any:
        raise refusal(self, operator)

    return refuse


class Refusals:
    """Operators that a format of sparse24 does not have, and attributes, which cannot be set.

    ``==`` and ``!=`` between two of them, and with what is no number or array, ask whether
    both are the same object, so that they can stand in sets and as keys.
    """

    __array_priority__ = 1000.0

    _has = "@ (a factor goes to alpha= of sparse24.matmul)"  # of arithmetic

    shape: Any
    ndim: Any

    __add__ = __radd__ = _refuse("+")
    __sub__ = __rsub__ = _refuse("-")
    __mul__ = __rmul__ = _refuse("*")
    __truediv__ = __rtruediv__ = _refuse("/")
    __floordiv__ = __rfloordiv__ = _refuse("//")
    __mod__ = __rmod__ = _refuse("%")
    __pow__ = __rpow__ = _refuse("**")
    __lt__ = __gt__ = __le__ = __ge__ = _refuse("order comparisons (<, <=, >, >=)")
    __neg__ = __pos__ = _refuse("a sign")
    __abs__ = _refuse("abs()")

    def __setattr__(self, name, value):
        raise AttributeError(f"{type(self).__name__} is immutable; cannot set {name}")

    def __delattr__(self, name):
        raise AttributeError(f"{type(self).__name__} is immutable; cannot delete {name}")

    def __eq__(self, other: object) -> bool:
        is_array = hasattr(other, "shape") and hasattr(other, "dtype")
        if isinstance(other, numbers.Number) or (is_array and not isinstance(other, Refusals)):
            mask = ", or use .mask(), which is true where elements are not zero"
            raise DTypeError(
                f"{type(self).__name__} is not compared element by element; compare its "
                f".toarray(){mask if hasattr(self, 'mask') else ''}"
            )
        return True if self is other else NotImplemented

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise ArgumentError(
            f"the truth value of {type(self).__name__} is ambiguous; use .nnz or .toarray()"
        )

    def __getitem__(self, key: Any) -> Any:
        raise ArgumentError(
            f"{type(self).__name__} cannot be indexed; use .tocsr()[...] or .toarray()[...]"
        )

    def __setitem__(self, key: Any, value: Any) -> None:
        raise DTypeError(
            f"{type(self).__name__} is immutable; change its .toarray(), and make a new one of that"
        )

    def __array__(self, *args, **kwargs):
        if _scipy_multiplies(sys._getframe(1)):
            opaque = np.empty((), object)
            opaque[()] = self
            return opaque
        if _scipy_multiplies_elements(sys._getframe(1)):
            raise DTypeError(
                f"a SciPy array cannot be multiplied by {type(self).__name__} element by element "
                "from the left; write A * m, or m * A.tocsr()"
            )
        raise DTypeError(
            f"{type(self).__name__} is not converted to a dense array implicitly; multiply with "
            "@ or sparse24.matmul, or call .toarray() (NumPy on the CPU, CuPy on the GPU), or "
            ".tocsr() for use with SciPy's formats"
        )

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """`numpy.dot`, and reductions without options that no method here has.

        Two that would read the error of `__array__` as "not equal" are refused, and those that save
        arrays name functions that save these.
        """
        if function is np.dot and len(args) == 2 and not kwargs and _is_matmul(*args):
            return args[0] @ args[1]
        if function in (np.save, np.savez, np.savez_compressed):
            raise DTypeError(
                f"numpy.{function.__name__} saves dense arrays, got a {type(self).__name__}; use "
                "sparse24.save_npz or sparse24.save_safetensors, or its .toarray()"
            )
        if function.__name__ in ("array_equal", "array_equiv"):
            raise DTypeError(
                f"{type(self).__name__} is not compared element by element; compare its .toarray()"
            )
        given = [f"{name}=" for name in ("initial", "where") if name in kwargs]
        if given and function.__name__ in _REDUCTIONS:
            raise ArgumentError(
                f"numpy.{function.__name__} takes no {', '.join(given)} with "
                f"{type(self).__name__}; leave it out, or reduce the array's .toarray()"
            )
        return function._implementation(*args, **kwargs)

    def __iter__(self) -> Iterator[Any]:
        """The matrices of a batch."""
        if self.ndim > 2:
            return (self[i] for i in range(self.shape[0]))
        raise DTypeError(
            f"{type(self).__name__} of two axes cannot be iterated over; use .toarray() or .tocsr()"
        )


def _is_matmul(a: Any, b: Any) -> bool:
    """True if ``numpy.dot(a, b)`` is ``a @ b``: of two stacks it pairs each matrix with all."""
    return np.ndim(b) < 3 or np.ndim(a) < 2


def _scipy_multiplies(caller: FrameType) -> bool:
    """True if ``csr @ A`` of a SciPy matrix asks for the array of A.

    SciPy knows no protocol for other sparse arrays.  It leaves the product to
    ``A.__rmatmul__`` if A turns into an array without axes, and only then.
    """
    return _is_scipys(caller) and caller.f_code.co_name == "_matmul_dispatch"


def _scipy_multiplies_elements(caller: FrameType) -> bool:
    """True if ``m * A`` or ``m.multiply(A)`` of a SciPy array asks for the array of A."""
    return _is_scipys(caller) and "multiply" in caller.f_code.co_name


def _is_scipys(caller: FrameType) -> bool:
    return caller.f_globals.get("__name__", "").startswith("scipy.sparse.")
