"""Patterns, recipes, weights and gradients for the tests of the scheduler."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from sparse24 import schedule as S

SHARE = st.floats(0, 1, allow_nan=False)
PATTERNS = {
    "unstructured": S.Unstructured(),
    "elastic": S.Elastic((4, 16)),
    "tile-hybrid": S.TileHybrid((8, 8)),
    "block": S.Block((4, 4)),
    "rows": S.Channel(0),
    "columns": S.Channel(1),
}


def layers(rng, **shapes):
    return {n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items()}


RECIPES = {
    "rigl": S.rigl(0.6, total_steps=12, every=2),
    "accumulated": S.Recipe(
        S.CosineScheduler(0.6, 0.2, stop=10, every=3),
        S.Accumulated(S.Taylor()),
        distribution=S.Adaptive(),
    ),
    "set-2:4": S.Recipe(
        S.ConstantScheduler(0.5, every=2), pattern=S.NM(), grower=S.RandomGrowth(0.2)
    ),
    "momentum": S.Recipe(
        S.CubicScheduler(0.7, stop=9, every=2), S.Movement(), grower=S.MomentumGrowth(0.3, 9)
    ),
}
SHAPES = {"a": (16, 32), "b": (8, 16)}


def data(t):
    rng = np.random.default_rng(t)
    gradients, weights = (
        {n: rng.normal(size=s).astype(np.float32) for n, s in SHAPES.items()} for _ in range(2)
    )
    return {"weights": weights, "gradients": gradients}


def converted(convert, t):
    """`data` in another library."""
    return {k: {n: convert(x) for n, x in arrays.items()} for k, arrays in data(t).items()}


def assert_same(a, b):
    assert set(a) == set(b)
    for name in a:
        np.testing.assert_array_equal(a[name], b[name])
