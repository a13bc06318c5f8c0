"""On which GPU CuPy works: that of the arrays in hand, whichever is the current one."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from sparse24 import _arrays
from sparse24._errors import DeviceError

Given = ParamSpec("Given")
Self = TypeVar("Self")
Result = TypeVar("Result")


def on_device_of(*arrays: Any) -> contextlib.AbstractContextManager:
    """The context in which CuPy works where the first of its arrays is."""
    there = next((x for x in arrays if _arrays.is_cupy(x)), None)
    return contextlib.nullcontext() if there is None else there.device


def on_device(name: str) -> contextlib.AbstractContextManager:
    """The context in which CuPy works on a device, ``"cuda:<index>"``; none for the others."""
    _, _, index = name.partition(":")
    if not index:
        return contextlib.nullcontext()
    return _arrays.cupy_module().cuda.Device(int(index))


def on_own_device(
    method: Callable[Concatenate[Self, Given], Result],
) -> Callable[Concatenate[Self, Given], Result]:
    """A method that works on the device of its object."""

    @functools.wraps(method)
    def there(self: Any, *args: Given.args, **kwargs: Given.kwargs) -> Result:
        with on_device(self.device):
            return method(self, *args, **kwargs)

    return there


def on_device_of_arguments(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """A function that works on the device of the first array that it is given."""

    @functools.wraps(function)
    def there(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        with on_device_of(*args, *kwargs.values()):
            return function(*args, **kwargs)

    return there


def is_elsewhere(x: Any) -> bool:
    """True for a CuPy array that is not on the current device."""
    return x.data.device_id != _arrays.cupy_module().cuda.runtime.getDevice()


def refuse_elsewhere(x: Any, *, argument: str, on_gpu: bool | None = None) -> None:
    """Refuse a CuPy array that is not on the current device, where the operands are.

    With `on_gpu` also a NumPy array beside operands on a GPU, and the other way round.
    """
    is_cupy = _arrays.is_cupy(x)
    if on_gpu not in (None, is_cupy) or (is_cupy and is_elsewhere(x)):
        raise DeviceError(
            f"{argument} is on {_arrays.device_of(x)}, the operands are not; pass an array on "
            "their device"
        )


def refuse_apart(x: Any, device: str, *, argument: str) -> None:
    """Refuse an operand that is not on the device of a sparse array, also the host's."""
    there = _arrays.device_of(x)
    if there != device:
        raise DeviceError(
            f"{argument} is on {there}, the sparse array on {device}; move one, with "
            "A.to_device(...) or cupy.asarray(x)"
        )
