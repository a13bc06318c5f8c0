"""Gradients within ``jax.shard_map``, beside those of the whole dense product.

Also a program, as more than one device of the CPU must be asked for before JAX starts.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import sparse24 as s24
from sparse24 import jax as sj

TOKENS, WHOLE, ROWS, COLUMNS = P("d", None), P(), P("d", None), P(None, "d")


def draw(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def same(function, reference, *arrays):
    """Whether value and gradients are equal, compiled and not; the number of comparisons."""
    numbers = range(len(arrays))
    want = jax.value_and_grad(reference, numbers)(*arrays)
    ways = (lambda f: f), jax.jit
    for through in ways:
        got = through(jax.value_and_grad(function, numbers))(*arrays)
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    return len(ways) * (1 + len(arrays))


def compared(devices, to_device=lambda A: A):
    """How many values and gradients were as they should."""
    mesh = Mesh(np.array(devices), ("d",))
    A = s24.random((16, 32), rng=0)
    dense, sparse = jnp.asarray(A.toarray()), to_device(A)
    x, weight, bias = draw(1, 8, 32), draw(2, 16, 32), draw(3, 16)
    kept, count = sj.mask(weight), 0

    def plain(x, w, b):
        return jnp.sin(x @ jnp.where(kept, w, 0).T + b).sum()

    for checked in (True, False):

        def over(function, takes, gives, checked=checked):
            return jax.shard_map(
                function, mesh=mesh, in_specs=takes, out_specs=gives, check_vma=checked
            )

        product = over(lambda x: sj.matmul(x, sparse.T), TOKENS, TOKENS)
        count += same(
            lambda x, f=product: jnp.sin(f(x)).sum(), lambda x: jnp.sin(x @ dense.T).sum(), x
        )  # fmt: skip
        for mask in (None, kept):

            def loss(x, w, b, mask=mask):
                y = sj.linear(x, w, b, mask=mask, gradient="24dense")
                return jax.lax.psum(jnp.sin(y).sum(), "d")

            count += same(over(loss, (TOKENS, WHOLE, WHOLE), WHOLE), plain, x, weight, bias)

        def decaying(x, w):
            y = sj.linear(x, w, gradient="24dense", decay=0.5)
            return jax.lax.psum(jnp.sin(y).sum(), "d")

        times = 1 if checked else len(devices)  # unchecked, types do not tell devices apart

        def decayed(x, w, times=times):  # the gradient alone: a penalty less its own value
            penalty = 0.25 * times * jnp.square(jnp.where(kept, 0, w)).sum()
            return plain(x, w, 0) + penalty - jax.lax.stop_gradient(penalty)

        count += same(over(decaying, (TOKENS, WHOLE), WHOLE), decayed, x, weight)

        def by_rows(x, w, b):  # of the weight, as of tensor parallelism
            return jax.lax.psum(jnp.sin(sj.linear(x, w, b, gradient="24dense")).sum(), "d")

        count += same(over(by_rows, (WHOLE, ROWS, P("d")), WHOLE), plain, x, weight, bias)

        def by_columns(x, w):
            return jax.lax.psum(sj.linear(x, w, gradient="24dense"), "d")

        split = over(by_columns, (COLUMNS, COLUMNS), WHOLE)
        count += same(
            lambda x, w, split=split: jnp.sin(split(x, w)).sum(), lambda x, w: plain(x, w, 0),
            x, weight,
        )  # fmt: skip
        chosen = over(lambda w: (w * sj.mask(w)).sum(keepdims=True), ROWS, P("d", None))
        count += same(lambda w, f=chosen: f(w).sum(), lambda w: jnp.where(kept, w, 0).sum(), weight)
    return count


if __name__ == "__main__":
    print(compared(jax.devices()))
