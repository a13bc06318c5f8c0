"""Types in which operands meet, and formats that round their products themselves."""

from __future__ import annotations

import contextlib

import ml_dtypes
import numpy as np
import pytest

import sparse24 as s24
from sparse24 import (
    _dtypes,
    _finish,
    _foreign_streams,
    _other_formats,
    _product,
    functional,
)
from sparse24._options import NO_OPTIONS
from sparse24._target import Result
from sparse24.formats.windows import Windows24
from sparse24.kernels import cpu, reference

MAKE = {
    "2:4": lambda w: s24.compress(w, on_excess="prune"),
    "4:8": lambda w: s24.compress(w, pattern=(4, 8), on_excess="prune"),
    "windows": lambda w: s24.compress(w, pattern=(6, 8), on_excess="prune").windows(),
    "hybrid": s24.hybrid,
}


A48 = s24.compress(np.ones((8, 16), np.float16), pattern=(4, 8), on_excess="prune")


@pytest.fixture(params=list(MAKE))
def make(request):
    return MAKE[request.param]


@pytest.mark.parametrize(
    ("own", "given", "common"),
    [
        ("float32", "int64", "float64"),
        ("float32", "int16", "float32"),
        ("float16", "bool", "float16"),
        ("bfloat16", "bool", "bfloat16"),
        ("bfloat16", "uint16", "float32"),
        ("float64", "int32", "float64"),
        ("int8", "bool", "int32"),
    ],
)
def test_whole_numbers_meet_a_matrix_as_in_numpy(make, rng, own, given, common):
    a = make(rng.integers(-4, 5, (16, 24)).astype(s24.random((1, 4), dtype=own).dtype))
    x = rng.integers(0, 3, (24, 3)).astype(given)
    want = a.toarray().astype(np.float64) @ x
    for _ in range(2):  # the second call may go the way of the first
        for got in (a @ x, (x.T @ a.T).T, np.stack([a @ column for column in x.T], 1)):
            assert got.dtype == common
            np.testing.assert_array_equal(got.astype(np.float64), want)


@pytest.mark.parametrize("name", ["int8", "int32"])
@pytest.mark.parametrize("own", ["float32", "float64"])
def test_whole_results_of_float64_are_refused_on_a_gpu(monkeypatch, own, name):
    a, x = s24.compress(np.eye(8, dtype=own)), np.ones((8, 2))
    assert s24.matmul(a, x, dtype=name).dtype == name
    monkeypatch.setattr(_product._arrays, "is_cupy", lambda x: True)
    monkeypatch.setattr(_product._arrays, "device_of", lambda x: "cuda:0")
    message = f"products of float64 have no {name} result on a GPU; leave dtype out and round"
    with pytest.raises(s24.UnsupportedError, match=message):
        Result.of(a._operand, x, None, NO_OPTIONS._replace(dtype=name), (8, 2))


@pytest.mark.parametrize("given", ["int16", "uint16", "int64", "uint64"])
def test_wider_whole_numbers_do_not_meet_int8(make, given):
    a = make(np.eye(8, dtype=np.int8))
    rule = "must not hold integers wider than int8 with an int8 matrix, got dtype"
    for product in (lambda x: a @ x, lambda x: x @ a.T, lambda x: s24.linear(x, a),
                    lambda x: s24.matmul(a, x, alpha=2.0)):  # fmt: skip
        wrong = rf"[abx] {rule} {given}; use \.astype\('int8'\) if its values fit"
        with pytest.raises(s24.DTypeError, match=wrong):
            product(np.ones((8, 8), given))


def test_lists_and_plans_of_whole_numbers(make):
    a = make(np.eye(8, dtype=np.float32))
    np.testing.assert_array_equal(a @ [1, 2, 3, 4, 5, 6, 7, 8], range(1, 9))
    x = np.arange(16).reshape(8, 2)
    if isinstance(a, s24.Sparse24Array | s24.NMArray):  # 4:8 of another type than x is dense
        assert s24.explain(a, x).chosen in ("cpu_sparse", "dense")
    if isinstance(a, s24.Sparse24Array):
        y = s24.plan(a, x, out_order="column").execute(x)
        assert y.dtype == np.float64
        assert y.flags.f_contiguous
        np.testing.assert_array_equal(y, x)


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


def test_results_of_a_finish_do_not_overlap_operands(make):
    a, x = make(np.eye(8, dtype=np.float16)), np.ones((8, 8), np.float16)
    for product in (lambda: s24.matmul(a, x, x, alpha=2.0),
                    lambda: s24.matmul(x, a.T, x, alpha=2.0)):  # fmt: skip
        with pytest.raises(s24.ArgumentError, match="shares memory with an operand"):
            product()
    stored = s24.Epilogue(activation="relu", aux=x)
    for product in (lambda: s24.matmul(a, x, epilogue=stored),
                    lambda: s24.matmul(x, a.T, epilogue=stored)):  # fmt: skip
        with pytest.raises(s24.ArgumentError, match="aux shares memory with an operand"):
            product()
    assert (x == 1).all()
    for wrong in ({"algorithm": "dense"}, {"fast_accumulation": False}):
        if not isinstance(a, s24.Sparse24Array):
            with pytest.raises(s24.ArgumentError, match="are for Sparse24Array operands"):
                s24.matmul(a, x, **wrong)


