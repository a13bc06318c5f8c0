"""Gated products as several passes, where no kernel stores them in one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sparse24 import _arrays, _finish
from sparse24._options import Call
from sparse24._records import PLAIN, Fused
from sparse24._target import real_of


def fill(multiply: Callable[..., None], b, out, epilogue: Fused, call: Call, types) -> None:
    """``out = activation(y[:m]) * y[m:]``, where y is ``a @ b`` with the rest of the epilogue.

    Parameters
    ----------
    multiply : callable
        `_dispatch.fill` for a matrix `a` (2 m, k).
    b : array, shape (k, n)
    out : array, shape (m, n)
    epilogue, call, types
        As for `_dispatch.fill`.
    """
    xp, wide = _arrays.namespace(b), real_of(types.name)
    y = xp.empty((2 * out.shape[0], b.shape[1]), wide)
    of_y = replace(types, shape=y.shape, name=y.dtype.name, out=None)
    plain = epilogue if epilogue is PLAIN else replace(epilogue, activation="identity")
    multiply(b, y, plain, call, of_y)
    gate, gated = y[: len(out)], y[len(out) :]
    activated = Fused(activation=epilogue.activation, lower=epilogue.lower, upper=epilogue.upper)
    _finish.finish_matrix(gate, gate, y.dtype.name, activated)
    gate *= gated
    _finish.finish_matrix(gate, out, types.name, PLAIN)
