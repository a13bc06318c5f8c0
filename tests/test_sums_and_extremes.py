"""Sums and extremes of every format, as those of the dense array."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pytest
from arithmetic_cases import MAKERS, OF_HYBRID, SHAPE, dense_of

import sparse24 as s24
from sparse24 import _arrays


@pytest.mark.parametrize("name", OF_HYBRID)
@pytest.mark.parametrize("make", MAKERS)
def test_reductions_are_those_of_the_dense_array(make, name, rng, xp):
    a = MAKERS[make]((rng.standard_normal(SHAPE) * 8).astype(np.float32), name)
    dense = dense_of(a)
    dense = dense.astype(np.float32) if name == "bfloat16" else dense
    a = a if xp is np else a.to_device("cuda")
    near = {"rtol": 2e-3, "atol": 0.1 if name == "float16" else 1e-2}  # sums of 162, some above 60
    for function in ("sum", "mean", "max", "min"):
        for axis, keep in ((None, False), (0, False), (-1, True), ((0, 1), False)):
            want = getattr(dense, function)(axis=axis, keepdims=keep)
            got = getattr(a, function)(axis=axis, keepdims=keep)
            assert (got.shape, got.dtype) == (want.shape, want.dtype)
            np.testing.assert_allclose(_arrays.to_numpy(got), want, **near)
    for numpys in (partial(np.sum, axis=1), np.max, np.mean, partial(np.amin, axis=0)):
        np.testing.assert_allclose(_arrays.to_numpy(numpys(a)), numpys(dense), **near)
    assert a.sum(dtype=np.float64).dtype == np.float64
    for function in ("sum", "mean"):  # cupy.sum and cupy.mean name no argument
        got = getattr(xp, function)(a, -1, None, None, True)
        np.testing.assert_allclose(
            _arrays.to_numpy(got), getattr(dense, function)(-1, None, None, True), **near
        )


@pytest.mark.parametrize("pattern", [(2, 4), (5, 8)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_whole_rows_are_reduced_without_their_zeros(pattern, dtype, rng, monkeypatch):
    dense = s24.prune(rng.integers(-9, -2, (3, 20, 30)).astype(np.float32), pattern=pattern)
    if dtype != "int8":
        dense[0, 0, np.flatnonzero(dense[0, 0])[:2]] = np.nan, np.inf
    a = s24.compress(dense, pattern=pattern).astype(dtype)
    wanted = dense.astype(np.int8) if dtype == "int8" else dense
    monkeypatch.setattr(type(a), "toarray", None)
    for b, axis, every in ((a, -1, (0, 1, 2)), (a.mT, -2, (0, 1, 2)), (a[1], 1, None)):
        want = wanted[1] if b.ndim == 2 else wanted.swapaxes(-1, -2) if axis == -2 else wanted
        for function in ("sum", "mean", "max", "min"):
            for along in (axis, every, None):
                got = getattr(b, function)(axis=along, keepdims=True)
                np.testing.assert_allclose(
                    got, getattr(want, function)(axis=along, keepdims=True), rtol=1e-5
                )
    assert a[1].max() == 0  # of negative elements


@pytest.mark.parametrize("shape", [(3, 2), (2, 3), (4, 1), (1, 2), (1, 3), (3, 1, 2)])
def test_rows_without_zeros_have_the_extremes_of_their_elements(shape):
    a = s24.compress(np.full(shape, -3.0), on_excess="prune")
    for b, axis in itertools.product((a, a.mT), (-1, -2, None)):
        assert (b.max(axis=axis) == b.toarray().max(axis=axis)).all()
    for empty in (s24.compress(np.ones((0, 8))), s24.compress(np.ones((8, 0)))):
        with pytest.raises(ValueError, match="zero-size array"):
            empty.max()
