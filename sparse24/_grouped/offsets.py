"""Where the tokens of each expert begin and end: the `offsets` of grouped products."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparse24 import _arrays, _foreign
from sparse24._errors import ArgumentError, DeviceError, DTypeError, ShapeError

ON_GPU = (np.int32, np.int64)  # types that the kernel reads


def taken(offsets: Any, experts: int, tokens: int, *, like: Any) -> Any:
    """Offsets as an array: of NumPy and validated, or of CuPy and not looked at.

    Parameters
    ----------
    offsets : array or list, shape (experts + 1,)
    experts, tokens : int
    like : array
        An operand; where it is on the CPU, so must `offsets` be.

    Returns
    -------
    ndarray or cupy.ndarray of int32 or int64, shape (experts + 1,)
        One of CuPy is contiguous.  Does not wait for the device.

    Raises
    ------
    ShapeError, DTypeError, ArgumentError
        If `offsets` do not split the tokens among the experts.
    DeviceError
        If they are on another device than `like`.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24._grouped import offsets as grouped_offsets
    >>> grouped_offsets.taken([0, 2, 2, 5], 3, 5, like=np.ones(1))
    array([0, 2, 2, 5])
    """
    array, _ = _foreign.take(offsets, argument="offsets")
    check_shape(array.shape, experts)
    if _arrays.is_cupy(array):
        return _of_gpu(array, like)
    if array.dtype.kind not in "iu":
        raise DTypeError(
            f"offsets must hold integers, got {array.dtype}; convert with .astype('int64')"
        )
    return validated(array.astype(np.int64, copy=False), tokens)


def check_shape(shape: tuple[int, ...], experts: int) -> None:
    """Refuse offsets of a shape that is not (experts + 1,)."""
    if tuple(shape) != (experts + 1,):
        raise ShapeError(
            f"offsets must have shape (e + 1,) = ({experts + 1},) for {experts} experts, got "
            f"{tuple(shape)}; it begins with 0 and ends with the number of tokens"
        )


def _of_gpu(array: Any, like: Any) -> Any:
    here, there = _arrays.device_of(array), _arrays.device_of(like)
    if here != there:
        raise DeviceError(
            f"offsets are on {here}, the operands on {there}; move them, for example with "
            "offsets.get() to the cpu"
        )
    if array.dtype not in ON_GPU:
        raise DTypeError(
            f"offsets on a GPU must be int32 or int64, got {array.dtype}; convert with "
            ".astype('int32')"
        )
    return _arrays.namespace(array).ascontiguousarray(array)


def validated(offsets: np.ndarray, tokens: int) -> np.ndarray:
    """Return NumPy offsets that begin with 0, end with `tokens` and never decrease; else raise."""
    if offsets[0] != 0:
        raise ArgumentError(
            f"offsets must begin with 0, the first token, got {offsets[0]}; tokens of no expert "
            "have no product, leave them out"
        )
    if offsets[-1] != tokens:
        raise ArgumentError(
            f"offsets must end with the number of tokens, {tokens}, got {offsets[-1]}; the last "
            "one is where the tokens of the last expert end"
        )
    falls = offsets[1:] < offsets[:-1]
    if falls.any():
        at = int(np.argmax(falls))
        raise ArgumentError(
            f"offsets must not decrease, got {offsets[at]} at {at} and {offsets[at + 1]} at "
            f"{at + 1}; make them by a cumulative sum of the tokens of each expert"
        )
    return offsets
