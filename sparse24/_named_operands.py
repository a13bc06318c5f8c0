"""Dense operands that `plan` and `explain` take by their shape and dtype, before they exist."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

from sparse24 import _arrays, _check, _devices, _dtypes, _foreign
from sparse24._errors import ArgumentError, ShapeError


def made(like: Any, spec: tuple, named: Any, *, argument: str) -> tuple[Any, Any]:
    """An array of zeros of a shape and dtype, on the device of the sparse operand `like`.

    Returns that, and the type that its bits stand for, where the call must name it: of fp8 on a
    GPU the one in `spec`, else `named`.
    """
    shape, dtype = spec
    axes = shape if isinstance(shape, tuple | list) else (shape,)
    if dtype is None:  # which NumPy takes for float64
        raise without_dtype(like, tuple(axes), spec, argument=argument)
    shape = tuple(_check.whole(n, argument=f"a size in {argument}", least=0) for n in axes)
    known = _dtypes.lookup(dtype, argument=f"the dtype in {argument}")
    if known.is_float8 and named is not None:
        _foreign.refuse_other(known.name, named)
    if like.device == "cpu":
        return np.zeros(shape, known.logical), named
    with _devices.on_device(like.device):
        xp = _arrays.cupy_module()
        if known.is_float8:
            return xp.zeros(shape, np.uint8), known.name
        return xp.zeros(shape, known.logical), named


def with_array(like: Any, other: Any, named: Any, *, argument: str) -> tuple[Any, Any]:
    """An operand and the type that its bits stand for, the former made if it is only named.

    Refused are a number of columns, and a shape without a dtype.
    """
    if isinstance(other, tuple) and len(other) == 2 and _is_dtype(other[1]):
        return made(like, other, named, argument=argument)
    is_shape = isinstance(other, tuple) and all(isinstance(n, numbers.Integral) for n in other)
    if is_shape and len(other) not in like.shape:  # else it may be a vector
        raise without_dtype(like, other, other, argument=argument)
    if isinstance(other, numbers.Number):
        n = other if isinstance(other, int) and other > 0 else 1
        shape = (like.shape[-1], n) if argument == "b" else (n, like.shape[-2])
        raise ShapeError(
            f"{argument} must have at least one axis, got a scalar, {other!r}; pass an operand, or "
            f"its shape and dtype such as ({shape}, {like.dtype.name!r})"
        )
    return other, named


def without_dtype(like: Any, shape: tuple, given: Any, *, argument: str) -> ArgumentError:
    """The error of a spec that has no dtype; `shape` is one that it could have."""
    shape = tuple(int(n) if isinstance(n, numbers.Integral) else n for n in shape)  # not NumPy's
    return ArgumentError(
        f"{argument} must be an array, or its shape and dtype such as "
        f"({shape}, {like.dtype.name!r}), got {given!r}"
    )


def _is_dtype(x: Any) -> bool:
    return isinstance(x, str | type | np.dtype | None) or _dtypes.is_torchs(x)
