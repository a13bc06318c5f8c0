"""`numpy.linalg.norm`, `count_nonzero` and `copy` of every format."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from arithmetic_cases import MAKERS, OF_HYBRID, SHAPE, dense_of

import sparse24 as s24
from sparse24 import _arrays, _dtypes

OF_VECTORS = (None, 1, 2, np.inf, -np.inf)
OF_MATRICES = (None, "fro", 1, -1, np.inf, -np.inf)
BOTH = (None, (0, 1), (-1, 0))
CASES = [(ord, axis) for ord in OF_MATRICES for axis in BOTH]
CASES += [(ord, axis) for ord in OF_VECTORS for axis in (0, 1, -1, (0,))]


def numbers(dense):
    """In a type that NumPy's norms add up exactly enough."""
    return dense.astype(np.float64 if dense.dtype in (np.int8, np.float64) else np.float32)


def assert_norms(a, dense, cases):
    wide = numbers(dense)
    dtype = np.float16 if dense.dtype == np.float16 else wide.dtype
    near = 1e-3 if dtype == np.float16 else 1e-5
    for ord, axis in cases:
        for keep in (False, True):
            want = np.linalg.norm(wide, ord, axis, keep)
            got = np.linalg.norm(a, ord=ord, axis=axis, keepdims=keep)
            assert (got.shape, got.dtype) == (want.shape, dtype)
            np.testing.assert_allclose(_arrays.to_numpy(got), want, rtol=near)


@pytest.mark.parametrize("name", _dtypes.NAMES)
@pytest.mark.parametrize("make", MAKERS)
def test_norms_are_those_of_the_dense_array(make, name, rng, xp):
    if make == "hybrid" and name not in OF_HYBRID:
        pytest.skip("hybrid matrices are not of fp8")
    a = MAKERS[make]((rng.standard_normal(SHAPE) * 8).astype(np.float32), name)
    dense = dense_of(a)
    assert_norms(a if xp is np else a.to_device("cuda"), dense, CASES)


def test_squares_of_halves_and_the_least_int8_do_not_overflow(xp):
    w = np.array([[300, 0, 400, 0]])
    halves = s24.compress(xp.asarray(w.astype(np.float16)))
    assert float(np.linalg.norm(halves)) == 500
    least = s24.compress(xp.asarray(np.array([[-128, 0, 0, 0]], np.int8)))
    assert float(np.linalg.norm(least, 1)) == 128


@pytest.mark.parametrize("pattern", [(2, 4), (3, 6)])
def test_norms_of_batches(pattern, rng, xp):
    a = s24.compress(rng.standard_normal((3, 8, 18)), pattern=pattern, on_excess="prune")
    a = a if xp is np else a.to_device("cuda")
    for b in (a, a.mT):
        dense = dense_of(b)
        cases = [(ord, axis) for ord in OF_MATRICES for axis in ((1, 2), (-1, -2), (0, 2))]
        cases += [(ord, axis) for ord in OF_VECTORS for axis in (0, 1, -1)]
        assert_norms(b, dense, [(None, None), *cases])
        for ord in ("fro", 1, np.inf):
            with pytest.raises(s24.ArgumentError, match=r"must be None with .* and axis=None, got"):
                np.linalg.norm(b, ord)


