"""Scores of the elements of a weight, from which masks are chosen.

The weights come with the grouped axis last; scores have their shape.
"""

from __future__ import annotations

import numpy as np

from sparse24 import _arrays, _check, _dtypes, _foreign
from sparse24._calibration import Calibration, sums_of_squares
from sparse24._errors import ArgumentError, ShapeError

NAMES = ("magnitude", "wanda", "sparsegpt", "random")
# What a method takes to know the inputs of the layer.
_TAKES = {
    "wanda": ("calibration", "hessian", "activations"),
    "sparsegpt": ("calibration", "hessian"),
}


def checked_scores(scores, x, *, argument: str = "scores"):
    """Scores as an array beside `x`; refuses another shape, and what is not in order."""
    scores, _ = _foreign.take(scores, argument=argument)
    _check.same_shape(scores.shape, x.shape, argument=argument, other="x")
    _arrays.check_real(scores, argument=argument)
    return scores


def magnitude(x, dtype: _dtypes.DType):
    """Absolute values as float32 (float64 of float64), which rank NaN above inf.

    So -0.0 equals 0.0, and int8 -128 ranks above 127.
    """
    numbers = _numbers(x, dtype)
    if not _arrays.is_cupy(numbers):
        return np.abs(numbers)
    # CuPy's own takes subnormal float32 for zeros; this clears the sign bit.
    return (numbers.view(f"u{numbers.itemsize}") << 1 >> 1).view(numbers.dtype)


def _numbers(x, dtype: _dtypes.DType):
    """`x` as float32, or as float64 if it is that."""
    wide = np.float64 if dtype.name == "float64" else np.float32
    if isinstance(x, np.ndarray):
        from sparse24.kernels.cpu_decode import decoded

        # NumPy converts halves and 8-bit floats one by one, in ten times the time.
        return decoded(x, dtype, wide)
    if dtype.is_float8 and x.dtype == np.uint8:
        table = np.arange(256, dtype=np.uint8).view(dtype.logical).astype(np.float32)
        return _arrays.namespace(x).asarray(table)[x]
    return x.astype(wide)


def wanda(x, dtype: _dtypes.DType, norms):
    """Magnitude times the norm of the input that the element multiplies (Sun et al., 2023)."""
    size = magnitude(x, dtype)
    return size * _arrays.namespace(x).asarray(norms, dtype=size.dtype)


def random(x, rng):
    """Uniform numbers from a generator, a seed or None; the same on every device."""
    numbers = _check.generator(rng).random(x.shape, np.float32)
    return _arrays.namespace(x).asarray(numbers)


def check_inputs(method, **given) -> None:
    """Refuse what is known of the inputs where nothing would look at it, or where it is told twice.

    `method` is the name of one, or None where scores decide.
    """
    given = {name: value for name, value in given.items() if value is not None}
    for name in given:
        if name not in _TAKES.get(method, ()):
            methods = " or ".join(repr(key) for key, names in _TAKES.items() if name in names)
            raise ArgumentError(
                f"{name}= is for method={methods}, and {method or 'scores'!r} does not use it; "
                "drop it, or name such a method"
            )
    if len(given) > 1:
        raise ArgumentError(f"{' and '.join(given)} say the same; pass one of them")


def input_norms(k: int, calibration, hessian, activations):
    """The norm of each of the `k` input features, from whichever of the three is given."""
    if activations is not None:
        norms, _ = _foreign.take(activations, argument="activations")
        _arrays.check_real(norms, argument="activations")
        if norms.shape != (k,):
            raise ShapeError(
                f"activations must be the norms of the {k} inputs, shape ({k},), got shape "
                f"{norms.shape}; pass the inputs themselves as calibration="
            )
        return _checked_norms(norms)
    if calibration is None or isinstance(calibration, Calibration):
        found = input_hessian(k, calibration, hessian, method="wanda", more=" or activations=norms")
        squares = found.diagonal()
    else:
        squares = sums_of_squares(calibration)
        _check_features(len(squares), k)
    return _arrays.namespace(squares).sqrt(_checked_norms(squares))


def _checked_norms(x):
    """Norms, or their squares, as they are; a GPU is not waited for."""
    if isinstance(x, np.ndarray) and not ((x >= 0) & (x < np.inf)).all():
        raise ArgumentError(
            "the norms of the inputs, or the inputs behind them, hold NaN, inf or negative "
            "numbers; leave out what is not finite"
        )
    return x


def _check_features(given: int, k: int) -> None:
    if given != k:
        raise ShapeError(
            f"calibration must hold inputs of {k} features, as the weights have, got inputs of "
            f"{given}"
        )


def input_hessian(k: int, calibration, hessian, *, method: str = "sparsegpt", more: str = ""):
    """The (k, k) second moment of the inputs, from `calibration` or as given."""
    if calibration is None and hessian is None:
        raise ArgumentError(
            f"method={method!r} needs to know the inputs: pass calibration=X, an array "
            f"(..., {k}), or hessian=X.T @ X{more}"
        )
    if hessian is None:
        seen = calibration if isinstance(calibration, Calibration) else Calibration(calibration)
        hessian = seen.hessian
        _check_features(len(hessian), k)
    hessian, _ = _foreign.take(hessian, argument="hessian")
    _arrays.check_real(hessian, argument="hessian")
    if hessian.shape != (k, k):
        raise ShapeError(
            f"hessian must have shape ({k}, {k}) for weights with {k} inputs, got {hessian.shape}"
        )
    return hessian
