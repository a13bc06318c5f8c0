"""Products and layers of arrays that are split over explicit axes of a mesh, beside dense ones.

A program, as several devices of the CPU must be asked for before JAX starts.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import sparse24 as s24
from sparse24 import jax as sj

MESH = jax.make_mesh((2, 2), ("d", "m"), axis_types=(AxisType.Explicit,) * 2)
WAYS = (lambda f: f), jax.jit
RANDOM = np.random.default_rng(0)


def split(x, *parts):
    return jax.device_put(x, NamedSharding(MESH, P(*parts)))


def draw(shape, *parts):
    return split(RANDOM.standard_normal(shape).astype(np.float32), *parts)


def same(function, reference, *arrays):
    """Whether results and gradients have the numbers and the splits of dense ones; how many."""
    numbers = tuple(range(len(arrays)))
    pairs = [(function, reference)]
    pairs.append(tuple(jax.grad(lambda *a, f=f: jnp.sin(f(*a)).sum(), numbers) for f in pairs[0]))
    count = 0
    for ours, dense in pairs:
        for through in WAYS:
            found, wanted = (jax.tree.leaves(through(f)(*arrays)) for f in (ours, dense))
            for a, b in zip(found, wanted, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
                assert jax.typeof(a) == jax.typeof(b), (jax.typeof(a), jax.typeof(b))
                count += 1
    return count


def layers():
    """Layers, with tokens, rows and biases that are split in several ways."""
    plain, tiles, given = ({}, {"transposable": True}, {"mask": True})
    for x, weight, bias, *more in (
        (draw((8, 32), "d"), draw((16, 32)), draw(16)),
        (draw((8, 32), "d"), draw((16, 32), "m"), draw(16, "m"), tiles, given),
        (draw((4, 6, 32), "d", "m"), draw((16, 32)), draw(16)),
        (draw((4, 6, 32), "d"), draw((16, 32), "m"), draw((1, 16), None, "m")),
        (draw((8, 32), ("d", "m")), draw((16, 32)), draw(16)),
        (draw((8, 32), "d", "m"), draw((16, 32)), draw(16)),
        (draw((8, 32), "d"), draw((16, 32), None, "m"), draw(16)),
        (draw(32, "d"), draw((16, 32), "m"), draw(16, "m")),
        (draw((8, 32), "d"), draw((6, 32), "m"), draw(6, "m"), tiles),
    ):
        for options in (plain, *more):
            keep = split(s24.mask(np.asarray(weight), transposable="transposable" in options))
            mask = {"mask": jax.sharding.reshard(keep, jax.typeof(weight).sharding)}
            options = mask if "mask" in options else options

            def layer(x, w, b, options=options):
                return sj.linear(x, w, b, gradient="24dense", **options)

            def dense(x, w, b, keep=mask["mask"]):
                return x @ jnp.where(keep, w, 0).T + b.reshape(-1)

            yield same(layer, dense, x, weight, bias)


def products():
    """Products with arrays that each device has."""
    flat, stack = s24.random((16, 32), rng=0), s24.random((4, 16, 32), rng=1)
    one, many = split(flat.toarray()), split(stack.toarray(), "d")
    x = draw((8, 32), "d", "m")
    yield same(lambda x: sj.matmul(x, flat.T), lambda x: x @ one.T, x)
    yield same(lambda x: sj.matmul(flat, x.T), lambda x: one @ x.T, x)
    yield same(lambda x: sj.matmul(x, flat.T), lambda x: x @ one.T, draw(32, "m"))
    x = draw((4, 8, 32), "d")
    yield same(lambda x: sj.matmul(x, stack.mT), lambda x: x @ many.mT, x)
    twice = jax.checkpoint(lambda x: sj.matmul(jnp.sin(sj.matmul(x, flat.T)), flat))
    yield same(twice, lambda x: jnp.sin(x @ one.T) @ one, x)


def samples():
    """Samples of gradients are those of whole arrays, in all ways."""
    arrays = draw((8, 32), "d"), draw((16, 32), "m")
    whole = [np.asarray(x) for x in arrays]
    for gradient in ("24sparse", "ste_sampled"):

        def loss(x, w, step, gradient=gradient):
            return jnp.sin(sj.linear(x, w, gradient=gradient, step=step)).sum()

        slopes = jax.grad(loss, (0, 1))
        for f in (slopes, jax.jit(slopes)):
            for own, wanted, x in zip(f(*arrays, 3), slopes(*whole, 3), arrays, strict=True):
                np.testing.assert_allclose(own, wanted, rtol=1e-4, atol=1e-4)
                assert jax.typeof(own) == jax.typeof(x)
                yield 1


def decays():
    """A weight decays once, into however many parts the tokens are split."""
    whole, tokens = draw((16, 32)), ("d", "m")
    rows = jax.sharding.reshard(whole, NamedSharding(MESH, P("m")))
    for x, weight, parts in (
        (draw((8, 32), "d"), rows, P("m")),
        (draw((8, 32), tokens), whole, P()),
        (draw((8, 32), "d"), whole, P("m")),  # a mask may be split otherwise
    ):
        kept = sj.mask(weight)
        for mask in (None, jax.sharding.reshard(kept, NamedSharding(MESH, parts))):

            def loss(w, decay, x=x, mask=mask):
                return jnp.sin(sj.linear(x, w, mask=mask, decay=decay)).sum()

            for through in WAYS:
                slopes = (through(jax.grad(lambda w, d=d: loss(w, d)))(weight) for d in (0.5, 0.0))
                own, plain = slopes
                wanted = plain + 0.5 * jnp.where(kept, 0, weight)
                np.testing.assert_allclose(own, wanted, rtol=1e-4, atol=1e-4)
                assert jax.typeof(own) == jax.typeof(weight)
                yield 1


def masks():
    for parts in (("d", "m"), ("m",), (None, "d")):
        for transposable in (True, False):
            w = draw((6, 32), *parts)
            kept = sj.mask(w, transposable=transposable)
            wanted = s24.mask(np.asarray(w), transposable=transposable)
            np.testing.assert_array_equal(kept, wanted)
            assert jax.typeof(kept) == jax.typeof(w > 0)
            yield 1


def refused():
    """What the errors say."""
    x, weight, a = draw((8, 32), "d", "m"), draw((16, 32), None, "m"), s24.random((16, 32), rng=0)
    within = jax.shard_map(sj.linear, in_specs=(P("d"), P()), out_specs=P("d"), axis_names={"d"})
    for call in (
        lambda: sj.linear(x, weight),
        lambda: sj.linear(draw((8, 32), "m"), draw((16, 32), "m")),
        lambda: jax.vmap(lambda x: sj.matmul(x, a.T))(x),
        lambda: jax.jit(within)(draw((8, 32), "d"), draw((16, 32), "m")),
        lambda: sj.matmul(x, a),
    ):
        try:
            call()
        except (ValueError, NotImplementedError) as error:
            yield f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    with jax.set_mesh(MESH):
        print(*(sum(kind()) for kind in (layers, products, samples, decays, masks)))
        print(*refused(), sep="\n")
    print(jax.typeof(sj.linear(draw((8, 32), "d"), draw((16, 32), "m"))))
