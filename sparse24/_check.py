"""Argument checks with one style of message: argument, rule, value, way out."""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Mapping
from typing import Any

import numpy as np

from sparse24._errors import ArgumentError, DTypeError, PatternError, ShapeError

MOST_SHOWN = 60  # characters of a value in a message


def shown(value) -> str:
    """A value in a message: arrays by their shape, all else as it is written, cut if long."""
    shape = getattr(value, "shape", ())
    if shape and isinstance(shape, tuple):  # that of a class is none
        return f"{type(value).__name__} of shape {tuple(value.shape)}"
    text = repr(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"


def integer(value) -> int:
    """`operator.index`, but for booleans of Python and torch, which that takes for 0 and 1.

    These raise a `TypeError`, as those of NumPy and JAX do by themselves.
    """
    if isinstance(value, bool) or str(getattr(value, "dtype", "")) == "torch.bool":
        raise TypeError("a boolean is no number")
    return operator.index(value)


def pattern(value) -> tuple[int, int]:
    """Return (n, m) of an n:m pattern: n kept elements in every m."""
    try:
        n, m = (integer(x) for x in value)
    except (TypeError, ValueError):
        raise PatternError(
            f"pattern must be a pair (n, m) such as (2, 4), got {shown(value)}"
        ) from None
    if not 0 < n < m <= 32:
        raise PatternError(f"pattern must have 0 < n < m <= 32, got {shown(value)}")
    return n, m


def axis(value, ndim: int) -> int:
    """Return the axis as a non-negative number."""
    try:
        number = integer(value)
    except TypeError:
        raise ArgumentError(f"axis must be an integer, got {shown(value)}") from None
    if not -ndim <= number < ndim:
        raise ArgumentError(f"axis must be in [{-ndim}, {ndim}), got {shown(value)}")
    return number % ndim


def matrix_axis(value, ndim: int) -> int:
    """Return the axis, which must be one of the last two, as -1 or -2."""
    place = axis(value, ndim) - ndim
    if place < -2:
        raise ArgumentError(
            f"axis must be one of the last two, got {value}; move it there with numpy.moveaxis"
        )
    return place


def sizes(value, *, argument: str, count: int | None = None, least: int = 0) -> tuple[int, ...]:
    """Return a shape as whole numbers from `least` on; of `count` axes, or of two or more."""
    try:
        shape = tuple(integer(size) for size in value)
    except TypeError:
        shape = ()
    fits = len(shape) == count if count is not None else len(shape) >= 2
    if not fits or min(shape) < least:
        wanted = "(m, k)" if count == 2 else "(..., m, k)"
        raise ShapeError(
            f"{argument} must be {wanted}, whole numbers from {least} on, got {shown(value)}"
        )
    return shape


def not_bits(x, *, argument: str) -> None:
    """Refuse the bits of fp8, where they would pass for whole numbers."""
    if x.dtype == np.uint8:
        raise DTypeError(
            f"{argument} holds uint8, perhaps the bits of fp8; view them on the host as "
            "ml_dtypes.float8_e4m3fn or float8_e5m2 first"
        )


def at_least_1d(shape, *, argument: str) -> None:
    if len(shape) < 1:
        raise ShapeError(f"{argument} must have at least one axis, got a scalar; wrap it in a list")


def not_scalar(shape, *, argument: str) -> None:
    """Refuse an operand of a product without axes."""
    if len(shape) < 1:
        raise ShapeError(
            f"{argument} must have at least one axis, got a scalar; factors go to alpha= of "
            "sparse24.matmul"
        )


def at_least_2d(shape, *, argument: str) -> None:
    if len(shape) < 2:
        raise ShapeError(
            f"{argument} must have at least two axes (..., m, k), got shape {tuple(shape)}; "
            "add one, for example x[None, :]"
        )


def same_shape(got, want, *, argument: str, other: str) -> None:
    if tuple(got) != tuple(want):
        raise ShapeError(
            f"{argument} must have the shape of {other}, {tuple(want)}, got {tuple(got)}"
        )


def boolean(mask, *, argument: str = "mask") -> None:
    """Refuse an array of any library that does not hold booleans."""
    if not str(mask.dtype).endswith("bool"):  # "torch.bool" as well
        raise DTypeError(f"{argument} must be boolean, got {mask.dtype}; use {argument} != 0")


def layer_shapes(x, weight) -> None:
    """Refuse tokens and a weight of these shapes whose linear layer does not exist."""
    if len(weight) != 2 or not x or x[-1] != weight[1]:
        turned = "; pass weight.T" if len(weight) == 2 and x and x[-1] == weight[0] else ""
        raise ShapeError(
            f"x must have shape (..., k) and weight (m, k), got {tuple(x)} and {tuple(weight)}"
            f"{turned}"
        )


def bias(value, m: int, *, argument: str = "bias"):
    """The bias of a layer of `m` rows as a vector (m,); None stays."""
    if value is None:
        return None
    shape = tuple(value.shape)
    if shape not in ((m,), (1, m)):
        raise ShapeError(
            f"{argument} must have shape ({m},) or (1, {m}), one number for each row of the "
            f"weight, got {shape}"
        )
    return value if len(shape) == 1 else value.reshape(m)


def one_of(value, choices, *, argument: str):
    try:
        known = not is_an_array(value) and value in choices
    except (TypeError, ValueError, RuntimeError):  # what compares element by element
        known = False
    if not known:
        listed = ", ".join(repr(choice) for choice in choices)
        raise ArgumentError(f"{argument} must be one of {listed}, got {shown(value)}")
    return value


def is_an_array(value) -> bool:
    """True for an array or a tensor, also one without axes; not for NumPy's numbers and types."""
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):  # first, for torch.compile
        return False
    return not isinstance(value, np.generic | np.dtype | type)


