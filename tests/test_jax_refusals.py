"""What products and layers refuse within ``jax.jit``, and what the errors say there."""

from __future__ import annotations

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("jax.experimental.buffer_callback")

import jax.numpy as jnp  # noqa: E402
from jax_cases import assert_same, draw  # noqa: E402

import sparse24 as s24  # noqa: E402
from sparse24 import jax as sj  # noqa: E402
from sparse24._jax import calls as jax_calls  # noqa: E402


def test_functions_that_give_something_else_are_refused():
    x = jnp.arange(4.0)
    y = jax.ShapeDtypeStruct((4,), jnp.float32)
    for function, error, words in (
        (lambda x: x[:2], s24.ShapeError, r"of shape \(4,\), as result says, got \(2,\)"),
        (lambda x: x.astype("int32"), s24.DTypeError, "of float32, as result says, got int32; con"),
        (lambda x: (x, x), s24.ShapeError, "must return 1 arrays, as result says, got 2"),
    ):
        with pytest.raises(error, match=words):
            sj.call(function, y, x)
        with pytest.raises(Exception, match=words):
            jax.block_until_ready(jax.jit(lambda x: sj.call(function, y, x))(x))  # noqa: B023


@pytest.mark.usefixtures("jax_on_cpu")
def test_operands_and_derivatives_that_do_not_fit_are_refused(rng):
    A, x = s24.random((8, 16), rng=rng), jnp.ones((16, 3))
    for a, b in ((A, A), (x, x)):
        with pytest.raises(s24.ArgumentError, match="one operand must be a sparse array, as a"):
            sj.matmul(a, b)
    windows = s24.compress(np.eye(16), pattern=(6, 8)).windows()
    for through in (jax.jit, lambda f: f):
        with pytest.raises(s24.ArgumentError, match="in place of a Windows24 pass the array whose"):
            through(lambda x: sj.matmul(windows, x))(x)
    with pytest.raises(
        s24.ArgumentError, match=r"arrives there as a tracer.*close.*static_argnums"
    ):
        jax.jit(sj.matmul)(A, x)
    assert_same(jax.jit(sj.matmul, static_argnums=0)(A, x), sj.matmul(A, x))
    for through in (jax.jit, lambda f: f):
        with pytest.raises(s24.ShapeError, match="inner dimensions 16 and 3 differ"):
            through(lambda x: sj.matmul(A, x))(x.T)
        with pytest.raises(s24.ShapeError, match=r"x must have shape \(..., k\) and weight"):
            through(sj.linear)(x, x.T)
    y = jax.ShapeDtypeStruct((16, 3), jnp.float32)
    for function in (
        lambda x: sj.call(lambda x: 2 * x, y, x).sum(),
        lambda x: jax.grad(lambda x: (sj.matmul(A, x) ** 2).sum())(x).sum(),
        lambda x: jax.grad(lambda w: (sj.linear(w, x.astype("bfloat16")) ** 2).sum())(x).sum(),
    ):
        with pytest.raises(s24.UnsupportedError, match="no gradients of gradients; stop them"):
            jax.grad(function)(x)
    with pytest.raises(s24.UnsupportedError, match=r"tracer of JAX; use sparse24\.jax\.matmul"):
        jax.jit(lambda x: A @ x)(x)


@pytest.mark.usefixtures("jax_on_cpu")
def test_errors_of_compiled_code_hold_the_words(rng):
    weight, wrong = draw(rng, (8, 16)), jnp.ones((8, 16), bool)
    with pytest.raises(Exception, match="keeps more than 2 elements, the first of 32"):
        jax.block_until_ready(jax.jit(lambda w: sj.linear(w, w, mask=wrong))(weight))


def test_versions_of_jax_without_callbacks_are_refused_in_compiled_code(monkeypatch):
    monkeypatch.setattr(jax_calls, "buffer_callback", None)
    x = jnp.ones((3, 8))
    assert sj.linear(x, x).shape == (3, 3)
    with pytest.raises(s24.UnsupportedError, match=r"needs JAX 0\.6\.1 or later, got .*outside of"):
        jax.jit(sj.linear)(x, x)


@pytest.mark.parametrize("of", [lambda A: A, lambda A: A[0], lambda A: s24.hybrid(A[0].toarray())])
@pytest.mark.parametrize(
    "key",
    [
        lambda i: slice(i, None), lambda i: (0, slice(None, i)), lambda i: slice(None, None, i),
        lambda i: [i, 0],
    ],
)  # fmt: skip
def test_parts_by_slices_and_lists_of_what_is_traced_are_refused(rng, of, key):
    A = of(s24.random((3, 16, 16), rng=rng))
    with pytest.raises(s24.ArgumentError, match=r"a tracer of JAX, .*jax\.lax\.switch"):
        jax.jit(lambda i: A[key(i)].sum())(1)
    with pytest.raises(s24.ArgumentError, match="whole numbers"):
        A[key(jnp.array(1.5))]
