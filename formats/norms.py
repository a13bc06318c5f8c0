"""`numpy.linalg.norm` of sparse arrays, by way of their elements, sums and extremes."""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np

from sparse24 import _arrays, _check, _devices, _dtypes, _storage
from sparse24._dtypes import DType
from sparse24._errors import ArgumentError

# The type of the sums, so that squares of float16 stay finite; int8 gives float64, as in NumPy.
_WORK = {"float32": "float32", "float64": "float64", "int8": "float64"}
_EUCLIDEAN = "euclidean"
# What becomes of absolute values along one axis.
_OF_VECTORS = {None: _EUCLIDEAN, 2: _EUCLIDEAN, 1: "sum", math.inf: "max", -math.inf: "min"}
# The axis along which they are summed, of two, and what becomes of these sums along the other.
_OF_MATRICES: dict[Any, Any] = {
    None: _EUCLIDEAN, "fro": _EUCLIDEAN, "f": _EUCLIDEAN,
    1: (0, "max"), -1: (0, "min"), math.inf: (1, "max"), -math.inf: (1, "min"),
}  # fmt: skip
_OF_ALL = {None: _EUCLIDEAN}  # elements of a batch


def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """What `numpy.linalg.norm` gives for a sparse array `x`, for the orders in the tables."""
    keepdims = _check.flag(keepdims, argument="keepdims")
    x = x._of_elements()
    axes = _axes(axis, x)
    way = _way(ord, x, axes, axis)
    work = _dtypes.lookup(_WORK.get(x.dtype.name, "float32"))
    with _devices.on_device(x.device):
        if x.size and way == _EUCLIDEAN and len(axes) == x.ndim:
            found = _of_all(x, work, keepdims=keepdims)
        else:
            found = _along(x.astype(work.name), ord, axis, axes, way, keepdims=keepdims)
        return found.astype(np.float16) if x.dtype == np.float16 else found


def _axes(axis: Any, x: Any) -> tuple[int, ...]:
    """The axes that a norm goes over, one or two of them, or all."""
    if axis is None:
        return tuple(range(x.ndim))
    axes = axis if isinstance(axis, tuple) else (axis,)
    axes = tuple(_check.axis(number, x.ndim) for number in axes)
    if len(axes) not in (1, 2) or len(set(axes)) < len(axes):
        raise ArgumentError(
            f"axis of numpy.linalg.norm must be None, an axis, or two of them, got "
            f"{_check.shown(axis)}"
        )
    return axes


def _way(ord: Any, x: Any, axes: tuple[int, ...], axis: Any) -> Any:
    """How the norm of an order is found, by the table for so many axes."""
    table: dict[Any, Any] = {1: _OF_VECTORS, 2: _OF_MATRICES}.get(len(axes), _OF_ALL)
    if isinstance(ord, str | numbers.Real | None) and ord in table:
        return table[ord]
    known = " or ".join(map(repr, table))
    raise ArgumentError(
        f"ord of numpy.linalg.norm must be {known} with {type(x).__name__} of shape {x.shape} and "
        f"axis={_check.shown(axis)}, got {_check.shown(ord)}; for others pass its .toarray()"
    )


def _of_all(x: Any, work: DType, *, keepdims: bool) -> Any:
    """The root of the sum of the squares of all elements, from those that are stored."""
    held = x._elements()
    if x._dtype is not work:
        held = [_storage.converted(elements[None], x._dtype, work) for elements in held]
    xp = _arrays.namespace(held[0])
    found = xp.sqrt(sum(xp.square(elements).sum() for elements in held))
    return found.reshape((1,) * x.ndim) if keepdims else found


def _along(x: Any, ord: Any, axis: Any, axes: tuple[int, ...], way: Any, *, keepdims: bool) -> Any:
    """The norm along some axes, or by way of sums."""
    if not x.size:
        return _of_none(x, ord, axis, keepdims=keepdims)
    if way == _EUCLIDEAN:
        xp = _arrays.namespace(x._elements()[0])
        return xp.sqrt(x.square().sum(axis=axes, keepdims=keepdims))
    if len(axes) == 1:
        return getattr(abs(x), way)(axis=axes, keepdims=keepdims)
    return _of_sums(x, axes, *way, keepdims=keepdims)


def _of_sums(x: Any, axes: tuple[int, ...], place: int, extreme: str, *, keepdims: bool) -> Any:
    """The extreme along one of two axes of the sums of absolute values along the other."""
    sums = abs(x).sum(axis=axes[place], keepdims=True)
    found = getattr(sums, extreme)(axis=axes[1 - place], keepdims=True)
    return found if keepdims else found.squeeze(axes)[()]


def _of_none(x: Any, ord: Any, axis: Any, *, keepdims: bool) -> Any:
    """The norm of an array without elements: NumPy decides what is 0 and what is an error."""
    found = np.linalg.norm(np.zeros(x.shape, x.dtype), ord, axis, keepdims)
    xp = _arrays.namespace(x._elements()[0])
    return found if xp is np else xp.asarray(found)
