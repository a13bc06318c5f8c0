"""Bias, activation and scales after the product of a format with rules of its own."""

from __future__ import annotations

import tracemalloc

import ml_dtypes
import numpy as np
import pytest

import sparse24 as s24
from sparse24 import _arrays, _row_blocks
from sparse24._records import Fused
from sparse24.kernels import reference

pytestmark = pytest.mark.stem("apply_epilogue")

MAKE = {
    "hybrid": s24.hybrid,
    "3:5": lambda w: s24.NMArray.from_dense(w, pattern=(3, 5), on_excess="prune"),
}
TYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}


def put(x, xp):
    return x if xp is np else xp.asarray(x)


@pytest.fixture(params=list(MAKE))
def make(request):
    return MAKE[request.param]


def operands(rng, xp, make, name: str):
    """A weight in a format, and what it means in float64; tokens."""
    w, x = (rng.standard_normal(s).astype(TYPES[name]) for s in ((7, 20), (5, 20)))
    a = make(put(w, xp))
    return a, _arrays.to_numpy(a.toarray()).astype(np.float64), x


def assert_close(got, want, name: str) -> None:
    got = _arrays.to_numpy(got)
    assert got.dtype == TYPES[name]
    tolerance = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 1e-5}[name]
    np.testing.assert_allclose(
        got.astype(np.float64), want, rtol=tolerance, atol=tolerance * np.abs(want).max(initial=0)
    )


@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
@pytest.mark.parametrize("name", TYPES)
def test_linear_takes_bias_and_activation(xp, rng, make, name, activation):
    a, w, x = operands(rng, xp, make, name)
    bias = rng.standard_normal(7).astype(np.float32)
    for tokens in (x, x[0], np.stack([x, -x]), np.empty((2, 0, 20), x.dtype)):
        exact = tokens.astype(np.float64) @ w.T
        fused = Fused(column_bias=bias, activation=activation or "identity")
        flat = exact.reshape(-1, exact.shape[-1])
        want = reference.apply_epilogue(flat, fused, "float64")[0].reshape(exact.shape)
        got = s24.linear(put(tokens, xp), a, put(bias, xp), activation=activation)
        assert_close(got, want, name)


def test_every_part_of_an_epilogue(xp, rng, make):
    a, w, x = operands(rng, xp, make, "float32")
    b, bias = x.T.copy(), np.arange(7, dtype=np.float32)[:, None]
    c = rng.standard_normal((7, 5)).astype(np.float32)
    out, aux = (xp.zeros((7, 5), np.float32) for _ in range(2))
    e = s24.Epilogue(bias=put(bias, xp), activation="relu", out_scale=2.0, aux=aux)
    got = s24.matmul(
        a, put(b, xp), out, c=put(c, xp), alpha=3.0, beta=0.5, scales=(0.5, 1.0), epilogue=e
    )
    assert got is out
    before = 1.5 * (w @ b.astype(np.float64)) + 0.5 * c + bias
    assert_close(aux, before, "float32")
    assert_close(out, 2 * np.maximum(before, 0), "float32")


def test_vectors_and_other_types(xp, rng, make):
    a, w, x = operands(rng, xp, make, "float32")
    e = s24.Epilogue(bias=1.0)
    assert_close(s24.matmul(a, put(x[0], xp), epilogue=e), w @ x[0] + 1, "float32")
    got = s24.matmul(put(x, xp), a.mT, dtype="float16", epilogue=e)
    assert_close(got, x @ w.T + 1, "float16")
    small = s24.matmul(a, put(x.T.copy(), xp), dtype="int8", epilogue=e)
    np.testing.assert_array_equal(
        _arrays.to_numpy(small), np.clip(np.rint(w @ x.T + 1), -128, 127).astype(np.int8)
    )


@pytest.mark.parametrize("left", [True, False])
def test_an_epilogue_in_blocks_is_that_of_the_whole(rng, make, left, monkeypatch):
    a, _, x = operands(rng, np, make, "float32")
    given = (a, x.T.copy()) if left else (x, a.T)  # the product's memory runs along each axis
    shape = (7, 5) if left else (5, 7)
    c, bias = rng.standard_normal(shape), np.arange(shape[0])[:, None]
    scales = (rng.random(shape[0]), rng.random(shape[1]))
    found = []
    for block in (1 << 16, 12, 1):
        monkeypatch.setattr(_row_blocks, "BLOCK", block)
        aux = np.empty(shape, np.float32)
        e = s24.Epilogue(bias=bias, activation="gelu", aux=aux)
        out = s24.matmul(*given, c=c.astype(np.float32), beta=2.0, scales=scales, epilogue=e)
        found.append(np.stack([out, aux]))
    np.testing.assert_array_equal(found[1:], [found[0]] * 2)


def test_an_epilogue_takes_no_memory_beside_product_and_result(make):
    a, x = make(np.eye(40000, 20, dtype=np.int8)), np.ones((64, 20), np.int8)
    s24.linear(x, a, activation="relu")
    tracemalloc.start()
    y = s24.linear(x, a, activation="relu")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert y.dtype == np.int32
    assert peak < 3 * y.nbytes  # with copies of the whole in float64 it would be 9 times


def test_a_list_is_an_operand_still(make, rng):
    a = make(rng.standard_normal((7, 20)))
    twice = s24.matmul(a, [1.0] * 20, alpha=2.0)
    np.testing.assert_allclose(twice, 2 * a.toarray().sum(1), rtol=1e-5)


def test_the_transposed_matrix_is_not_built(rng):
    a, w, x = operands(rng, np, s24.hybrid, "float32")
    np.testing.assert_allclose(s24.linear(x, a), x @ w.T, rtol=1e-4, atol=1e-5)
    assert not a.is_prepared("transposed")
