"""What JAX's tracing sees of operations: shapes, types, constants; what it compiles and keeps."""

from __future__ import annotations

import functools

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("jax.experimental.buffer_callback")

import jax.numpy as jnp  # noqa: E402

import sparse24 as s24  # noqa: E402
from sparse24 import functional  # noqa: E402
from sparse24 import jax as sj  # noqa: E402


@pytest.fixture(autouse=True)
def on_the_cpu():
    with jax.default_device(jax.devices("cpu")[0]):
        yield


def draw(rng, *shape):
    return jnp.asarray(rng.standard_normal(shape).astype(np.float32))


@pytest.mark.parametrize(
    "through", [jax.jit, lambda f: f, lambda f: lambda *x: jax.eval_shape(f, *x)]
)
def test_shapes_and_types_are_refused_while_they_are_traced(through):
    x, weight, A = jnp.ones((3, 8)), jnp.ones((4, 8)), s24.random((4, 8), rng=0)
    kept, number = jnp.ones((4, 8), bool), jnp.ones(())
    for error, words, function, *arrays in (
        (s24.ShapeError, r"bias must have shape \(4,\) or", sj.linear, x, weight, x[0]),
        (s24.DTypeError, "bias must hold real", sj.linear, x, weight, jnp.ones(4, "complex64")),
        (s24.DTypeError, "^x.dtype must be one of", sj.linear, x.astype(int), weight),
        (s24.DTypeError, "^weight.dtype must be one of", sj.linear, x, weight.astype(int)),
        (s24.ShapeError, r"shape of weight, \(4, 8\)", masked, x, weight, kept[:, :4]),
        (s24.DTypeError, "mask must be boolean, got float32", masked, x, weight, weight),
        (s24.DTypeError, "^x.dtype must be one of", sj.mask, x.astype(int)),
        (s24.ShapeError, "x must have at least one axis", sj.mask, number),
        (s24.ShapeError, "x must have at least two axes", transposable, x[0]),
        (s24.ShapeError, "b must have at least one axis", lambda x: sj.matmul(A, x), number),
        (s24.ShapeError, "a must have at least one axis", lambda x: sj.matmul(x, A), number),
    ):
        with pytest.raises(error, match=words):
            through(function)(*arrays)
    with pytest.raises(s24.ArgumentError, match="transposable must be one of True, False"):
        through(lambda x: sj.mask(x, transposable="no"))(x)


def masked(x, weight, mask):
    return sj.linear(x, weight, mask=mask)


def transposable(x):
    return sj.mask(x, transposable=True)


@pytest.mark.parametrize("through", [jax.jit, lambda f: f])
@pytest.mark.parametrize("name", ["bool", "int32", "uint16", "int8", "float8_e4m3fn"])
def test_matmul_takes_what_products_outside_of_jax_take(name, through):
    x, A = jnp.asarray(np.eye(3, 8), name), s24.random((4, 8), rng=0)
    for sparse in (A, A.astype("bfloat16"), s24.hybrid(A.toarray())):
        plain = x @ sparse.T
        got = through(lambda x, sparse=sparse: sj.matmul(x, sparse.T))(x)
        assert got.dtype == plain.dtype
        np.testing.assert_array_equal(got, plain)
    if name in ("int32", "uint16"):
        with pytest.raises(s24.DTypeError, match=r"^a must not hold integers wider than int8"):
            through(lambda x: sj.matmul(x, A.astype("int8").T, dtype="float32"))(x)


@pytest.mark.parametrize("through", [jax.jit, lambda f: f])
def test_bits_that_a_function_returns_are_the_fp8_of_its_result(through):
    x = jnp.array([1.0, -2.0, 3.0, 0.0])
    like = jax.ShapeDtypeStruct(x.shape, jnp.float8_e4m3fn)
    typed = lambda x: x.astype(like.dtype)  # noqa: E731
    for function in (typed, lambda x: typed(x).view(np.uint8)):
        got = through(lambda x, f=function: sj.call(f, like, x))(x)
        assert got.dtype == like.dtype
        np.testing.assert_array_equal(got.astype(jnp.float32), x)


def test_the_plain_layer_names_the_weight_of_a_mask():
    with pytest.raises(s24.ShapeError, match=r"mask must have the shape of weight, \(4, 8\)"):
        functional.linear(np.ones((3, 8)), np.ones((4, 8)), mask=np.ones((4, 4), bool))


def test_compiled_code_keeps_no_tracers(rng):
    x, weight, bias = draw(rng, 3, 8), draw(rng, 8, 8), draw(rng, 8)
    A, kept = s24.random((8, 8), rng=rng), sj.mask(weight)
    like = jax.ShapeDtypeStruct((3, 8), jnp.float32)

    def loss(x, weight, bias, kept):
        y = sj.linear(x, weight, bias, mask=kept) + sj.linear(x, weight, gradient="24dense")
        z = sj.matmul(y, A.T) * sj.call(lambda y: y + 1, like, jax.lax.stop_gradient(y))
        return (z * sj.mask(z)).sum()

    with jax.checking_leaks():
        jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(x, weight, bias, kept)
        jax.vmap(loss, in_axes=(0, None, None, None))(jnp.stack([x, x]), weight, bias, kept)


