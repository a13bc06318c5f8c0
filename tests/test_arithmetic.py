"""What keeps zeros: factors, signs and absolute values."""

from __future__ import annotations

import enum
import operator

import ml_dtypes
import numpy as np
import pytest
import scipy.sparse
from arithmetic_cases import MAKERS, OF_HYBRID, SHAPE, dense_of
from hybrid_cases import KINDS, with_kinds

import sparse24 as s24
from sparse24 import _dtypes, _elementwise
from sparse24.kernels import reference


def factors(rng) -> dict:
    m, k = SHAPE
    return {
        "whole": 2, "float": 0.3, "float32": np.float32(-0.7), "float64": np.float64(1.1),
        "int8": np.int8(3), "row": rng.uniform(1, 2, k).astype(np.float32),
        "column": rng.uniform(1, 2, (m, 1)).astype(np.float32),
        "whole column": rng.integers(1, 3, (m, 1)).astype(np.int8),
        "all": rng.standard_normal(SHAPE), "no axes": np.array(0.5, np.float32),
        "bfloat16": rng.uniform(1, 2, (m, 1)).astype(ml_dtypes.bfloat16), "list": [1.0] * k,
    }  # fmt: skip


def expected(ufunc, dense, factor):
    """NumPy's result, with the zeros of the matrix left as they are."""
    with np.errstate(all="ignore"):
        if type(factor) in (int, float) and dense.dtype.isbuiltin != 1:  # rounded once
            wide = ufunc(dense.astype(np.float32), np.float32(factor))
            return reference.to_dtype(np.where(dense == 0, 0, wide), dense.dtype)
        return np.where(dense == 0, 0, ufunc(dense, factor)).astype(ufunc(dense, factor).dtype)


def assert_is(array, want):
    got = dense_of(array)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))
    assert not np.signbit(got.astype(np.float64)[got == 0]).any()  # nor is -0.0 stored


@pytest.mark.parametrize("name", _dtypes.NAMES)
@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("factor", factors(np.random.default_rng(0)))
def test_factors_are_those_of_numpy(make, name, factor, rng, xp):
    if make == "hybrid" and name not in OF_HYBRID:
        pytest.skip("hybrid matrices are not of fp8")
    w = (rng.standard_normal(SHAPE) * 8).astype(np.float32)
    a, f = MAKERS[make](w, name), factors(rng)[factor]
    dense = dense_of(a)
    if xp is not np:
        a = a.to_device("cuda")
    given = xp.asarray(f) if np.ndim(f) else f
    for ufunc, op in ((np.multiply, operator.mul), (np.divide, operator.truediv)):
        try:
            want = expected(ufunc, dense, f)
        except TypeError:  # fp8 and float64, say
            want = None
        if want is None or want.dtype not in _dtypes.LOGICAL:
            with pytest.raises(s24.DTypeError, match="convert one of them"):
                op(a, given)
            continue
        got = op(a, given)
        assert (type(got), got.device) == (type(a), a.device)
        assert_is(got, want)
    if op(a, 1).dtype == a.dtype:  # a transposable array is one afterwards
        assert getattr(op(a, 1), "transposable", None) == getattr(a, "transposable", None)


@pytest.mark.parametrize("name", OF_HYBRID)
@pytest.mark.parametrize("make", MAKERS)
def test_signs(make, name, rng, xp):
    a = MAKERS[make]((rng.standard_normal(SHAPE) * 8).astype(np.float32), name)
    dense = dense_of(a)
    a = a if xp is np else a.to_device("cuda")
    assert +a is a
    assert_is(-a, np.where(dense == 0, 0, -dense).astype(dense.dtype))
    assert_is(abs(a), abs(dense))


@pytest.mark.parametrize("make", [make for make in MAKERS if make != "hybrid"])
@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_signs_of_fp8_change_nothing_else(name, make, xp):
    every = np.arange(256, dtype=np.uint8).view(_dtypes.TABLE[name].logical)  # infinities, too
    a = MAKERS[make](np.diag(every), name)
    dense = dense_of(a)
    a = a if xp is np else a.to_device("cuda")
    assert_is(-a, np.where(dense == 0, np.zeros_like(dense), -dense))
    assert_is(abs(a), abs(dense))


