"""Products of torch's and JAX's arrays on the CPU: they are NumPy's, and remembered as such."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import sparse24 as s24
from sparse24 import _dispatch, _dtypes, _foreign
from sparse24._errors import ArgumentError, DTypeError, ShapeError

SIZE = 96
TYPES = ("float32", "float16", "bfloat16", "int8")  # float64 as well, but JAX has to be told


def as_torch(x):
    pytest.importorskip("torch")
    return _foreign.to_torch(x)


def as_jax(x):
    jax = pytest.importorskip("jax")
    return jax.device_put(x, jax.devices("cpu")[0])


def two_four(rng, name: str = "float32"):
    return s24.compress(dense(rng, (SIZE, SIZE), name), on_excess="prune")


def hybrid(rng):
    w = dense(rng, (SIZE, SIZE), "float32")
    w[rng.random(w.shape) < 0.8] = 0
    return s24.hybrid(w)


def dense(rng, shape, name: str):
    return (rng.standard_normal(shape) * 4).astype(_dtypes.TABLE[name].logical)


@pytest.mark.parametrize(
    ("make", "name"), [*itertools.product((as_torch, as_jax), TYPES), (as_torch, "float64")]
)
def test_it_is_numpys_product_in_the_callers_type(rng, make, name):
    a, b = two_four(rng, name), dense(rng, (SIZE, 5), name)
    given = make(b)
    for call in (lambda x: a @ x, lambda x: s24.matmul(x.T, a.T)):
        want = call(b)
        for _ in range(3):
            got = call(given)
            assert type(got) is type(given)
            np.testing.assert_array_equal(
                _foreign.take(got)[0].astype(np.float64), want.astype(np.float64)
            )


@pytest.mark.parametrize("weight", [two_four, hybrid])
@pytest.mark.parametrize("make", [as_torch, as_jax])
def test_what_numpys_array_prepared_serves_them_too(rng, make, weight):
    a, b = weight(rng), dense(rng, (SIZE, 5), "float32")
    x = np.ascontiguousarray(b.T)
    calls = (lambda y: a @ y, b), (lambda y: s24.matmul(y, a.T), x), (lambda y: s24.linear(y, a), x)
    for call, array in calls:
        call(make(array))
        known = len(a._plans)
        assert known > 0
        call(array)
        call(make(array))
        assert len(a._plans) == known


def test_results_and_biases_of_torch(rng):
    torch = pytest.importorskip("torch")
    a, x = two_four(rng), torch.randn(3, SIZE)
    bias, out = torch.randn(SIZE), torch.empty(3, SIZE)
    for _ in range(2):
        want = x @ torch.from_numpy(a.toarray()).T
        assert s24.matmul(x, a.T, out=out) is out
        torch.testing.assert_close(out, want)
        torch.testing.assert_close(s24.linear(x, a, bias, activation="relu"), (want + bias).relu())
        bias += 1  # read at each call


def test_errors_name_the_argument(rng):
    torch = pytest.importorskip("torch")
    a = two_four(rng)
    x = torch.ones(3, SIZE)
    for _ in range(2):
        with pytest.raises(ShapeError, match="inner dimensions 95 and 96 differ"):
            s24.matmul(x[:, 1:], a.T)
        with pytest.raises(ShapeError, match="out must have shape"):
            s24.matmul(x, a.T, out=torch.empty(2, SIZE))
        with pytest.raises(DTypeError, match="out must have dtype float32, got float64"):
            s24.matmul(x, a.T, out=torch.empty(3, SIZE, dtype=torch.float64))
        with pytest.raises(DTypeError, match="b must be a dense tensor with memory"):
            a @ torch.eye(SIZE).to_sparse()
        s24.matmul(x, a.T)


def test_operands_that_overlap_the_result(rng):
    torch = pytest.importorskip("torch")
    a, x = two_four(rng), torch.randn(SIZE, SIZE)
    for _ in range(2):
        with pytest.raises(ArgumentError, match="out shares memory with an operand"):
            s24.matmul(x, a.T, out=x)


@pytest.mark.parametrize("options", [{}, {"bias": True}, {"bias": True, "activation": "relu"}])
@pytest.mark.parametrize("weight", [two_four, hybrid])
def test_stacks_of_tokens_are_one_matrix(rng, weight, options):
    a, x = weight(rng), dense(rng, (2, 3, 4, SIZE), "float32")
    rows = x.reshape(24, SIZE)
    options = options | {"bias": dense(rng, SIZE, "float32")} if options else {}
    want = s24.linear(rows, a, **options)
    known = len(a._plans)
    for stack in (x, x.copy(order="F"), x[:, ::-1][:, ::-1]):
        np.testing.assert_array_equal(s24.linear(stack, a, **options), want.reshape(2, 3, 4, SIZE))
    assert len(a._plans) == known
    assert s24.linear(x[:0], a, **options).shape == (0, 3, 4, SIZE)
    with pytest.raises(ShapeError, match=r"x must have shape \(\.\.\., k\).*\(2, 3, 4, 95\)"):
        s24.linear(x[..., 1:], a, **options)


OPTIONS = {
    "bias of one row": {"epilogue": s24.Epilogue(bias=np.arange(SIZE, dtype=np.float32)[None])},
    "number": {"epilogue": s24.Epilogue(bias=0.5, activation="relu")},
    "type": {"dtype": "float16"},
    "algorithm": {"algorithm": "dense"},
    "scales": {"scales": (2.0, np.arange(SIZE, dtype=np.float32))},
    "one scale": {"scales": (None, np.arange(SIZE, dtype=np.float32)[None])},
    "factor": {"alpha": 3.0},
}


@pytest.mark.parametrize("has_out", [False, True])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_stacks_with_options_are_planned_once(rng, monkeypatch, options, has_out):
    a, x = two_four(rng), dense(rng, (2, 3, SIZE), "float32")
    want = np.stack([s24.matmul(rows, a.T, **options) for rows in x])
    planned, fill = [], _dispatch.fill
    monkeypatch.setattr(_dispatch, "fill", lambda *given: planned.append(given) or fill(*given))
    for number in range(3):
        out = np.empty_like(want) if has_out else None
        got = s24.matmul(x, a.T, out, **options)
        assert not has_out or got is out
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-2)
        assert number == 0 or len(planned) == 1


def test_each_row_of_a_stack_may_have_its_own_factor_or_place(rng):
    a, x = two_four(rng), dense(rng, (2, 3, SIZE), "float32")
    plain, rows = np.stack([m @ a.T for m in x]), np.arange(3, dtype=np.float32)[:, None]
    others = np.empty((2, SIZE, 3), np.float32).swapaxes(1, 2), np.empty((2, 6, SIZE), "f")[:, ::2]
    c = dense(rng, plain.shape, "float32")
    close = {"rtol": 1e-4, "atol": 1e-3}
    for _ in range(2):
        for out in others:
            assert s24.matmul(x, a.T, out) is out
            np.testing.assert_allclose(out, plain, **close)
        got = s24.matmul(x, a.T, scales=(rows, 2.0))
        np.testing.assert_allclose(got, 2 * rows * plain, **close)
        got = s24.matmul(x, a.T, epilogue=s24.Epilogue(bias=rows))
        np.testing.assert_allclose(got, plain + rows, **close)
        np.testing.assert_allclose(s24.matmul(x, a.T, c=c, beta=1.0), plain + c, **close)
    with pytest.raises(ShapeError, match=r"out must have shape \(2, 3, 96\), got \(6, 96\)"):
        s24.matmul(x, a.T, np.empty((6, SIZE), np.float32))
    with pytest.raises(ArgumentError, match="out shares memory with an operand"):
        s24.matmul(x, a.T, x)