def test_numbers_lists_and_float64_are_operands_of_call_everywhere(rng):
    x = draw(rng, 8)
    like = jax.ShapeDtypeStruct((8,), np.float64)  # which JAX has only if it is told to
    given = 2.0, [1.0] * 8, np.arange(8.0), np.float64(3), x

    def add(x, *rest):
        return sum(rest, x).astype(np.float64)

    want = 2 * np.asarray(x) + 6 + np.arange(8)
    eager, compiled = (
        f(lambda x: sj.call(add, like, x, *given))(x) for f in (lambda f: f, jax.jit)
    )
    assert eager.dtype == compiled.dtype == "float32"
    np.testing.assert_allclose(eager, want, rtol=1e-6)
    np.testing.assert_allclose(compiled, want, rtol=1e-6)
    twice = jax.jit(lambda x: sj.call(lambda x: 2 * x, x, x))(x)  # the result is like an array
    np.testing.assert_array_equal(twice, 2 * x)


def test_what_call_cannot_take_or_give_is_refused(rng):
    x = draw(rng, 8)
    like = jax.ShapeDtypeStruct((), jnp.float32)
    for through in (lambda f: f, jax.jit):
        with pytest.raises(s24.DTypeError, match="each of arrays must be an array, got dict"):
            through(lambda x: sj.call(lambda t: t["x"], x, {"x": x}))(x)
        with pytest.raises(Exception, match="what function returns must be an array, got float"):
            jax.block_until_ready(through(lambda x: sj.call(lambda x: float(x[0]), like, x))(x))


class Unhashable:
    """As objects that can be compared are, unless they say how."""

    def __eq__(self, other):
        return True

    def __call__(self, x):
        return 2 * x


def test_functions_without_a_hash_can_be_called(rng):
    x = draw(rng, 2, 8)
    for through in (jax.jit, jax.vmap):
        got = through(lambda x: sj.call(Unhashable(), jax.ShapeDtypeStruct(x.shape, x.dtype), x))(x)
        np.testing.assert_array_equal(got, 2 * x)


@pytest.mark.parametrize("gradient", ["24sparse", "ste_sampled", "ste"])
def test_a_step_that_is_an_argument_gives_its_own_samples(rng, gradient):
    x, weight, dy = draw(rng, 16, 8), draw(rng, 4, 8), draw(rng, 16, 4)

    def slope(weight, step):
        how = {"gradient": gradient, "seed": 3, "step": step, "decay": 0.1}
        return jax.grad(lambda w: (sj.linear(x, w, **how) * dy).sum())(weight)

    compiled, steps = jax.jit(slope), jnp.arange(4)
    by_map = jax.vmap(slope, (None, 0))(weight, steps)
    by_scan = jax.lax.scan(lambda _, step: (None, slope(weight, step)), None, steps)[1]
    want = [slope(weight, step) for step in range(4)]
    for step, of_step in enumerate(want):
        for got in (compiled(weight, step), by_map[step], by_scan[step]):
            np.testing.assert_allclose(got, of_step, rtol=1e-6, atol=1e-6)
    assert compiled._cache_size() == 1
    assert (np.abs(want[0] - want[1]).max() > 0) == (gradient != "ste")
    with jax.disable_jit():
        got = jax.vjp(
            lambda w, step: sj.linear(x, w, gradient=gradient, step=step), weight, steps[1]
        )
        assert got[1](dy)[0].shape == weight.shape


def test_options_that_are_traced_are_refused(rng):
    x = draw(rng, 4, 8)
    for name in ("decay", "seed"):
        with pytest.raises(s24.ArgumentError, match=f"{name} must be a number.*static_argnums"):
            jax.jit(lambda x, value: sj.linear(x, x, **{name: value}))(x, 1)  # noqa: B023
    for step in (1.0, jnp.arange(2)):
        with pytest.raises(s24.ArgumentError, match="step must be a whole number from 0 on, got"):
            jax.jit(lambda x, step: sj.linear(x, x, step=step))(x, step)
    below = jax.jit(jax.grad(lambda w, step: sj.linear(w, w, gradient="24sparse", step=step).sum()))
    with pytest.raises(Exception, match="step must be a whole number from 0 on, got -1"):
        jax.block_until_ready(below(x, -1))