@pytest.mark.parametrize("make", MAKERS)
def test_numpys_functions_come_to_the_operators(make, rng):
    w = rng.standard_normal(SHAPE).astype(np.float32) * 8
    a, x = MAKERS[make](w, "float32"), rng.standard_normal(SHAPE).astype(np.float32)
    b = scipy.sparse.csr_array(a.toarray())
    for got in (np.multiply(a, x), np.multiply(x, a), x * a, a * x, a.multiply(x)):
        assert_is(got, expected(np.multiply, a.toarray(), x))
    for got in (a * a, a * b, a * MAKERS[make](w, "float32")):
        assert_is(got, a.toarray() ** 2)
    assert_is(np.abs(a), abs(a.toarray()))
    assert_is(np.negative(a), 0 - a.toarray())
    a *= 2
    assert_is(a, 2 * MAKERS[make](w, "float32").toarray())
    np.testing.assert_allclose(np.dot(a, x.T), a.toarray() @ x.T, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(np.dot(x.T, a), x.T @ a.toarray(), rtol=1e-5, atol=1e-4)


def test_zeros_stay_beside_what_is_not_finite_and_without_a_warning():
    a = s24.compress(np.array([[0, 1, 0, -2, 3, 0, 0, 0]], np.float32))
    assert_is(a * np.inf, np.array([[0, np.inf, 0, -np.inf, np.inf, 0, 0, 0]], np.float32))
    assert_is(a * np.float32(np.nan), np.where(a.toarray() == 0, 0, np.float32(np.nan)))
    assert_is(a * 1e-46, np.zeros((1, 8), np.float32))
    assert (a * 0).nnz == 0


def test_numbers_are_not_rounded_to_the_type_of_the_array():
    """0.3 would be 0.3125 in fp8."""
    a = s24.compress(np.array([[16, 0, -16, 0]]), dtype="float8_e4m3fn") * 0.3
    np.testing.assert_array_equal(a.toarray().astype(np.float32), [[5, 0, -5, 0]])  # of 4.8


def test_fp8_saturates_as_everywhere():
    a = s24.compress(np.array([[400, 0, -400, 0]]), dtype="float8_e4m3fn") * 2
    np.testing.assert_array_equal(a.toarray().astype(np.float32), [[448, 0, -448, 0]])


@pytest.mark.parametrize("own", ["float8_e4m3fn", "float8_e5m2", "int8", "float16"])
@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_a_sparse_factor_of_fp8_gives_the_type_of_a_dense_one(name, own, rng, xp):
    a, b = (
        MAKERS[make](rng.integers(-4, 5, SHAPE).astype(np.float32), dtype)
        for make, dtype in (("two_four", own), ("n_m", name))
    )
    want = a * dense_of(b)
    if xp is not np:
        a, b = a.to_device("cuda"), b.to_device("cuda")
    assert_is(a * b, dense_of(want))


def test_products_with_the_result_and_its_checks(rng):
    a = s24.compress(rng.standard_normal((64, 72)), on_excess="prune", transposable=True)
    x = rng.standard_normal((72, 5))
    b = a * rng.uniform(1, 2, (64, 1))
    np.testing.assert_allclose(b @ x, b.toarray() @ x)
    np.testing.assert_allclose(x.T @ b.T, x.T @ b.toarray().T)
    np.testing.assert_allclose(b.T @ (b @ x), b.toarray().T @ (b.toarray() @ x))
    unchecked = s24.compress(np.ones((4, 8)), check="deferred")
    with pytest.raises(s24.PatternError):
        (unchecked * 2).check()


@pytest.mark.parametrize("make", MAKERS)
def test_what_is_no_factor_is_named(make):
    a = MAKERS[make](np.ones(SHAPE, np.float32) * 6, "float32")
    for wrong, error, words in (
        (np.ones(9), s24.ShapeError, r"of shape \(9,\) does not broadcast to \(9, 18\)"),
        (np.ones((2, 9, 18)), s24.ShapeError, "does not broadcast"),
        (1j, s24.DTypeError, "give complex128, which is not stored"),
        ("2", s24.DTypeError, "must be an array, got str"),
        (None, s24.DTypeError, "must be an array, got NoneType"),
        (object(), s24.DTypeError, "must be an array, got object"),
        (np.array(2, object), s24.DTypeError, "a factor of object give object, which is not stor"),
        (np.array(1j, object), s24.DTypeError, "a factor of object give object, which is not st"),
    ):
        with pytest.raises(error, match=words):
            a * wrong


def test_numbers_that_do_not_fit_are_named():
    a = s24.compress(np.ones((4, 8), np.int8), on_excess="prune")
    for number in (1000, -129, 10**20):
        with pytest.raises(
            s24.ArgumentError, match=rf"the factor {number} does not fit int8; conv"
        ):
            a * number
    for name in ("float32", "bfloat16"):
        with pytest.raises(s24.ArgumentError, match="the factor must fit a float, got a larger"):
            a.astype(name) * 10**400


@pytest.mark.parametrize("name", OF_HYBRID)
@pytest.mark.parametrize("turned", [False, True])
def test_hybrid_tiles_keep_their_kinds(name, turned, rng):
    """Of all kinds, with edges, overflow and zeros that are stored."""
    filled = np.repeat(np.repeat([[1, 0.5, 0.02], [0, 0.4, 0.9]], 64, 0), 64, 1)[:120, :150]
    w = np.where(rng.random((120, 150)) < filled, rng.integers(1, 4, (120, 150)), 0)
    h = s24.hybrid(w, n_hint=64, dtype=name)
    assert len(np.unique(h.kinds)) > 2
    h = h.T if turned else h
    dense, kinds = h.toarray(), h.kinds
    row, column = (rng.integers(1, 4, n).astype(dense.dtype) for n in (h.shape[1], h.shape[0]))
    for factor in (row, column[:, None], dense + dense.dtype.type(1)):
        got = h * factor
        np.testing.assert_array_equal(got.kinds, kinds)
        assert_is(got, expected(np.multiply, dense, factor))
        assert got.nnz == h.nnz
    some = h * (row > 1)  # built anew
    assert some.nnz == np.count_nonzero(some.toarray()) < h.nnz
    none = h * np.zeros((), dense.dtype)
    assert none.nnz == 0
    assert not none.kinds.any()


@pytest.mark.parametrize("kind", KINDS)
def test_factors_of_tiles_at_the_edges(kind, rng):
    """Where tiles store zeros past the ends of the matrix, there is no factor."""
    dense = rng.integers(1, 4, (70, 90)).astype(np.float32)
    factor = rng.integers(1, 4, (70, 90)).astype(np.float32)
    got = with_kinds(dense, [kind]) * factor
    assert (got.kinds == kind).all()
    assert_is(got, dense * factor)


def test_a_type_that_hybrid_matrices_lack_is_named():
    h = s24.hybrid(np.eye(8, dtype=np.int8))
    with pytest.raises(s24.DTypeError, match="the factor give float8_e5m2, which a hybrid matrix"):
        h * np.ones(8, ml_dtypes.float8_e5m2)


@pytest.mark.parametrize("name", ["float32", "int8", "float8_e5m2"])
def test_kinds_of_numbers_count_as_the_number(name):
    a = s24.compress(np.ones((4, 8)), on_excess="prune", dtype=name)
    two = enum.IntEnum("Enumeration", {"TWO": 2}).TWO
    assert_is(a * two, dense_of(a * 2))
    assert (a / two).dtype == (a / 2).dtype


@pytest.mark.parametrize("make", MAKERS)
def test_signs_of_zeros_in_a_factor_count(make, rng):
    w = (abs(rng.standard_normal(SHAPE)) * 8 + 6).astype(np.float32)
    a = MAKERS[make](w, "float32")
    zeros = np.where(np.arange(SHAPE[1]) % 2, -0.0, 0.0).astype(np.float32)
    for factor in (zeros, np.broadcast_to(zeros, SHAPE), np.tile(zeros, (SHAPE[0], 1))):
        with np.errstate(divide="ignore"):
            assert_is(a / factor, expected(np.divide, a.toarray(), factor))
        assert (a * factor).nnz == 0


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_many_elements_of_fp8_are_multiplied_as_few_are(name, rng):
    """Many are looked up in a table of the results of all values."""
    w = rng.standard_normal((64, 64)).astype(np.float32) * 100
    a = s24.compress(w, on_excess="prune", dtype=name)
    for function in (lambda x: x * 0.3, lambda x: x / np.float32(7), abs, operator.neg):
        rows = [dense_of(function(a[i : i + 1])) for i in range(64)]
        assert_is(function(a), np.concatenate(rows))


@pytest.mark.parametrize("name", OF_HYBRID)
def test_no_factor_makes_a_hybrid_matrix_dense(name, rng, monkeypatch):
    w = rng.standard_normal((130, 90)) * (rng.random((130, 90)) < 0.1) * 9
    h, factors = s24.hybrid(w, dtype=name), (rng.random((130, 1)), rng.random((130, 90)), 0.5)
    dense = h.toarray()
    monkeypatch.setattr(s24.HybridArray, "toarray", None)
    made = [h * factor for factor in factors]
    turned = h.T * factors[0].T
    monkeypatch.undo()
    for got, factor in zip(made, factors, strict=True):
        assert_is(got, expected(np.multiply, dense, factor))
    assert_is(turned, expected(np.multiply, dense, factors[0]).T)


@pytest.mark.parametrize("ufunc", [np.multiply, np.divide])
def test_many_halves_are_scaled_in_float32(ufunc, rng, monkeypatch):
    """As NumPy does, one by one."""
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    small = np.abs(every) < 2048
    a = s24.compress(np.where(small, every, 0).reshape(256, 256), on_excess="prune")
    dense = a.toarray()
    factors = [2, 0.3, np.float16(-7.1), np.int8(9)]
    factors += [rng.uniform(0.1, 8, shape).astype(np.float16) for shape in (256, (256, 1))]
    wanted = [expected(ufunc, dense, factor) for factor in factors]
    monkeypatch.setattr(_elementwise, "_computed", lambda *_: pytest.fail("by NumPy"))
    for factor, want in zip(factors, wanted, strict=True):
        assert_is(a * factor if ufunc is np.multiply else a / factor, want)


def test_many_halves_warn_as_numpy_does():
    a = s24.compress(np.tile(np.array([60000, 60000, 0, 0], np.float16), (128, 32)))
    with pytest.warns(RuntimeWarning, match="overflow encountered in multiply"):
        assert np.isinf((a * 2).values).all()
    with pytest.warns(RuntimeWarning, match="divide by zero encountered in divide"):
        assert np.isinf((a / np.zeros((128, 1), np.float16)).values).all()
    with np.errstate(under="warn"), pytest.warns(RuntimeWarning, match="underflow encountered"):
        a * np.float16(1e-7) * np.float16(1e-3)


def test_factors_of_torch(rng):
    torch = pytest.importorskip("torch")
    a = s24.compress(rng.standard_normal((4, 8)).astype(np.float32), on_excess="prune")
    t = torch.rand(8)
    for got in (a * t, t * a):
        assert_is(got, a.toarray() * t.numpy())
    with pytest.raises(s24.ArgumentError, match="must not require a gradient"):
        a * t.requires_grad_()


def test_factors_of_jax(rng, jax_on_cpu):
    a = s24.compress(rng.standard_normal((4, 8)).astype(np.float32), on_excess="prune")
    x = jax_on_cpu.arange(8, dtype="float32")
    for got in (a * x, x * a):
        assert_is(got, np.where(a.toarray() == 0, 0, a.toarray() * np.asarray(x)))


def test_a_factor_for_each_row_quantises_to_fp8(rng):
    """As the guide does it: the scales go to `linear`."""
    w, x = rng.standard_normal((32, 64)).astype(np.float32), np.ones((3, 64), np.float32)
    a = s24.compress(w, on_excess="prune")
    scale = abs(a).max(axis=1, keepdims=True) / 448
    q = (a / scale).astype("float8_e4m3fn")
    y = s24.linear(x, q, scales=(1.0, scale.ravel()), dtype="float32")
    np.testing.assert_allclose(y, x @ a.toarray().T, rtol=0.1, atol=0.5)
