"""Helpers for tests: is it 2:4, is it accurate, and awkward arrays to try."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sparse24 import _arrays, _check, _dtypes, _is_24
from sparse24._errors import PatternError

__all__ = ["arrays", "assert_24", "assert_accurate", "relative_error"]


def assert_24(x: Any, *, axis: int = -1) -> None:
    """Fail unless an array, or what a compressed array holds, obeys 2:4.

    Parameters
    ----------
    x : array or sparse24 array
        Read on its device, which this waits for.
    axis : int, default -1
        The axis that groups run along.

    Raises
    ------
    AssertionError
        If a group has more than two non-zeros; names the first.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24.testing import assert_24
    >>> assert_24(np.eye(4))
    >>> assert_24(np.ones((1, 4)))
    Traceback (most recent call last):
        ...
    AssertionError: x[0, 0:4] has more than 2 non-zeros, ...
    """
    dense = x.toarray() if hasattr(x, "toarray") else x
    try:
        _is_24.check_24(dense, axis=axis)
    except PatternError as error:
        raise AssertionError(str(error)) from None


def relative_error(actual: Any, exact: Any) -> float:
    """Root mean square error, relative to the root mean square of `exact`.

    Parameters
    ----------
    actual, exact : array, same shape
        Compared in float64 on the host.

    Returns
    -------
    float
        0 for equal arrays, also for empty ones; infinite if only `exact` is zero.

    Raises
    ------
    ShapeError
        If the shapes differ.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24.testing import relative_error
    >>> relative_error(np.array([1.1, 1.1]), np.array([1.0, 1.0])).__round__(3)
    0.1
    """
    given = (("actual", actual), ("exact", exact))
    found, wanted = (_arrays.to_numpy(x, argument=name) for name, x in given)
    for name, x in (("actual", found), ("exact", wanted)):
        _check.unmasked(x, argument=name)
        _arrays.check_real(x, argument=name)
    found, wanted = found.astype(np.float64), wanted.astype(np.float64)
    _check.same_shape(found.shape, wanted.shape, argument="actual", other="exact")
    if np.array_equal(found, wanted):
        return 0.0
    # Else squares of very large or small numbers would be infinite or zero.
    scale = max(float(np.abs(found).max()), float(np.abs(wanted).max()))
    scale = scale if math.isfinite(scale) else 1.0
    norm, error = (float(np.linalg.norm(x / scale)) for x in (wanted, found - wanted))
    return error / norm if norm else float("inf")


def assert_accurate(actual: Any, exact: Any, *, rival: Any, factor: float = 2.0) -> None:
    """Fail if a product's error exceeds `factor` times that of a rival of the same type.

    A wider tolerance would hide errors; a rival's own error does not.

    Parameters
    ----------
    actual : array
        The product under test.
    exact : array
        The same product in float64.  For a float64 product compute it in `numpy.longdouble`, since
        a rival of the type of `exact` would show no error.
    rival : array
        The same product by a trusted routine in the type of `actual`, such as
        ``np.matmul`` of the decompressed operand.
    factor : float, default 2.0
        How much larger the error may be.

    Raises
    ------
    AssertionError
        If the error is larger; names both.
    ShapeError
        If the shapes differ.
    ArgumentError
        If `factor` is not a number.

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> A, b = s24.random((32, 64), rng=0), np.ones((64, 8), np.float32)
    >>> dense = A.toarray()
    >>> s24.testing.assert_accurate(A @ b, dense.astype(float) @ b, rival=dense @ b)
    """
    factor = _check.number(factor, argument="factor")
    ours, theirs = relative_error(actual, exact), relative_error(rival, exact)
    dtype = _dtypes.TABLE.get(_arrays.to_numpy(actual, argument="actual").dtype.name)
    # Where the rival happens to be exact, one rounding of the result is still allowed.
    rounding = _rounding(dtype) if dtype is not None else 0.0
    limit = factor * max(theirs, rounding)
    if not ours <= limit:  # also NaN; no assert statement, which python -O leaves out
        raise AssertionError(
            f"relative error {ours:.2e} exceeds {factor} times that of the rival, {theirs:.2e}"
        )


def _rounding(dtype: _dtypes.DType) -> float:
    import ml_dtypes

    return 0.0 if dtype.name == "int8" else float(ml_dtypes.finfo(dtype.logical).eps) / 2


def arrays(
    *,
    dtypes: tuple[str, ...] = _dtypes.NAMES,
    max_side: int = 40,
    max_batch: int = 2,
    special: bool = True,
):
    """A hypothesis strategy of awkward NumPy arrays (..., m, k) to prune and compress.

    Odd sizes (0 and 1 among them), up to `max_batch` batch axes, transposed and strided
    views, many equal values and zeros, and, with `special`, NaN, infinities and -0.0.

    Parameters
    ----------
    dtypes : tuple of str
        Element types to draw from.
    max_side : int
        Largest m and k.
    max_batch : int
        Most batch axes, each of 0 to 3.
    special : bool
        Whether floats may be NaN, infinite or -0.0.

    Returns
    -------
    hypothesis.strategies.SearchStrategy

    Raises
    ------
    DTypeError
        When an example is drawn, if a name in `dtypes` is unknown.

    Examples
    --------
    >>> import sparse24 as s24
    >>> from hypothesis import given, settings
    >>> @settings(max_examples=5, deadline=None)
    ... @given(s24.testing.arrays(dtypes=("float32",)))
    ... def test(x):
    ...     s24.testing.assert_24(s24.prune(x))
    >>> test()
    """
    from hypothesis import strategies as st

    @st.composite
    def draw_array(draw):
        dtype = _dtypes.lookup(draw(st.sampled_from(dtypes)))
        batch = draw(st.lists(st.integers(0, 3), max_size=max_batch))
        shape = (*batch, draw(st.integers(0, max_side)), draw(st.integers(0, max_side)))
        rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        return _view(draw, st, _values(rng, shape, dtype, special))

    return draw_array()


def _values(rng: np.random.Generator, shape: tuple[int, ...], dtype: _dtypes.DType, special: bool):
    """Small integers, so that there are ties and zeros, with special values strewn in."""
    x = rng.integers(-4, 5, shape).astype(np.float32).astype(dtype.logical)
    if special and dtype.name != "int8":
        strange = np.array([np.nan, -0.0, np.inf, -np.inf], np.float32)
        if dtype.name == "float8_e4m3fn":  # has no infinity
            strange = strange[:2]
        places = rng.random(shape) < 0.1
        x[places] = rng.choice(strange, int(places.sum())).astype(dtype.logical)
    return x


def _view(draw, st, x: np.ndarray) -> np.ndarray:
    """The same values, in another order of memory."""
    kind = draw(st.sampled_from(["plain", "transposed", "strided", "reversed"]))
    if kind == "transposed":
        return x.swapaxes(-1, -2).copy().swapaxes(-1, -2)
    if kind == "strided":
        wide = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)
        wide[..., ::2] = x
        return wide[..., ::2]
    return x[..., ::-1].copy()[..., ::-1] if kind == "reversed" else x
