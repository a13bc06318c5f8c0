"""Results of every format are rounded once, after sums, factors and biases."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from format_cases import MAKE

import sparse24 as s24
from sparse24 import _dtypes, functional


@pytest.fixture(params=list(MAKE))
def make(request):
    return MAKE[request.param]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("own", [np.float16, ml_dtypes.bfloat16])
def test_a_wider_result_is_not_rounded_to_16_bits_first(make, rng, own, dtype):
    a = make(rng.standard_normal((16, 96)).astype(own))
    x = rng.standard_normal((96, 5)).astype(own)
    want = a.toarray().astype(np.float64) @ x.astype(np.float64)
    for got in (s24.matmul(a, x, dtype=dtype), s24.matmul(x.T, a.T, dtype=dtype).T):
        assert got.dtype == dtype
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    bias = np.ones(5)
    e = s24.Epilogue(bias=bias, activation="relu")
    got = s24.matmul(a, x, dtype=dtype, epilogue=e)
    np.testing.assert_allclose(got, np.maximum(want + bias, 0), rtol=1e-5, atol=1e-5)


def test_a_wider_result_holds_what_16_bits_do_not(make):
    a = make(np.eye(8, dtype=np.float16) * 300)
    x = np.full((8, 2), 300, np.float16)
    assert np.isinf(a @ x).all()
    np.testing.assert_array_equal(s24.matmul(a, x, dtype="float32"), 90000)
    np.testing.assert_array_equal(s24.matmul(a, x, alpha=0.1, dtype="bfloat16"), 9024)


@pytest.mark.parametrize(("dtype", "scale", "want"), [
    ("int32", 1.0, 80000), ("int8", 1 / 800, 100), ("float8_e4m3fn", 1 / 800, 96),
    ("float8_e5m2", 1 / 800, 96), ("bfloat16", 1.0, 79872), (None, 1 / 2, 40000),
    ("float16", 1 / 2, 40000),
])  # fmt: skip
def test_sums_are_not_rounded_to_16_bits_before_they_are_finished(make, dtype, scale, want):
    w = np.zeros((8, 16), np.float16)
    w[:, :2] = 40000
    a, x = make(w), np.ones((16, 3), np.float16)
    e = s24.Epilogue(out_scale=scale)
    for options in ({"scales": (scale, 1.0)}, {"alpha": scale}, {"epilogue": e}):
        for _ in range(2):  # the second call may go the way of the first
            got = s24.matmul(a, x, dtype=dtype, **options)
            turned = s24.matmul(x.T, a.T, dtype=dtype, **options).T
            stack = s24.matmul(a, np.stack([x, x]), dtype=dtype, **options)[1]
            column = s24.matmul(a, x[:, 0], dtype=dtype, **options)[:, None]
            for y in (got, turned, stack, column):
                assert y.dtype == _dtypes.numpy_dtype(dtype or "float16")
                np.testing.assert_array_equal(y.astype(np.float64), want)


def test_whole_results_of_bfloat16_are_exact(make):
    w = np.zeros((8, 16), ml_dtypes.bfloat16)
    w[:, 0], w[:, 1] = 255, 256
    a, x = make(w), np.ones((16, 3), ml_dtypes.bfloat16)
    np.testing.assert_array_equal(s24.matmul(a, x, dtype="int32"), 511)
    out = np.zeros((8, 3), np.int32)
    assert s24.matmul(a, x, out, dtype="int32") is out
    np.testing.assert_array_equal(out, 511)


def test_a_bias_is_added_to_sums_that_16_bits_do_not_hold(make):
    w = np.zeros((8, 16), np.float16)
    w[:, :2] = 40000
    a, x, bias = make(w), np.ones((2, 3, 16), np.float16), np.full(8, -30000, np.float16)
    kinds, want = [x, x[0], x[0, 0]], np.float16(50000)
    for activation in (None, "relu"):
        for tokens in (*kinds, *kinds):
            got = s24.linear(tokens, a, bias, activation=activation)
            assert got.dtype == np.float16
            np.testing.assert_array_equal(got, np.full((*tokens.shape[:-1], 8), want))
    c = np.full((8, 6), -30000, np.float16)
    got = s24.matmul(a, x.reshape(6, 16).T, c=c, beta=1.0)
    np.testing.assert_array_equal(got, want)
    torch = pytest.importorskip("torch")
    got = s24.linear(torch.from_numpy(x), a, torch.from_numpy(bias))
    assert got.dtype == torch.float16
    np.testing.assert_array_equal(got.numpy(), want)
    whole = s24.matmul(a, torch.from_numpy(x[0, 0]), dtype=torch.int32)
    np.testing.assert_array_equal(whole.numpy(), 80000)


def test_another_type_of_16_bits_is_rounded_once():
    w = s24.random((8, 64), dtype="float8_e4m3fn", rng=0)
    n_m = s24.NMArray.from_dense(w.toarray(), pattern=(4, 8))
    x = np.ones((64, 3), ml_dtypes.float8_e4m3fn)
    got, want = (s24.matmul(a, x, dtype="float16") for a in (n_m, w))
    assert got.dtype == np.float16
    np.testing.assert_array_equal(got, want)
    sparse = s24.matmul(n_m, s24.random((64, 8), dtype="float8_e4m3fn", rng=1), dtype="float32")
    assert sparse.dtype == np.float32


@pytest.mark.parametrize(
    ("name", "between"),
    [("float16", 11), ("bfloat16", 8), ("float8_e4m3fn", 4), ("float8_e5m2", 3)],
)
def test_float64_is_rounded_once_to_narrower_types(name, between):
    """Just above halfway between two numbers, which in float32 would be halfway."""
    x = np.zeros((1, 8))
    x[0, 0] = 1 + 2.0**-between + 2.0**-40
    dtype = _dtypes.numpy_dtype(name)
    want = np.array([[1 + 2.0 ** (1 - between), *[0] * 7]]).astype(dtype)
    a = s24.compress(x)
    products = [s24.matmul(s, np.eye(8), dtype=name) for s in (a, s24.hybrid(x), x)]
    if name == "bfloat16":
        products.append(s24.hybrid(x, dtype=name).toarray())
    for got in (a.astype(name).toarray(), s24.compress(x, dtype=name).toarray(), *products):
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_the_gradient_of_a_bias_is_summed_in_float32(name):
    """In these types themselves a sum of ones stands still: at 2048, 256, 16 and 8."""
    dtype = _dtypes.numpy_dtype(name)
    x, weight, bias = np.ones((4096, 4), dtype), np.eye(2, 4, dtype=dtype), np.zeros(2, dtype)
    y, saved = functional.linear(x, weight, bias)
    dx, _, dbias = functional.linear_backward(np.ones_like(y, dtype=dtype), saved)
    assert dbias.dtype == dx.dtype == y.dtype
    np.testing.assert_array_equal(dbias.astype(np.float32), 4096)


@pytest.mark.parametrize("gradient", ["ste", "24dense", "24sparse"])
@pytest.mark.parametrize("of_dy", ["float32", "uint16", "int64"])
@pytest.mark.parametrize("of_x", ["bool", "int8", "uint16", "int64"])
@pytest.mark.parametrize("own", ["float32", "bfloat16"])
def test_layers_of_whole_numbers_have_gradients(rng, own, of_x, of_dy, gradient):
    """`linear` takes such tokens, so the way back takes them, too."""
    x, dy = (rng.integers(0, 2, shape) for shape in ((8, 8), (8, 4)))
    weight = rng.integers(-4, 5, (4, 8)).astype(_dtypes.numpy_dtype(own))
    y, saved = functional.linear(x.astype(of_x), weight)
    dx, dweight, _ = functional.linear_backward(dy.astype(of_dy), saved, gradient=gradient)
    floats = x.astype(y.dtype), dy.astype(s24.matmul(dy.astype(of_dy), saved.packed[0]).dtype)
    _, like = functional.linear(floats[0], weight)
    want = functional.linear_backward(floats[1], like, gradient=gradient)
    for got, same in zip((dx, dweight), want, strict=False):
        assert got.dtype == same.dtype
        np.testing.assert_array_equal(got, same)


def test_layers_of_int8_sum_in_int32():
    x, dy, weight = (np.full(shape, 100, np.int8) for shape in ((40, 4), (40, 2), (2, 4)))
    _, saved = functional.linear(x, weight, np.zeros(2))
    dx, dweight, dbias = functional.linear_backward(dy, saved)
    assert dx.dtype == dweight.dtype == np.int32
    np.testing.assert_array_equal(dweight, 400000)
    np.testing.assert_array_equal(dbias, 4000)


@pytest.mark.parametrize("decay", [0.0, 0.5])
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_pruned_weights_have_no_gradient_where_a_sum_overflows(name, decay):
    dtype = _dtypes.numpy_dtype(name)
    weight = np.array([[1, 2, 3, 4]], dtype)
    y, saved = functional.linear(np.ones((2, 4), dtype), weight)
    dy = np.full_like(y, np.inf)
    dweight = functional.linear_backward(dy, saved, gradient="24dense", decay=decay)[1]
    want = [[decay, 2 * decay, np.inf, np.inf]]
    np.testing.assert_array_equal(dweight.astype(np.float64), want)


@pytest.mark.parametrize("gradient", ["ste", "24dense"])
@pytest.mark.parametrize("other", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("own", ["float16", "bfloat16", "int16"])
def test_a_weight_gradient_is_as_wide_as_that_of_x(rng, own, other, gradient):
    """That of a float16 `dy` and a float32 `x` was float16, in which it may be infinite."""
    x, weight = (rng.random(shape).astype(other) + 1 for shape in ((40, 8), (4, 8)))
    y, saved = functional.linear(x, weight)
    dy = np.full_like(y, 300, dtype=own)
    dx, dweight, _ = functional.linear_backward(dy, saved, gradient=gradient)
    want = dy.T.astype(np.float64) @ x.astype(np.float64)
    want = want if gradient == "ste" else want * s24.mask(weight)
    assert dweight.dtype == dx.dtype
    step = {"float16": 2e-3, "bfloat16": 1e-2}.get(dweight.dtype.name, 1e-5)
    np.testing.assert_allclose(dweight.astype(np.float64), want, rtol=step)


@pytest.mark.gpu
def test_sums_are_not_rounded_before_they_are_finished_on_a_gpu(make):
    cupy = pytest.importorskip("cupy")
    w = np.zeros((8, 16), np.float16)
    w[:, :2] = 40000
    a, x, bias = make(cupy.asarray(w)), cupy.ones((16, 3), np.float16), cupy.full(3, -30000.0)
    for _ in range(2):
        for dtype, options, want in (
            ("int32", {}, 80000), ("int8", {"scales": (1 / 800, 1.0)}, 100),
            (None, {"alpha": 0.5}, 40000), ("float32", {}, 80000),
            ("float16", {"epilogue": s24.Epilogue(bias=bias)}, np.float16(50000)),
        ):  # fmt: skip
            if isinstance(a, s24.HybridArray) and dtype in (None, "float16"):
                continue  # its kernels store 16 bits
            got = s24.matmul(a, x, dtype=dtype, **options).get()
            assert got.dtype == (dtype or "float16")
            np.testing.assert_array_equal(got.astype(np.float64), want)
        np.testing.assert_array_equal(s24.matmul(x.T, a.T, dtype="int32").get(), 80000)
