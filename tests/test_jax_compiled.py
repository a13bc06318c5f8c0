"""Products and layers within ``jax.jit`` and other transforms of JAX."""

from __future__ import annotations

import functools

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("jax.experimental.buffer_callback")

import jax.numpy as jnp  # noqa: E402
from jax_cases import TYPES, assert_same, close, draw  # noqa: E402

import sparse24 as s24  # noqa: E402
from sparse24 import jax as sj  # noqa: E402
from sparse24._jax import arrays as jax_arrays  # noqa: E402

# On a GPU JAX multiplies float32 as TF32 by default, and the plain products here are the reference.
jax.config.update("jax_default_matmul_precision", "highest")


@pytest.fixture(params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def place(request):
    """Arrays lie on this device; what moves a sparse array there."""
    try:
        device = jax.devices(request.param)[0]
    except RuntimeError:
        pytest.skip(f"JAX has no {request.param} here")
    with jax.default_device(device):
        # By its number: where CuPy was there first, JAX may leave another GPU as the current one.
        there = f"cuda:{device.local_hardware_id}"
        yield lambda A: A.to_device(there) if request.param == "gpu" else A


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("transposable", [False, True])
@pytest.mark.parametrize("gradient", ["ste", "24dense", "24sparse", "ste_sampled"])
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_a_compiled_layer_is_the_eager_one(place, rng, name, transposable, gradient, given, biased):
    x, weight = draw(rng, (3, 4, 16), name), draw(rng, (8, 16), name)
    bias, dy = draw(rng, (8,), name) if biased else None, draw(rng, (3, 4, 8), name)
    mask = sj.mask(draw(rng, (8, 16)), transposable=transposable) if given else None
    how = {"gradient": gradient, "transposable": transposable, "decay": 0.1, "seed": 3, "step": 2}

    def layer(x, weight, bias):
        return sj.linear(x, weight, bias, mask=mask, **how)

    def both(x, weight, bias, dy):
        y, pullback = jax.vjp(layer, x, weight, bias)
        return y, pullback(dy)

    assert_same(jax.jit(both)(x, weight, bias, dy), both(x, weight, bias, dy), name)
    assert_same(jax.jit(layer)(x, weight, bias), layer(x, weight, bias), name)


def test_operands_of_two_types_and_masks_that_are_arguments(place, rng):
    x, weight, dy = draw(rng, (5, 16), "bfloat16"), draw(rng, (8, 16)), draw(rng, (5, 8))
    mask = sj.mask(draw(rng, (8, 16)))

    def both(x, weight, mask, dy):
        y, pullback = jax.vjp(lambda x, w: sj.linear(x, w, mask=mask), x, weight)
        return y, pullback(dy)

    assert_same(jax.jit(both)(x, weight, mask, dy), both(x, weight, mask, dy), "bfloat16")
    np.testing.assert_array_equal(jax.jit(sj.mask)(weight), sj.mask(weight))


def test_a_model_learns_in_compiled_steps(place, rng):
    x, wanted = draw(rng, (64, 16)), draw(rng, (64, 4))
    params = [0.1 * draw(rng, (32, 16)), jnp.zeros(32), 0.1 * draw(rng, (4, 32)), jnp.zeros(4)]

    def loss(params):
        up, up_bias, down, down_bias = params
        h = jax.nn.relu(sj.linear(x, up, up_bias, transposable=True))
        return ((sj.linear(h, down, down_bias) - wanted) ** 2).mean()

    @jax.jit
    def step(params):
        value, grads = jax.value_and_grad(loss)(params)
        return value, [p - 0.5 * g for p, g in zip(params, grads, strict=True)]

    values = []
    for _ in range(60):
        value, params = step(params)
        values.append(float(value))
    assert values[-1] < 0.8 * values[0]


def test_loops_checkpoints_and_vectorised_maps(place, rng):
    x, weight = draw(rng, (6, 3, 16)), draw(rng, (16, 16))
    layer = lambda x: sj.linear(x, weight)  # noqa: E731
    want = layer(x)
    close(jax.vmap(layer)(x), want)
    close(jax.jit(jax.vmap(layer))(x), want)
    stacked = jnp.stack([weight, -weight])
    close(jax.vmap(lambda w: sj.linear(x, w))(stacked)[1], -want)
    twice, _ = jax.lax.scan(lambda h, _: (layer(h), None), x, None, length=2)
    close(twice, layer(want))
    slope = jax.grad(lambda x: jax.checkpoint(layer)(x).sum())(x)
    close(slope, jax.grad(lambda x: layer(x).sum())(x))


@pytest.mark.parametrize("given", [True, False])
def test_maps_over_tokens_have_one_decay(place, rng, given):
    x, weight = draw(rng, (8, 16)), draw(rng, (4, 16))
    kept = sj.mask(weight)
    layer = functools.partial(sj.linear, mask=kept if given else None)
    plain = jax.grad(lambda w: jnp.sin(layer(x, w)).sum())(weight)
    want = plain + 0.5 * jnp.where(kept, 0, weight)
    mapped = lambda w: jax.vmap(lambda x: layer(x, w, decay=0.5))(x)  # noqa: E731
    for function in (lambda w: layer(x, w, decay=0.5), mapped):
        slope = jax.grad(lambda w, f=function: jnp.sin(f(w)).sum())
        close(slope(weight), want)
        close(jax.jit(slope)(weight), want)


FORMATS = {
    "2:4": lambda w: s24.compress(w, on_excess="prune"),
    "transposable": lambda w: s24.compress(w, on_excess="prune", transposable=True),
    "n:m": lambda w: s24.compress(w, pattern=(3, 8), on_excess="prune"),
    "hybrid": lambda w: s24.hybrid(w * (np.abs(w) > 1)),
}


@pytest.mark.parametrize("make", FORMATS)
@pytest.mark.parametrize("compiled", [False, True])
def test_products_with_every_format_and_their_derivatives(place, rng, make, compiled):
    w = rng.standard_normal((24, 16)).astype(np.float32)
    sparse = place(FORMATS[make](w))
    dense = jnp.asarray(np.asarray(place(sparse).to_device("cpu").toarray()))
    through = jax.jit if compiled else lambda f: f
    for shape, left in (
        ((16, 5), False), ((16,), False), ((2, 16, 5), False),
        ((5, 24), True), ((24,), True), ((2, 5, 24), True),
    ):  # fmt: skip
        x = draw(rng, shape)

        def ours(x, left=left):
            return sj.matmul(x, sparse) if left else sj.matmul(sparse, x)

        def theirs(x, left=left):
            return x @ dense if left else dense @ x

        dy = draw(rng, theirs(x).shape)
        got, want = (jax.vjp(f, x) for f in (through(ours), theirs))
        assert_same((got[0], got[1](dy)), (want[0], want[1](dy)))


@pytest.mark.parametrize("name", ["float16", "bfloat16", "int8", "float8_e4m3fn", "float8_e5m2"])
def test_types_of_products(place, rng, name):
    x = jnp.asarray(rng.integers(-3, 4, (16, 8)).astype(np.float32)).astype(name)
    A = place(s24.random((16, 16), dtype=name, rng=rng))
    want = s24.matmul(A.to_device("cpu").astype("float32"), np.asarray(x).astype(np.float32))
    for through in (jax.jit, lambda f: f):
        got = through(lambda x: sj.matmul(A, x))(x)
        assert got.dtype == {"int8": jnp.int32}.get(
            name, jnp.bfloat16 if name.startswith("float8") else name
        )
        np.testing.assert_allclose(np.asarray(got, np.float32), want, rtol=1e-2, atol=1e-2)
    wide = jax.jit(lambda x: sj.matmul(A, x, dtype=np.float32))(x)
    assert wide.dtype == jnp.float32


def test_float64_of_a_matrix_where_jax_has_none(place, rng):
    A = place(s24.random((16, 8), dtype="float64", rng=rng))
    x = draw(rng, (8, 3))
    assert jax.jit(lambda x: sj.matmul(A, x))(x).dtype == sj.matmul(A, x).dtype == jnp.float32


def test_stacks_and_what_is_spread_over_them(place, rng):
    A = place(s24.random((4, 8, 16), rng=rng))
    dense = jnp.asarray(A.to_device("cpu").toarray())
    for shape in ((16, 3), (1, 16, 3), (4, 16, 3)):
        x = draw(rng, shape)
        dy = draw(rng, (4, 8, 3))
        got, want = (
            jax.vjp(jax.jit(f), x) for f in (lambda x: sj.matmul(A, x), lambda x: dense @ x)
        )
        assert_same((got[0], got[1](dy)), (want[0], want[1](dy)))


@pytest.mark.parametrize("experts", [4, 8, 16])
def test_a_vector_is_spread_over_a_stack_from_either_side(place, rng, experts):
    # By as many matrices as these have rows or columns, vectors in dy would pass for a matrix.
    A = place(s24.random((experts, 8, 16), rng=rng))
    dense, x = jnp.asarray(A.to_device("cpu").toarray()), draw(rng, (16,))
    dy = draw(rng, (experts, 8))
    for ours, plain in (
        (lambda x: sj.matmul(A, x), lambda x: dense @ x),
        (lambda x: sj.matmul(x, A.mT), lambda x: x @ dense.mT),
    ):
        for through in (jax.jit, lambda f: f):
            got, want = jax.vjp(through(ours), x), jax.vjp(plain, x)
            assert_same((got[0], got[1](dy)), (want[0], want[1](dy)))


def test_any_function_of_arrays(place, rng):
    experts = place(s24.random((3, 8, 16), dtype="bfloat16", rng=rng))
    x, offsets = draw(rng, (7, 16), "bfloat16"), jnp.array([0, 2, 2, 7], jnp.int32)
    up = lambda x, offsets: s24.grouped_linear(x, experts, offsets=offsets)  # noqa: E731
    y = jax.ShapeDtypeStruct((7, 8), jnp.bfloat16)
    eager = sj.call(up, y, x, offsets)
    compiled = jax.jit(lambda x, offsets: sj.call(up, y, x, offsets))(x, offsets)
    assert_same(compiled, eager, "bfloat16")
    tree = {"a": jax.ShapeDtypeStruct((3,), jnp.float32), "b": jax.ShapeDtypeStruct((), jnp.int32)}
    two = lambda x: {"a": x[:3] * 2, "b": x.sum().astype("int32").reshape(())}  # noqa: E731
    for through in (jax.jit, lambda f: f):
        got = through(lambda x: sj.call(two, tree, x))(jnp.arange(4.0))
        np.testing.assert_array_equal(got["a"], [0, 2, 4])
        assert int(got["b"]) == 6


@pytest.mark.parametrize("name", [*TYPES, "int8", "float8_e4m3fn"])
def test_plain_functions_work_where_the_arrays_are(place, rng, name):
    weight = draw(rng, (8, 16)).astype(name)
    x = draw(rng, (16, 5)).astype(name)
    A = s24.compress(weight, on_excess="prune")
    assert A.device == place(s24.random((4, 8), rng=0)).device
    assert A.dtype == weight.dtype
    H = s24.hybrid(A.toarray()) if name in TYPES else A
    dense = np.asarray(A.to_device("cpu").toarray(), np.float64)
    for product in (A @ x, s24.matmul(A, x), H @ x, (x.T @ A.T).T):
        assert isinstance(product, jax.Array)
        assert product.devices() == x.devices()
        close(product, dense @ np.asarray(x, np.float64), "bfloat16")
    kept = s24.mask(weight)
    assert kept.devices() == weight.devices()
    assert np.asarray(kept)[dense != 0].all()
    assert kept.sum() == weight.size // 2
    pruned = s24.prune(weight)
    assert (pruned.dtype, pruned.devices()) == (weight.dtype, weight.devices())
    np.testing.assert_array_equal(np.asarray(pruned, np.float64), dense)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("transposable", [False, True])
def test_masks_of_fp8(place, rng, name, transposable):
    weight = draw(rng, (8, 16)).astype(name)
    want = s24.mask(np.asarray(weight), transposable=transposable)
    for through in (jax.jit, lambda f: f):
        got = through(lambda w: sj.mask(w, transposable=transposable))(weight)
        np.testing.assert_array_equal(got, want)
    choose = sj._chooser(transposable, name)  # as a GPU has bits
    np.testing.assert_array_equal(choose(np.asarray(weight).view(np.uint8)), want)


def test_types_that_travel_as_bits():
    """As CuPy sees them; on the CPU nothing else would show it."""
    bits = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}
    for name in ("float32", "float16", "int8", "int32", "bool", *bits):
        dtype = np.dtype(jnp.zeros(0, name).dtype)
        assert jax_arrays.carrier(dtype) == bits.get(name, name)
        travels = jax_arrays.bits(jnp.ones(3, name))
        assert travels.dtype == bits.get(name, name)
        assert jax_arrays.of_bits(travels, dtype).dtype == dtype
