"""Operands and judgement shared by the tests of JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

TYPES = ["float32", "bfloat16", "float16"]


TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}


def draw(rng, shape, name="float32"):
    return jnp.asarray(rng.standard_normal(shape).astype(np.float32)).astype(name)


def close(got, want, name="float32"):
    got, want = (np.asarray(x, np.float64) for x in (got, want))
    within = TOLERANCE[name]
    np.testing.assert_allclose(got, want, rtol=within, atol=within * (np.abs(want).max() + 1e-3))


def assert_same(got, want, name="float32"):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        close(a, b, name)
