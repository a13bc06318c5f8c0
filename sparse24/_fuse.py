"""From the options of a call to the epilogue that kernels take."""

from __future__ import annotations

import math
from typing import Any

from sparse24 import _arrays, _check, _devices, _foreign
from sparse24._errors import ArgumentError, ShapeError
from sparse24._options import ACTIVATIONS, Call, Epilogue
from sparse24._records import PLAIN, Fused


def fuse(call: Call, left: tuple, right: tuple, xp, real) -> Fused:
    """All factors, biases and the activation of a call as one record.

    `left` and `right` are the shapes of the operands; vectors become arrays of `xp` and
    of type `real`.
    """
    c, beta, e = call.c, call.beta, call.epilogue
    plain = call.alpha == 1.0 and e is None and call.scales is None
    if plain and (c is None or beta == 0.0):
        return PLAIN
    e = e if e is not None else Epilogue()
    if not isinstance(e, Epilogue):
        raise ArgumentError(
            "epilogue must be a sparse24.Epilogue, such as Epilogue(activation='relu'), got "
            f"{_check.shown(e)}"
        )
    out_scale = _check.number(e.out_scale, argument="out_scale")
    if e.activation is not None:
        _check.one_of(e.activation, ACTIVATIONS, argument="activation")
    lower, upper = _bounds(e)
    m, n = left[-2] if len(left) > 1 else 1, right[-1] if len(right) > 1 else 1
    row_bias, column_bias, _ = _vector("bias", e.bias, m, n, xp, real)
    row, column, factor = _vector("alpha_vector", e.alpha_vector, m, n, xp, real)
    for name, scale in _scales(call.scales, m, n):
        more_row, more_column, more = _vector(name, scale, m, n, xp, real)
        row, column = _times(row, more_row), _times(column, more_column)
        factor *= more
    return Fused(
        float(call.alpha) * factor, float(beta), _matrix("c", c) if beta else None, row, column,
        row_bias, column_bias, e.activation or "identity", lower, upper, out_scale,
        _written("aux", e.aux),
    )  # fmt: skip


def _bounds(e: Epilogue) -> tuple[float, float]:
    """Where relu begins and ends; refuses bounds that no activation would look at."""
    lower, upper = (_check.number(getattr(e, x), argument=x) for x in ("lower", "upper"))
    if e.activation != "relu" and (lower, upper) != (Epilogue.lower, Epilogue.upper):
        raise ArgumentError(
            f"lower and upper are the bounds of activation='relu', got lower={lower:g} and "
            f"upper={upper:g} with activation={e.activation!r}; name relu, or drop them"
        )
    return lower, upper


def _scales(pair, m: int, n: int) -> list[tuple[str, Any]]:
    """The scales of the operands by name, as `_vector` takes them."""
    if pair is None:
        return []
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise ArgumentError(
            f"scales must be a pair, that of a and that of b, got {_check.shown(pair)}"
        )
    named = zip(("scales[0]", "scales[1]"), pair, ((m, 1), (1, n)), strict=True)
    return [(name, _scale(name, scale, shape)) for name, scale, shape in named]


def _scale(name: str, x, shape: tuple[int, int]):
    """The scale of an operand with both axes: one of `a` belongs to rows, one of `b` to columns."""
    if x is None or _check.is_scalar(x):
        return x
    x, _ = _foreign.take(x, argument=name)
    _devices.refuse_elsewhere(x, argument=name)
    size = math.prod(shape)
    if x.ndim and x.shape not in ((size,), shape):
        raise ShapeError(f"{name} must have shape ({size},) or {shape}, got {x.shape}")
    return x.reshape(shape) if x.ndim else x


def _matrix(name: str, x):
    return None if x is None else _foreign.take(x, argument=name)[0]


def _written(name: str, x):
    """A matrix that the product writes to: a list would be filled in vain."""
    if x is not None:
        _check.is_array(x, argument=name)
    return _matrix(name, x)


def _times(x, y):
    if x is None or y is None:
        return x if y is None else y
    return x * y


def _vector(name: str, x, m: int, n: int, xp, real):
    """(row vector, column vector, number) of a factor or bias; two of them neutral."""
    if x is None:
        return None, None, 1.0
    if _check.is_scalar(x):
        x = _check.number(x, argument=name)
        return (None, xp.full(n, x, real), 1.0) if name == "bias" else (None, None, x)
    x, _ = _foreign.take(x, argument=name)
    _devices.refuse_elsewhere(x, argument=name)
    _arrays.check_real(x, argument=name)
    if x.ndim == 0:
        return _vector(name, xp.broadcast_to(xp.asarray(x), (n,)), m, n, xp, real)
    vector = xp.ascontiguousarray(xp.asarray(x).reshape(-1).astype(real, copy=False))
    if x.shape in ((n,), (1, n)):
        return None, vector, 1.0
    if x.shape == (m, 1):
        return vector, None, 1.0
    raise ShapeError(
        f"{name} must have shape ({n},) or (1, {n}) for columns or ({m}, 1) for rows, got {x.shape}"
    )
