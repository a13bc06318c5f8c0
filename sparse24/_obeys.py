"""Whether a dense array obeys 2:4, and where it does not."""

from __future__ import annotations

import numpy as np

from sparse24 import _arrays, _check, _dtypes, _foreign, _select, _spec
from sparse24._errors import PatternError


def is_24(x, *, axis=-1):
    """True if every aligned group of four along an axis has at most two non-zeros.

    Parameters
    ----------
    x : array, any shape with at least one axis
        NumPy, CuPy, torch or JAX array; ``uint8`` is read as the bits of fp8.
    axis : int, default -1
        The axis that is cut into groups.

    Returns
    -------
    bool
        Waits for the GPU.  -0.0 is a zero, NaN is none.

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
    """
    excess, _ = _excess(x, axis)
    return not bool(excess.any())


def check_24(x, *, axis=-1):
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

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> s24.check_24(np.eye(8))
    >>> s24.check_24(np.ones((3, 8)))
    Traceback (most recent call last):
        ...
    sparse24._errors.PatternError: x[0, 0:4] has more than 2 non-zeros, as 6 of 6 groups have; \
prune it to 2:4 first (sparse24.prune)
    """
    excess, (axis, length) = _excess(x, axis)
    count = int(excess.sum())
    if not count:
        return
    first = np.unravel_index(int(excess.argmax()), excess.shape)
    place = [str(i) for i in first[:-1]]
    start = _spec.GROUP * int(first[-1])
    place.insert(axis, f"{start}:{min(start + _spec.GROUP, length)}")
    raise PatternError(
        f"x[{', '.join(place)}] has more than 2 non-zeros, as {count} of {excess.size} groups "
        "have; prune it to 2:4 first (sparse24.prune)"
    )


def _excess(x, axis):
    """Boolean array of the bad groups, on the last axis, and (axis, its length)."""
    array, _ = _foreign.take(x)
    _check.at_least_1d(array.shape, argument="x")
    axis = _check.axis(axis, array.ndim)
    bits = np.moveaxis(_magnitude_bits(array), axis, -1)
    groups = _select.in_groups(bits != 0, _spec.GROUP)  # -0.0 is a zero, NaN is none
    return groups.sum(-1) > _spec.KEPT, (axis, array.shape[axis])


def _magnitude_bits(x):
    """The bits of `x` without the sign of floats; bare ``uint8`` is fp8."""
    row = _dtypes.TABLE["float8_e4m3fn"] if x.dtype == np.uint8 else _arrays.logical_dtype(x)
    if row.name == "int8":
        return x
    return x.view(row.storage) & row.storage.type((1 << 8 * row.itemsize - 1) - 1)
