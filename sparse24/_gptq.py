"""Rounding that knows the inputs: what a weight loses, those that come after it make up for.

As in GPTQ (Frantar, Ashkboos, Hoefler, Alistarh, 2022): with inputs X and G = inv(X.T X), columns
are rounded from left to right, and the error of each moves all later columns so that the outputs
change least.  Pruned weights are rounded to zero, as in SparseGPT (Frantar, Alistarh, 2023), so
what the moves add to them is made up for, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparse24._arrays import namespace
from sparse24._sparsegpt import inverse_factor

Choose = Callable[[Any], Any]  # factors (rows, 1) of the kept elements (rows, columns) of a group


def gptq(weights, kept, hessian, *, bits: int, group: int, choose: Choose, damping: float):
    """Integers of weights, and the factors of every group of columns.

    Parameters
    ----------
    weights : array of float64, shape (rows, k)
    kept : array of bool, shape (rows, k)
        Which weights may be other than zero.
    hessian : array, shape (k, k)
        ``X.T @ X`` of the inputs, up to a factor.
    group : int
        Columns that share a factor.
    choose : callable
        Factors of a group, float32, once all columns before it are rounded; zero where all is.
    damping : float
        Part of the mean of the Hessian's diagonal that is added to the diagonal.

    Returns
    -------
    integers : array of int8, shape (rows, k)
    factors : array of float32, shape (rows, groups)
    """
    xp = namespace(weights)
    rows, k = weights.shape
    factor = inverse_factor(xp, xp.asarray(hessian), k, damping)
    w = weights.copy()
    integers, factors = xp.zeros((rows, k), "int8"), []
    least = -(1 << bits - 1)
    for start in range(0, k, group):
        block = slice(start, min(start + group, k))
        chosen = choose(xp.where(kept[:, block], w[:, block], 0.0))
        divisor = xp.where(chosen == 0, xp.inf, chosen.astype("float64"))[:, 0]
        errors = xp.zeros((rows, block.stop - start))
        for j in range(start, block.stop):
            rounded = xp.clip(xp.rint(w[:, j] / divisor), least, -1 - least) * kept[:, j]
            integers[:, j] = rounded
            error = (w[:, j] - rounded * chosen[:, 0]) / factor[j, j]
            w[:, j + 1 : block.stop] -= error[:, None] * factor[j, j + 1 : block.stop]
            errors[:, j - start] = error
        w[:, block.stop :] -= errors @ factor[block, block.stop :]
        factors.append(chosen)
    joined = xp.concatenate(factors, axis=1) if factors else xp.zeros((rows, 0), "float32")
    return integers, joined
