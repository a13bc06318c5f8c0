"""Types in which operands of every format meet, and on which stream their work goes."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from format_cases import MAKE

import sparse24 as s24
from sparse24 import (
    _dtypes,
    _finish,
    _foreign_streams,
    _other_formats,
    _product,
)
from sparse24._options import NO_OPTIONS
from sparse24._target import Result
from sparse24.formats.windows import Windows24
from sparse24.kernels import cpu, reference

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


@pytest.mark.parametrize("dtype", ["i4", "intc", np.int32, np.dtype("int32"), "f4", np.single])
def test_a_result_is_named_by_any_name_of_its_type(make, dtype):
    a, x = make(np.eye(8, dtype=np.int8)), np.ones((8, 2), np.int8)
    assert s24.matmul(a, x, dtype=dtype).dtype == dtype
    assert s24.linear(x.T, a, dtype=dtype).dtype == dtype
    with pytest.raises(s24.DTypeError, match=r"dtype must be one of .*, int32, got '>i4'"):
        s24.matmul(a, x, dtype=">i4")


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
def test_float64_has_no_integer_results_on_a_gpu(make):
    cupy = pytest.importorskip("cupy")
    a, x = make(cupy.eye(8)), cupy.ones((8, 3))
    for dtype in ("int8", "int32"):
        with pytest.raises(s24.UnsupportedError, match=f"have no {dtype} result on a GPU"):
            s24.matmul(a, x, dtype=dtype)
    assert s24.matmul(a, x, dtype="float32").dtype == np.float32
