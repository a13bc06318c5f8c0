"""Arrays and a layer to prune, and the error of its outputs, shared by the tests of pruning."""

from __future__ import annotations

import numpy as np

from sparse24 import _dtypes


def on(xp, x):
    """`x` on the device of `xp`, fp8 as its bits there, and the dtype= that says so."""
    row = _dtypes.lookup(x.dtype)
    if xp is np or not row.is_float8:
        return xp.asarray(x), None
    return xp.asarray(x.view(np.uint8)), row.name


def layer(rng, rows=24, k=32, count=400):
    """Weights, and inputs whose features are correlated and of unequal size."""
    mix = rng.standard_normal((k, k)) * rng.uniform(0.1, 2, k)
    inputs = rng.standard_normal((count, k)) @ mix
    return rng.standard_normal((rows, k)), inputs


def loss(weights, dense, inputs):
    """Squared error of a layer's outputs with other weights."""
    return float(((inputs @ (weights - dense).T) ** 2).sum())


def least_squares(dense, hessian, places):
    """The row with the least such error whose weights are zero but at `places`."""
    places = list(places)
    row = np.zeros_like(dense)
    row[places] = np.linalg.solve(hessian[np.ix_(places, places)], (hessian @ dense)[places])
    return row
