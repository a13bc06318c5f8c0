"""`numpy.concatenate`, `numpy.stack` and the like: what arrays in groups store is joined."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np

from sparse24 import _check
from sparse24._errors import ArgumentError, DeviceError, DTypeError, ShapeError


class Joining:
    """NumPy's functions that join arrays, for a format whose rows are stored one by one."""

    pattern: Any

    @abstractmethod
    def _joined(self, arrays: Sequence[Self], axis: int, *, new: bool) -> Self:
        """Arrays joined along an axis of what is stored, counted from the end, or a new one."""

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function in JOINS:
            return JOINS[function](*args, **kwargs)
        return super().__array_function__(function, types, args, kwargs)  # type: ignore[misc]


def concatenate(arrays: Any, /, axis: int = 0, out=None, dtype=None, casting=None) -> Any:
    """What `numpy.concatenate` gives for sparse arrays; groups are joined whole."""
    refuse_options("concatenate", out=out, dtype=dtype, casting=casting)
    arrays = _alike(arrays, "concatenate")
    first = arrays[0]
    axis = _check.axis(axis, first.ndim) - first.ndim
    for array in arrays:
        if _without(array.shape, axis) != _without(first.shape, axis):
            raise ShapeError(
                f"numpy.concatenate joins arrays that differ in axis {axis} only, got shapes "
                f"{first.shape} and {array.shape}"
            )
    if axis == first.axis:
        _check_groups(arrays, axis)
    return _stored_joined(arrays, axis, new=False)


def stack(arrays: Any, /, axis: int = 0, out=None, dtype=None, casting=None) -> Any:
    """What `numpy.stack` gives for sparse arrays; the new axis comes before rows and columns."""
    refuse_options("stack", out=out, dtype=dtype, casting=casting)
    arrays = _alike(arrays, "stack")
    first = arrays[0]
    number = _check.axis(axis, first.ndim + 1)
    if number > first.ndim - 2:
        raise ArgumentError(
            f"axis of numpy.stack must come before rows and columns, at most {first.ndim - 2}, "
            f"got {axis}"
        )
    for array in arrays:
        if array.shape != first.shape:
            raise ShapeError(
                f"numpy.stack needs arrays of one shape, got {first.shape} and {array.shape}"
            )
    return _stored_joined(arrays, number - first.ndim - 1, new=True)


def _stored_joined(arrays: list[Any], axis: int, *, new: bool) -> Any:
    if arrays[0].axis == -1:
        return arrays[0]._joined(arrays, axis, new=new)
    transposed = [array.mT for array in arrays]
    return transposed[0]._joined(transposed, -3 - axis if axis > -3 else axis, new=new).mT


def refuse_options(name: str, **options: Any) -> None:
    """Raise if one of the options of this function of NumPy's is given."""
    given = ", ".join(f"{option}=" for option, value in options.items() if value is not None)
    if given:
        raise ArgumentError(
            f"numpy.{name} takes no {given} with sparse arrays; leave it out, and convert the "
            "result with .astype(...)"
        )


def _alike(arrays: Any, name: str) -> list[Any]:
    """The arrays, which are of one format, type, device and axis."""
    arrays = list(arrays)
    first = next(array for array in arrays if isinstance(array, Joining))
    for array in arrays:
        _check_alike(first, array, f"numpy.{name}")
    return arrays


def _check_alike(first: Any, array: Any, name: str) -> None:
    if type(array) is not type(first) or array.pattern != first.pattern:
        raise DTypeError(
            f"{name} joins sparse arrays of one format and pattern, got {_kind(first)} and "
            f"{_kind(array)}; compress dense ones first, or dequantise quantised ones"
        )
    check_type_and_device(first, array, name)
    if array.axis != first.axis:
        raise ArgumentError(
            f"{name} joins arrays whose groups run along one axis, got {first.axis} and "
            f"{array.axis}; compress them with the same axis="
        )
    if array.ndim != first.ndim:
        raise ShapeError(
            f"{name} needs arrays of as many axes, got {first.shape} and {array.shape}"
        )


def check_type_and_device(first: Any, array: Any, name: str) -> None:
    """Raise unless both arrays are of one type and on one device."""
    if array.dtype != first.dtype:
        raise DTypeError(
            f"{name} joins sparse arrays of one type, got {first.dtype} and {array.dtype}; "
            "convert with .astype(...)"
        )
    if array.device != first.device:
        raise DeviceError(
            f"{name} joins arrays of one device, got {first.device} and {array.device}; move one "
            "with .to_device(...)"
        )


def _kind(array: Any) -> str:
    name = type(array).__name__
    return f"{name} {array.pattern[0]}:{array.pattern[1]}" if isinstance(array, Joining) else name


def _check_groups(arrays: list[Any], axis: int) -> None:
    m = arrays[0].pattern[1]
    for array in arrays[:-1]:
        if array.shape[axis] % m:
            raise ArgumentError(
                f"arrays are joined along their groups where these are whole, got {array.shape} "
                f"before another with groups of {m} along axis {axis}; join the dense arrays, and "
                "compress the result"
            )


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """The sizes of all other axes."""
    return (*shape[:axis], *shape[len(shape) + axis + 1 :])


def names_of(concatenate: Callable[..., Any]) -> dict[Any, Callable[..., Any]]:
    """NumPy's functions that join along an axis there is, by a format's way to do so."""
    return {
        np.concatenate: concatenate,
        np.vstack: functools.partial(concatenate, axis=0),
        np.hstack: functools.partial(concatenate, axis=1),
    }


JOINS = names_of(concatenate) | {np.stack: stack}