@pytest.mark.parametrize("other", [*MAKE, "1:4"])
def test_every_two_formats_multiply(make, other, rng):
    w, x = (rng.integers(-2, 3, (24, 24)).astype(np.float32) for _ in range(2))
    of_1_4 = lambda x: s24.compress(x, pattern=(1, 4), on_excess="prune")  # noqa: E731
    a, b = make(w), (MAKE | {"1:4": of_1_4})[other](x)
    turned = lambda x: x.mT if isinstance(x, Windows24) else x  # noqa: E731  to serve x @ W
    for left, right in ((a, turned(b)), (b, turned(a)), (a, b.mT), (b, a.mT)):
        want = left.toarray() @ right.toarray()
        np.testing.assert_array_equal(left @ right, want)
        np.testing.assert_array_equal(s24.matmul(left, right), want)


def test_integers_and_sparse_operands_meet_in_sums_as_well():
    w = np.zeros((8, 16), np.float16)
    w[:, :2] = 40000
    for name in ("4:8", "windows", "hybrid"):
        a = MAKE[name](w)
        for x in (np.ones((16, 3), np.int8), np.ones((16, 3), bool), np.ones((16, 3)).tolist()):
            np.testing.assert_array_equal(s24.matmul(a, x, dtype="int32"), 80000)
        for x in (s24.hybrid(np.eye(16, dtype=np.float16)), MAKE["4:8"](np.eye(16, dtype=np.int8))):
            np.testing.assert_array_equal(s24.matmul(a, x, dtype="int32")[:, :2], 40000)
            np.testing.assert_array_equal(s24.matmul(a, x, alpha=0.5)[:, :2], 20000)


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


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_the_gradient_of_a_bias_is_summed_in_float32(name):
    """In 16 bits themselves a sum of ones stands still, at 2048 or 256."""
    dtype = _dtypes.numpy_dtype(name)
    x, weight, bias = np.ones((4096, 4), dtype), np.eye(2, 4, dtype=dtype), np.zeros(2, dtype)
    y, saved = functional.linear(x, weight, bias)
    dbias = functional.linear_backward(np.ones_like(y), saved)[2]
    assert dbias.dtype == dtype
    np.testing.assert_array_equal(dbias.astype(np.float32), 4096)


class Theirs(np.ndarray):
    """Of another library: `_foreign.take` makes a plain array of it."""


@pytest.mark.parametrize("call", [
    lambda b: s24.matmul(A48, b, dtype="float32"),  # `b` is widened before
    lambda b: s24.matmul(A48, b, alpha=2.0),
    lambda b: s24.matmul(np.eye(8, 16, dtype=np.float16).view(Theirs), b),  # obeys 2:4
    lambda b: s24.matmul(np.ones((8, 16), int).view(Theirs), b.astype(np.int64)),
])  # fmt: skip
def test_all_work_of_a_product_goes_to_the_stream_of_an_operand(call, monkeypatch):
    """What runs elsewhere on a GPU is ordered neither with torch's work nor with its memory."""
    within, outside = [], []

    @contextlib.contextmanager
    def stream_of(x):
        within.append(x)
        yield
        within.pop()

    def watched(module, name):
        works = getattr(module, name)

        def watch(*given, **named):
            outside.extend([] if any(type(x) is Theirs for x in within) else [name])
            return works(*given, **named)

        monkeypatch.setattr(module, name, watch)

    monkeypatch.setattr(_foreign_streams, "stream_of", stream_of)
    for module, name in (
        (_finish, "finished"), (reference, "to_dtype"), (_other_formats, "in_sums"),
        (_other_formats, "_asked"), (cpu, "compress"),
    ):  # fmt: skip
        watched(module, name)
    call(np.ones((16, 3), np.float16).view(Theirs))
    assert outside == []


@pytest.mark.gpu
@pytest.mark.parametrize("own", ["float16", "bfloat16", "int8", "float32"])
@pytest.mark.parametrize("given", ["float16", "float32"])
def test_products_without_columns_have_their_type_on_a_gpu(make, own, given):
    cupy = pytest.importorskip("cupy")
    dtype = _dtypes.numpy_dtype(own)
    host = np.ones((8, 16), dtype)
    a = make(cupy.asarray(host.view(_dtypes.TABLE[own].storage)).view(dtype))
    want = make(host) @ np.ones((16, 0), given)
    got = a @ cupy.ones((16, 0), given)
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    stack = [a @ cupy.ones((2, 16, 0), given)] if not isinstance(a, s24.HybridArray) else []
    assert all((x.shape, x.dtype) == ((2, 8, 0), want.dtype) for x in stack)


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


@pytest.mark.gpu
def test_float64_has_no_integer_results_on_a_gpu(make):
    cupy = pytest.importorskip("cupy")
    a, x = make(cupy.eye(8)), cupy.ones((8, 3))
    for dtype in ("int8", "int32"):
        with pytest.raises(s24.UnsupportedError, match=f"have no {dtype} result on a GPU"):
            s24.matmul(a, x, dtype=dtype)
    assert s24.matmul(a, x, dtype="float32").dtype == np.float32
