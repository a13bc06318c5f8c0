"""The options of a product (`Epilogue`, `Call`), and `fuse`, which turns them into a `Fused`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from sparse24 import _check, _devices, _foreign
from sparse24 import _records as records
from sparse24._errors import ArgumentError, DTypeError, ShapeError

ACTIVATIONS = ("relu", "relu2", "gelu", "gelu_tanh", "silu")


@dataclass(frozen=True)
class Epilogue:
    """Bias, activation and scales of a product, applied in the same pass before it is stored.

    For element (i, j) of the result::

        x   = alpha * alpha_vector * scales * (a @ b)[i, j] + beta * c[i, j] + bias
        aux = x
        out = out_scale * activation(x)

    Attributes
    ----------
    bias : array or float, optional
        Shape (n,) or (1, n) adds to columns, (m, 1) to rows, a number to all.
    activation : {None, "relu", "relu2", "gelu", "gelu_tanh", "silu"}
        ``relu2`` is the square of relu; ``gelu`` uses erf, ``gelu_tanh`` its usual
        approximation.  On a GPU, for results of 16 bits or fewer, the last three take one
        approximate instruction: values are right to 8e-4 of themselves where x is positive, and
        to ``2.5e-4 * abs(x) + 2.7e-4`` where it is negative.
    alpha_vector : array or float, optional
        A factor for each column or row of the product; shapes as for `bias`.
    out_scale : float, default 1
        Factor of the result, for instance before it is rounded to fp8 or int8.
    lower, upper : float
        Bounds of ``"relu"``, only: values at or below `lower` become 0, values above `upper`
        become `upper`.
    aux : array, optional
        Receives the value before the activation; shape and dtype of the result.  Must not
        overlap another array of the product.

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> A = s24.compress(np.eye(4, dtype=np.float32))
    >>> e = s24.Epilogue(bias=np.array([[-1.], [0.], [1.], [2.]]), activation="relu")
    >>> s24.matmul(A, np.zeros((4, 2), np.float32), epilogue=e)[:, 0]
    array([0., 0., 1., 2.], dtype=float32)
    """

    bias: Any = None
    activation: str | None = None
    alpha_vector: Any = None
    out_scale: float = 1.0
    lower: float = 0.0
    upper: float = float("inf")
    aux: Any = None


class Call(NamedTuple):
    """The options of `sparse24.matmul` as they were given, but for `out`."""

    c: Any = None
    alpha: float = 1.0
    beta: float = 0.0
    dtype: Any = None
    epilogue: Epilogue | None = None
    scales: tuple | None = None
    algorithm: str = "auto"
    other_dtype: Any = None
    fast_accumulation: bool = True

    @property
    def is_plain(self) -> bool:
        """True if nothing was asked for."""
        plain = self.alpha == 1.0 and self.algorithm == "auto" and self.fast_accumulation
        nothing = self.c is None and self.dtype is None and self.epilogue is None
        return plain and nothing and self.scales is None and self.other_dtype is None


PLAIN = Call()


def fuse(call: Call, left: tuple, right: tuple, xp, real) -> records.Fused:
    """All factors, biases and the activation of a call as one record.

    `left` and `right` are the shapes of the operands; vectors become arrays of `xp` and
    of type `real`.
    """
    c, beta, e = call.c, call.beta, call.epilogue
    plain = call.alpha == 1.0 and e is None and call.scales is None
    if plain and (c is None or beta == 0.0):
        return records.PLAIN
    e = e if e is not None else Epilogue()
    if not isinstance(e, Epilogue):
        raise ArgumentError(f"epilogue must be a sparse24.Epilogue, got {type(e).__name__}")
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
    return records.Fused(
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
    if x.dtype.kind in "cSUOmM":
        raise DTypeError(f"{name} must hold real numbers, got {x.dtype}")
    if x.size == 1 and x.ndim == 0:
        return _vector(name, xp.broadcast_to(xp.asarray(x), (n,)), m, n, xp, real)
    vector = xp.ascontiguousarray(xp.asarray(x).reshape(-1).astype(real, copy=False))
    if x.shape in ((n,), (1, n)):
        return None, vector, 1.0
    if x.shape == (m, 1):
        return vector, None, 1.0
    raise ShapeError(
        f"{name} must have shape ({n},) or (1, {n}) for columns or ({m}, 1) for rows, got {x.shape}"
    )
