"""Where results of JAX's arrays lie, and arrays that are constants of compiled code."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

import sparse24 as s24  # noqa: E402
from sparse24 import jax as sj  # noqa: E402

TWO_DEVICES = """
import jax, jax.numpy as jnp, sparse24 as s24
from sparse24 import jax as sj

A, first, second = s24.random((8, 16), rng=0), *jax.devices()
ones = lambda *shape: jax.device_put(jnp.ones(shape), second)
x, w = ones(3, 16), ones(8, 16)
like = jax.ShapeDtypeStruct(x.shape, x.dtype)
found = [
    x @ A.T, s24.matmul(A, x.T), s24.linear(x, A, activation="relu"), s24.prune(w), s24.mask(w),
    s24.hybrid(A.toarray()) @ x.T, s24.grouped_linear(x, s24.random((1, 8, 16)), offsets=[0, 3]),
    sj.matmul(x, A.T), sj.linear(x, w), sj.mask(w), sj.call(lambda x: 2 * x, like, x),
    *jax.grad(lambda x, w: sj.linear(x, w).sum(), argnums=(0, 1))(x, w),
    jax.grad(lambda x: sj.matmul(x, A.T).sum())(x),
]
assert all(y.devices() == {second} for y in found), [y.devices() for y in found]
free = jnp.ones((3, 16))
assert (free @ A.T).devices() == {first}
print(len(found))
"""


def test_results_stay_on_the_device_of_the_operands():
    two = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    program = [sys.executable, "-P", "-c", TWO_DEVICES]
    done = subprocess.run(program, env=os.environ | two, capture_output=True, text=True)
    assert done.stdout.strip() == "14", done.stderr


@pytest.mark.parametrize("kind", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_constants_of_compiled_code_stay_constants(rng, kind, name):
    pytest.importorskip("jax.experimental.buffer_callback")
    try:
        device = jax.devices(kind)[0]
    except RuntimeError:
        pytest.skip(f"JAX has no {kind} here")
    with jax.default_device(device):
        weight = jnp.asarray(rng.standard_normal((8, 16)).astype(np.float32)).astype(name)
        x = jnp.ones((3, 16), name)
        like = jax.ShapeDtypeStruct(weight.shape, weight.dtype)

        def layer(x):
            pruned = s24.prune(weight)
            halved = sj.call(lambda w: w * w.dtype.type(0.5), like, pruned)
            return sj.matmul(x, s24.compress(halved).T)

        got, want = jax.jit(layer)(x), layer(x)
        np.testing.assert_array_equal(np.asarray(got, np.float32), np.asarray(want, np.float32))


def test_the_error_of_a_tracer_names_what_takes_it():
    x = jnp.ones((4, 8))
    for function in (s24.prune, s24.mask, s24.is_24, lambda x: s24.linear(x, s24.random((4, 8)))):
        with pytest.raises(
            s24.UnsupportedError, match=r"use sparse24\.jax\.matmul, linear or mask"
        ):
            jax.jit(function)(x)


def test_what_holds_no_numbers_is_refused():
    keys, A = jax.random.split(jax.random.key(0), 16), s24.random((8, 16), rng=0)
    like = jax.ShapeDtypeStruct((16,), jnp.float32)
    layer = lambda x: sj.linear(x, x[None])  # noqa: E731
    for function in (lambda x: A @ x, lambda x: sj.matmul(A, x), sj.mask, s24.prune, layer):
        with pytest.raises(s24.DTypeError, match=r"got (key<fry>|PRNGKeyArray)"):
            function(keys)
    with pytest.raises(s24.DTypeError, match=r"got key<fry>"):
        jax.jit(lambda x: sj.matmul(A, x))(keys)
    for function in (lambda x: sj.matmul(A, x), sj.mask, lambda x: sj.linear(x, jnp.ones((8, 16)))):
        with pytest.raises(s24.DTypeError, match="an array of JAX or NumPy, got ShapeDtypeStruct"):
            function(like)


def test_a_layer_of_fp8_that_is_seen_as_bits_is_refused(monkeypatch):
    """As arrays of fp8 are on a GPU."""
    from sparse24._jax import linear as jax_linear

    bits = lambda x: np.asarray(x).view(np.uint8)  # noqa: E731
    monkeypatch.setattr(jax_linear, "view", bits)
    x = jnp.ones((1, 4), jnp.float8_e4m3fn)
    with pytest.raises(s24.UnsupportedError, match=r"x must not be float8_e4m3fn on a GPU.*matmul"):
        sj.linear(x, x)
