"""NumPy's functions of single elements that keep zeros."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from arithmetic_cases import MAKERS, OF_HYBRID, SHAPE, dense_of

import sparse24 as s24
from sparse24 import _dtypes
from sparse24.formats.unary import KEEP_ZEROS
from sparse24.kernels import reference


def expected(ufunc, dense):
    """NumPy's result; where it does not compute in the type, that of float32 rounded once."""
    with np.errstate(all="ignore"):
        if dense.dtype.isbuiltin == 1:
            return ufunc(dense)
        return reference.to_dtype(ufunc(dense.astype(np.float32)), dense.dtype)


def assert_near(array, want):
    """The same but for the last bits, which differ between loops of NumPy's."""
    got = dense_of(array)
    assert got.dtype == want.dtype
    steps = {1: 0.25, 2: 2e-3 if want.dtype == np.float16 else 1e-2, 4: 1e-6, 8: 1e-14}
    near = 0 if want.dtype == np.int8 else steps[want.itemsize]
    numbers = got.astype(np.float64)
    np.testing.assert_allclose(numbers, want.astype(np.float64), rtol=near)
    assert not np.signbit(numbers[got == 0]).any()  # nor is -0.0 stored


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", _dtypes.NAMES)
@pytest.mark.parametrize("make", MAKERS)
def test_functions_of_elements_are_those_of_numpy(make, name, rng, xp):
    if make == "hybrid" and name not in OF_HYBRID:
        pytest.skip("hybrid matrices are not of fp8")
    w = (rng.standard_normal(SHAPE) * 8).astype(np.float32)
    for scale in (1, 0.1):  # also of numbers below 1, for those that are defined there
        a = MAKERS[make](w, name) if scale == 1 else MAKERS[make](w, name) / np.int8(10)
        dense = dense_of(a)
        a = a if xp is np else a.to_device("cuda")
        for ufunc, method in KEEP_ZEROS.items():
            got = ufunc(a)
            assert (type(got), got.device, got.shape) == (type(a), a.device, a.shape)
            assert_near(got, expected(ufunc, dense))
            assert_near(getattr(a, method)(), expected(ufunc, dense))
    assert getattr(got, "transposable", None) == getattr(a, "transposable", None)


def test_scipys_functions_of_elements_are_here():
    csr = scipy.sparse.eye_array(4).tocsr()
    theirs = {name for name in dir(csr) if isinstance(getattr(np, name, None), np.ufunc)}
    of_two = {"maximum", "minimum", "power", "multiply", "divide", "conjugate", "conj"}
    assert theirs - of_two <= {*KEEP_ZEROS.values()}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("make", MAKERS)
def test_what_is_not_finite_and_what_rounds_to_zero(make, xp):
    w = np.zeros(SHAPE, np.float32)
    w[:5, 1] = np.nan, np.inf, -np.inf, 8, -8
    w[5:, 6] = -0.3, 0.4, -0.2, 1e-30
    a = MAKERS[make](np.where(np.isnan(w), 7, w), "float32")
    a = a * np.where(np.isnan(w), np.float32(np.nan), np.float32(1))
    dense = dense_of(a)
    a = a if xp is np else a.to_device("cuda")
    for ufunc in KEEP_ZEROS:
        want = expected(ufunc, dense)
        assert_near(ufunc(a), want)
        assert ufunc(a).nnz == np.count_nonzero(want)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("copies", [1, 8])  # of which the many are looked up in a table
def test_every_number_of_fp8(name, copies, xp):
    bits = np.arange(256, dtype=np.uint8).view(_dtypes.TABLE[name].logical)
    a = s24.compress(np.concatenate([np.diag(bits)] * copies), on_excess="prune")
    dense = dense_of(a)
    a = a if xp is np else a.to_device("cuda")
    for ufunc in (np.square, np.rint, np.sign, np.sqrt):
        got, want = dense_of(ufunc(a)), expected(ufunc, dense)
        np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))


@pytest.mark.parametrize("make", MAKERS)
def test_numpys_warnings_are_kept_and_zeros_give_none(make):
    w = np.full(SHAPE, -7, np.float32)
    a = MAKERS[make](w, "float32")
    with pytest.warns(RuntimeWarning, match="invalid value"):
        np.sqrt(a)
    for ufunc in KEEP_ZEROS:
        ufunc(MAKERS[make](np.full(SHAPE, 6, np.float32), "float32") / np.float32(8))


@pytest.mark.parametrize("pattern", [(2, 4), (3, 6)])
@pytest.mark.parametrize("shape", [(2, 3, 5, 12), (0, 8), (3, 0), (2, 0, 8)])
def test_batches_and_empty_arrays(pattern, shape, rng, xp):
    a = s24.compress(rng.random(shape), pattern=pattern, on_excess="prune")
    a = a if xp is np else a.to_device("cuda")
    for b in (a, a.mT):
        assert_near(np.tanh(b), np.tanh(dense_of(b)))


def test_a_listed_matrix_does_not_become_dense(monkeypatch):
    places = np.arange(1000)
    csr = scipy.sparse.csr_array((places + 0.25, (places * 97, places)), shape=(100_000, 1000))
    h = s24.hybrid(csr)
    monkeypatch.setattr(s24.HybridArray, "toarray", None)
    for ufunc in (np.sqrt, np.rint):
        got, want = ufunc(h).tocsr(), ufunc(csr)
        want.eliminate_zeros()
        assert (got != want).nnz == 0
        assert got.nnz == want.nnz


def test_a_check_that_was_put_off_is_not_lost():
    with pytest.raises(s24.PatternError):
        np.sqrt(s24.compress(np.ones((4, 8)), check="deferred")).check()
