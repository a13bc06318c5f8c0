"""Sums and extremes of sparse arrays with the options of NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

import sparse24 as s24
from sparse24 import _dtypes

MAKERS = {
    "2:4": lambda w: s24.compress(w, on_excess="prune"),
    "n:m": lambda w: s24.compress(w, pattern=(4, 8), on_excess="prune"),
    "hybrid": lambda w: s24.hybrid(np.where(np.arange(w.size).reshape(w.shape) % 7, 0, w)),
}


@pytest.mark.parametrize("out", ["int8", "int64", "float16", "float64"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8"])
@pytest.mark.parametrize("make", MAKERS)
def test_sums_lose_their_fractions_once_they_are_complete(make, dtype, out, rng):
    """As in NumPy, where the sum is one of fractions also if `out` holds whole numbers."""
    a = MAKERS[make](rng.uniform(0, 2, (20, 32)).astype(dtype))
    dense = a.toarray()
    for axis in (0, 1, None):
        for function in ("sum", "mean"):
            shape = dense.sum(axis=axis).shape
            got, want = np.zeros(shape, out), np.zeros(shape, out)
            assert getattr(a, function)(axis=axis, out=got) is got
            getattr(dense, function)(axis=axis, out=want)
            np.testing.assert_allclose(got, want, rtol=2e-3)


@pytest.mark.parametrize("out", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("make", MAKERS)
def test_sums_of_halves_go_to_an_out_of_a_type_without_a_common_one(make, out, rng):
    """NumPy names none of float16 and these, but stores the sums of the dense array."""
    a = MAKERS[make](rng.integers(0, 2, (20, 32)).astype(np.float16))
    for axis in (0, 1, None):
        want = a.toarray().sum(axis=axis).astype(np.float32)
        got = np.zeros(want.shape, _dtypes.TABLE[out].logical)
        assert a.sum(axis=axis, out=got) is got
        np.testing.assert_array_equal(got, want.astype(got.dtype))


@pytest.mark.parametrize("function", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("make", MAKERS)
def test_what_does_not_fit_is_refused_as_by_numpy(make, function, rng):
    a = MAKERS[make](rng.standard_normal((20, 32)))
    for options in ({"axis": 2}, {"axis": 1, "out": [0.0] * 20}, {"axis": 1, "out": np.zeros(19)}):
        errors = []
        for array in (a.toarray(), a):
            with pytest.raises((TypeError, ValueError)) as raised:
                getattr(array, function)(**options)
            errors.append(raised.type)
        assert errors[0] is errors[1]


@pytest.mark.parametrize("make", MAKERS)
def test_a_mean_of_halves_is_narrow_unless_a_type_is_named(make, rng):
    a = MAKERS[make](rng.uniform(0, 2, (20, 32)).astype(np.float16))
    for dtype in (None, np.float32, np.float64):
        for axis in (0, 1, None):
            got, want = (x.mean(axis=axis, dtype=dtype) for x in (a, a.toarray()))
            assert got.dtype == want.dtype
            np.testing.assert_allclose(got, want, rtol=1e-3 if dtype is None else 1e-6)