@pytest.mark.parametrize("make", [s24.compress, s24.hybrid])
@pytest.mark.parametrize("shape", [(0, 8), (3, 0)])
def test_norms_of_no_elements(make, shape, xp):
    a = make(xp.zeros(shape, np.float32))
    for ord, axis in CASES:
        try:
            want = np.linalg.norm(np.zeros(shape, np.float32), ord, axis)
        except ValueError:  # an extreme of nothing
            with pytest.raises(ValueError, match="zero-size array"):
                np.linalg.norm(a, ord, axis)
            continue
        np.testing.assert_array_equal(_arrays.to_numpy(np.linalg.norm(a, ord, axis)), want)
        assert np.linalg.norm(a, ord, axis).dtype == np.float32


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "int8"])
@pytest.mark.parametrize("make", MAKERS)
def test_the_norm_of_all_elements_makes_nothing_dense(make, name, rng, monkeypatch):
    a = MAKERS[make]((rng.standard_normal(SHAPE) * 8).astype(np.float32), name)
    want = np.linalg.norm(numbers(dense_of(a)))
    monkeypatch.setattr(type(a), "toarray", None)
    monkeypatch.setattr(type(a), "astype", None)
    for b in (a, a.T):
        got = float(np.linalg.norm(b))
        np.testing.assert_allclose(got, want, rtol=1e-3 if name == "float16" else 1e-6)


def test_norms_of_a_matrix_of_which_rows_are_listed():
    csr = scipy.sparse.random_array((3000, 50_000), density=1e-4, rng=0)
    h = s24.hybrid(csr)
    for ord, axis in ((None, None), (1, None), (np.inf, None), (None, 1), (1, 0)):
        np.testing.assert_allclose(
            np.linalg.norm(h, ord, axis), scipy.sparse.linalg.norm(csr, ord, axis)
        )


@pytest.mark.parametrize("make", MAKERS)
def test_what_norms_do_not_take_is_named(make):
    a = MAKERS[make](np.full(SHAPE, 6, np.float32), "float32")
    for ord, axis, words in (
        (2, None, r"ord of numpy\.linalg\.norm must be None or 'fro' or .*, got 2; .*toarray"),
        ("nuc", (0, 1), "got 'nuc'"),
        (3, 0, "must be None or 2 or 1 or inf or -inf with .* and axis=0, got 3"),
        ("fro", 0, "got 'fro'"),
        ([1], None, r"got \[1\]"),
        (None, 2, r"axis must be in \[-2, 2\), got 2"),
        (None, "0", "axis must be an integer, got '0'"),
        (None, (0, 0), r"must be None, an axis, or two of them, got \(0, 0\)"),
        (None, (), r"must be None, an axis, or two of them, got \(\)"),
    ):
        with pytest.raises(s24.ArgumentError, match=words):
            np.linalg.norm(a, ord, axis)


@pytest.mark.parametrize("make", MAKERS)
def test_non_zeros_are_counted(make, rng, xp):
    a = MAKERS[make]((rng.standard_normal(SHAPE) * 8).astype(np.float32), "int8")
    a = a if xp is np else a.to_device("cuda")
    assert np.count_nonzero(a) == np.count_nonzero(dense_of(a)) == a.nnz
    for options, name in (({"axis": 0}, "axis"), ({"keepdims": True}, "keepdims")):
        with pytest.raises(s24.ArgumentError, match=rf"takes no {name}= .*A\.mask\(\)\.sum\("):
            np.count_nonzero(a, **options)
    with pytest.raises(s24.ArgumentError, match="keepdims must be one of True, False, got"):
        np.count_nonzero(a, keepdims=np.ones(2))


@pytest.mark.parametrize("make", MAKERS)
def test_copies_share_nothing(make, rng, xp):
    a = MAKERS[make]((rng.standard_normal(SHAPE) * 8).astype(np.float32), "float32")
    a = a if xp is np else a.to_device("cuda")
    for b in (np.copy(a), np.copy(a, subok=True)):
        assert b is not a
        assert (type(b), b.device) == (type(a), a.device)
        np.testing.assert_array_equal(dense_of(b), dense_of(a))
        for ours, theirs in zip(a._elements(), b._elements(), strict=True):
            assert not xp.may_share_memory(ours, theirs)
    with pytest.raises(s24.ArgumentError, match=r"takes no order='F' .*copy its \.toarray\(\)"):
        np.copy(a, order="F")
    with pytest.raises(s24.ArgumentError, match="takes no order=ndarray of shape"):
        np.copy(a, order=np.ones(2))