@pytest.fixture
def calls(monkeypatch):
    """How often functions have been called."""
    made = {"linear": 0, "pack": 0, "matmul": 0}

    def counted(name, function):
        def call(*args, **kwargs):
            made[name] += 1
            return function(*args, **kwargs)

        return call

    from sparse24._jax import products as jax_products

    for name in ("linear", "pack"):
        monkeypatch.setattr(functional, name, counted(name, getattr(functional, name)))
    ours = jax_products.ours
    monkeypatch.setattr(ours, "matmul", counted("matmul", ours.matmul))

    return made


def test_maps_multiply_once_by_one_weight(rng, calls):
    x, weight, bias = draw(rng, 5, 7, 16), draw(rng, 8, 16), draw(rng, 8)
    A, kept = s24.random((12, 16), rng=rng), sj.mask(draw(rng, 8, 16))
    layer = lambda x: sj.linear(x, weight, bias, mask=kept)  # noqa: E731
    dense = np.asarray(x) @ np.asarray(A.toarray()).T
    for function, want in (
        (jax.vmap(jax.vmap(layer)), np.asarray(layer(x))),
        (jax.vmap(layer, in_axes=1, out_axes=1), np.asarray(layer(x))),
        (jax.vmap(jax.vmap(lambda v: sj.matmul(A, v))), dense),
        (jax.vmap(jax.vmap(lambda v: sj.matmul(v, A.T))), dense),
        (jax.vmap(lambda m: sj.matmul(A, m.T).T), dense),
    ):
        calls.update(linear=0, pack=0, matmul=0)
        got = jax.block_until_ready(jax.jit(function)(x))
        assert max(calls["linear"], calls["matmul"]) == 1
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    calls.update(pack=0)
    each = jax.jit(jax.vmap(jax.grad(lambda w, x: jnp.sin(sj.linear(x, w)).sum()), (None, 0)))
    got = jax.block_until_ready(each(weight, x))
    assert calls["pack"] == 2  # forward and backward
    want = [jax.grad(lambda w, x=part: jnp.sin(sj.linear(x, w)).sum())(weight) for part in x]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_maps_over_weights_masks_and_stacks(rng):
    x, weights, biases = draw(rng, 6, 16), draw(rng, 3, 8, 16), draw(rng, 3, 8)
    kept, A = sj.mask(draw(rng, 3, 8, 16)), s24.random((2, 8, 16), rng=rng)
    want = [sj.linear(x, w, b, mask=m) for w, b, m in zip(weights, biases, kept, strict=True)]
    one = lambda x, w, b, m: sj.linear(x, w, b, mask=m)  # noqa: E731
    got = jax.vmap(one, (None, 0, 0, 0))(x, weights, biases, kept)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    table = jax.vmap(jax.vmap(one, (0, None, None, None)), (None, 0, 0, 0))(
        x, weights, biases, kept
    )
    np.testing.assert_allclose(table, want, rtol=1e-4, atol=1e-5)
    columns = draw(rng, 4, 16)
    got = jax.vmap(lambda v: sj.matmul(A, v))(columns)
    np.testing.assert_allclose(
        got, np.einsum("smk,bk->bsm", A.toarray(), columns), rtol=1e-4, atol=1e-5
    )
    for function in (lambda x: sj.linear(x, weights[0]), lambda v: sj.matmul(A, v), sj.mask):
        assert jax.vmap(function)(jnp.zeros((0, 16))).shape[0] == 0


def test_maps_outside_of_compiled_code_are_compiled_once(rng):
    x, weight, A = draw(rng, 4, 16), draw(rng, 8, 16), s24.random((8, 16), rng=rng)
    compiled = []

    def heard(event, duration, **_):
        if "backend_compile" in event:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(heard)
    for count in range(3):
        jax.vmap(lambda v: sj.linear(v, weight) + sj.matmul(A, v))(x)
        jax.vmap(jax.grad(lambda v: sj.linear(v, weight).sum()))(x)
        jax.vmap(sj.mask)(x)
        if count == 0:
            assert compiled
            compiled.clear()
    assert not compiled


def test_layers_that_a_scan_chooses(rng):
    x = draw(rng, 5, 16)
    packed = s24.random((3, 16, 16), rng=rng).astype("float32")
    layers = [functools.partial(sj.matmul, b=A.T) for A in packed]

    @jax.jit
    def model(x):
        body = lambda x, i: (jax.nn.relu(jax.lax.switch(i, layers, x)), None)  # noqa: E731
        return jax.lax.scan(body, x, jnp.arange(len(layers)))[0]

    want = np.asarray(x)
    for A in packed:
        want = np.maximum(want @ A.toarray().T, 0)
    np.testing.assert_allclose(model(x), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("of", [lambda A: A, lambda A: A[0], lambda A: s24.hybrid(A[0].toarray())])
def test_a_part_by_a_number_that_is_traced_is_refused(rng, of):
    A = of(s24.random((3, 16, 16), rng=rng))
    with pytest.raises(s24.ArgumentError, match=r"a tracer of JAX, .*jax\.lax\.switch"):
        jax.jit(lambda i: A[i].sum())(1)
