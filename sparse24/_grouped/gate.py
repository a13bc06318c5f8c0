"""Gated products as several passes, where no kernel stores them in one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sparse24 import _arrays, _finish
from sparse24._records import PLAIN, Fused
from sparse24._target import Result, real_of


def fill(multiply: Callable[..., None], out, epilogue: Fused, types: Result) -> None:
    """``out = activation(y[:m]) * y[m:]``, where y is the product with the rest of the epilogue.

    The gate is applied to the tokens of all experts at once: for an expert with a few of them its
    passes would take longer than the product.

    Parameters
    ----------
    multiply : callable
        ``multiply(y, epilogue, types)`` stores the product of all experts in y (2 m, n).
    out : array, shape (m, n)
    epilogue : Fused
        What happens to the product before the gate, and the activation of the gate.
    types : Result
        Types of the product and of `out`.
    """
    xp, wide = _arrays.namespace(out), real_of(types.name)
    (m, n), tokens = out.shape, out.T
    y = xp.empty((n, 2 * m), wide)  # token by token, as results are
    plain = epilogue if epilogue is PLAIN else replace(epilogue, activation="identity")
    multiply(y.T, plain, replace(types, shape=(2 * m, n), name=y.dtype.name, out=None))
    gate = xp.empty((n, m), wide)
    activated = Fused(activation=epilogue.activation, lower=epilogue.lower, upper=epilogue.upper)
    _finish.finish_matrix(y[:, :m], gate, y.dtype.name, activated)
    gate *= y[:, m:]
    _finish.finish_matrix(gate, tokens, types.name, PLAIN)