def flag(value, *, argument: str, also: tuple[str, ...] = ()) -> Any:
    """An option that is True or False, as NumPy's booleans, 0 and 1 also say it; or one of `also`.

    So does an array without axes, as ``(x > 0).all()`` gives on a GPU.
    """
    if value is True or value is False:
        return value
    if is_an_array(value) and not value.shape:
        with contextlib.suppress(TypeError, RuntimeError):  # of JAX's tracers and without memory
            value = value.item()
    one_of(value, (True, False, *also), argument=argument)
    return value if isinstance(value, str) else bool(value)


def text(value, *, argument: str, such_as: str) -> str:
    """An option that is a string, such as a name that only the device knows."""
    if not isinstance(value, str):
        raise ArgumentError(f"{argument} must be a string, {such_as}, got {shown(value)}")
    return value


def whole(value, *, argument: str, least: int) -> int:
    """Return a whole number, NumPy's included, that is `least` or more."""
    try:
        found = integer(value)
    except TypeError:
        found = least - 1
    if found < least:
        raise ArgumentError(
            f"{argument} must be a whole number from {least} on, got {shown(value)}"
        )
    return found


def function(value, *, argument: str) -> None:
    """Refuse what cannot be called."""
    if not callable(value):
        raise ArgumentError(f"{argument} must be a function, got {shown(value)}")


def is_index(value) -> bool:
    """True for a whole number that picks one of several; a boolean would add an axis."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def generator(rng) -> np.random.Generator:
    """A source of randomness from what NumPy takes for one: a generator, a seed or nothing."""
    try:
        return np.random.default_rng(integer(rng) if isinstance(rng, bool) else rng)
    except (TypeError, ValueError):
        raise ArgumentError(
            "rng must be a numpy.random.Generator or a seed, a whole number from 0 on, got "
            f"{shown(rng)}"
        ) from None


def is_scalar(value) -> bool:
    """`numpy.isscalar`, which takes long to tell that of an array."""
    return not getattr(value, "ndim", 0) and np.isscalar(value)


def number(value, *, argument: str) -> float:
    """Return a factor as a float; refuses arrays with axes, text and complex numbers."""
    if type(value) is float:
        return value
    unmasked(value, argument=argument)
    try:
        if np.ndim(value) or not _is_real(value):
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        raise ArgumentError(f"{argument} must be a number, got {shown(value)}") from None
    except OverflowError:
        raise ArgumentError(f"{argument} must fit a float, got a larger integer") from None


def _is_real(value) -> bool:
    """False for text, which `float` reads, and complex numbers, of which it drops a part."""
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        return not isinstance(value, str | bytes)
    name = str(dtype)  # of torch's types, too
    return "complex" not in name and not name.startswith(("|S", "<U", ">U", "|V"))


def positive(value, *, argument: str) -> float:
    """Return a finite number above 0 as a float."""
    found = number(value, argument=argument)
    if not 0 < found < math.inf:
        rule = "finite" if found > 0 else "above 0"
        raise ArgumentError(f"{argument} must be {rule}, got {value!r}")
    return found


def writable(array, *, argument: str) -> None:
    """Refuse an array that cannot be written to, or of which elements share memory."""
    if isinstance(array, np.ndarray) and not array.flags.writeable:
        raise ArgumentError(f"{argument} is read-only; pass a writable array, for example a copy")
    if _overlaps_itself(array):
        raise ArgumentError(
            f"{argument} must not be a view whose elements share memory, such as a broadcast one; "
            "pass a copy"
        )


def _overlaps_itself(array) -> bool:
    """Whether elements share memory, as in broadcast views and sliding windows.

    Also true of views whose axes are interleaved, which no slicing and transposing makes.
    """
    end = array.itemsize
    for step, size in sorted((abs(step), n) for step, n in zip(array.strides, array.shape)):
        if size > 1 and step < end:
            return array.size > 0
        end += step * (size - 1)
    return False


def unmasked(x, *, argument: str) -> None:
    """Refuse NumPy's masked arrays."""
    is_subclass = isinstance(x, np.ndarray) and type(x) is not np.ndarray
    if is_subclass and isinstance(x, np.ma.MaskedArray):
        raise DTypeError(
            f"{argument} must not be a {type(x).__name__}, whose mask would be lost; fill its "
            "masked places, for example with .filled(0)"
        )


def is_array(x, *, argument: str) -> None:
    """Refuse what cannot be written to, such as a list; NumPy's types have the names alone."""
    if not hasattr(x, "shape") or not hasattr(x, "dtype") or isinstance(x, type):
        raise DTypeError(f"{argument} must be an array, got {type(x).__name__}")


def by_name(value, *, argument: str, of: str = "arrays", optional: bool = False) -> None:
    """Refuse what has no names, where names tell the layers."""
    if not isinstance(value, Mapping) and not (optional and value is None):
        raise ArgumentError(
            f"{argument} must be a mapping of names to {of}, such as {{'w': ...}}, got "
            f"{shown(value)}"
        )
