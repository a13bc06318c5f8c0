"""Whether a dense array obeys 2:4, and where it does not."""

from __future__ import annotations

import math

import numpy as np

from sparse24 import _arrays, _check, _excess, _foreign, _foreign_streams, _spec
from sparse24._errors import PatternError


def is_24(x, *, axis=-1) -> bool:
    """True if every aligned group of four along an axis has at most two non-zeros.

    Parameters
    ----------
    x : array, any shape with at least one axis
        NumPy, CuPy, torch or JAX array, of booleans or integers of any size too; ``uint8`` is
        read as the bits of fp8.
    axis : int, default -1
        The axis that is cut into groups.

    Returns
    -------
    bool
        Waits for the GPU.  -0.0 is a zero, NaN is not.

    Raises
    ------
    DTypeError, ShapeError, ArgumentError
        If `x` is not an array of a supported type with at least one axis, or has no such `axis`.

    See Also
    --------
    check_24 : Raise, and say where.

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> s24.is_24(np.array([0.0, 1.0, 0.0, 2.0, 3.0]))
    True
    >>> s24.is_24(np.ones((4, 2)), axis=0)
    False
    >>> s24.is_24([2, 0, 0, 1])
    True
    """
    _, count, _ = _found(x, axis)
    return not count


def check_24(x, *, axis=-1) -> None:
    """Raise unless every aligned group of four along an axis has at most two non-zeros.

    Parameters
    ----------
    x, axis
        See `is_24`.  Waits for the GPU.

    Raises
    ------
    PatternError
        Names the first group with more than two non-zeros, in row-major order,
        and the number of such groups.
    DTypeError, ShapeError, ArgumentError
        As `is_24`.

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> s24.check_24(np.eye(8))
    >>> s24.check_24(np.ones((3, 8)))
    Traceback (most recent call last):
        ...
    sparse24.PatternError: x[0, 0:4] has more than 2 non-zeros, as 6 of 6 groups have; \
prune it to 2:4 first (sparse24.prune)
    """
    first, count, (axis, moved) = _found(x, axis)
    if not count:
        return
    groups = math.prod(moved[:-1]) * _spec.groups(moved[-1])
    place = _excess.place_of_group(first, moved, _spec.GROUP, axis)
    raise PatternError(
        f"x[{place}] has more than 2 non-zeros, as {count} of {groups} groups have; prune it to "
        "2:4 first (sparse24.prune)"
    )


def _found(x, axis):
    """First bad group and their number, along (axis, the shape with the axis moved last)."""
    with _foreign_streams.stream_of(x):
        array, _ = _foreign.take(x)
        if array.dtype.kind in "biu" and array.dtype not in (np.int8, np.uint8):
            array = (array != 0).view(np.int8)
        _check.at_least_1d(array.shape, argument="x")
        number = _check.axis(axis, array.ndim)
        # Bare bytes are the bits of fp8: of either type, as both have the sign on top.
        dtype = _arrays.logical_dtype(array, "float8_e5m2" if array.dtype == np.uint8 else None)
        moved = np.moveaxis(_arrays.as_storage(array, dtype), number, -1)
        matrix = moved if moved.ndim > 1 else moved[None]
        if _arrays.is_cupy(matrix):
            from sparse24.kernels import compress

            first, count = _excess.found(compress.check(matrix, dtype))
        else:
            from sparse24.kernels import cpu

            first, count = cpu.compress(matrix, "check")[2]
        return int(first), int(count), (number, moved.shape)
