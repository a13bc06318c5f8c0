"""NumPy's other names of products: `matvec`, `vecmat`, `inner` and `tensordot`, by way of @."""

from __future__ import annotations

from typing import Any

from sparse24 import _arrays, _check, _foreign
from sparse24._errors import ArgumentError, DTypeError, ShapeError
from sparse24.formats.refusals import Refusals


def matvec(matrix: Any, x: Any) -> Any:
    """What `numpy.matvec` gives for a sparse matrix, or a batch, and vectors (..., k)."""
    x = _vectors(x, matrix, axis=-1, name="matvec")
    if matrix.ndim > 2:
        return (matrix @ x[..., None])[..., 0]
    return matrix @ x if x.ndim == 1 else x @ matrix.mT


def vecmat(matrix: Any, x: Any) -> Any:
    """What `numpy.vecmat` gives for vectors (..., m) and a sparse matrix, or a batch."""
    x = _vectors(x, matrix, axis=-2, name="vecmat")
    return x @ matrix if matrix.ndim == 2 else (x[..., None, :] @ matrix)[..., 0, :]


def _vectors(x: Any, matrix: Any, *, axis: int, name: str) -> Any:
    """Dense vectors along the last axis of `x`, as many elements each as the matrix has there."""
    if isinstance(x, Refusals) or _arrays.is_sparse_matrix(x):
        raise DTypeError(
            f"numpy.{name} takes dense vectors with {type(matrix).__name__}, got "
            f"{type(x).__name__}; multiply matrices with @"
        )
    x = _array(x, "vectors")
    k = matrix.shape[axis]
    if not x.ndim or x.shape[-1] != k:
        raise ShapeError(
            f"vectors of numpy.{name} must have shape (..., {k}) with {type(matrix).__name__} of "
            f"shape {matrix.shape}, got {tuple(x.shape)}"
        )
    return x


def _array(x: Any, argument: str) -> Any:
    """Numbers in lists as an array; arrays of any library unchanged."""
    return x if _check.is_an_array(x) else _foreign.take(x, argument=argument)[0]


def inner(a: Any, b: Any, /) -> Any:
    """What `numpy.inner` gives where the right operand is a vector or a matrix."""
    a, b = _array(a, "a"), _right("inner", b)
    return a @ (b if b.ndim == 1 else b.T)


def tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    """What `numpy.tensordot` gives with ``axes=1``."""
    if _check.is_an_array(axes) or axes != 1:
        raise ArgumentError(
            f"numpy.tensordot takes axes=1 alone with sparse arrays, got {_check.shown(axes)}; "
            "multiply with @, or use .toarray()"
        )
    return _array(a, "a") @ _right("tensordot", b)


def _right(name: str, b: Any) -> Any:
    """The right operand, with which these two functions are a product by @."""
    b = _array(b, "b")
    if b.ndim not in (1, 2):
        raise ShapeError(
            f"the right operand of numpy.{name} must have one or two axes with sparse arrays, got "
            f"{_check.shown(b)}; multiply with @, or use .toarray()"
        )
    return b
