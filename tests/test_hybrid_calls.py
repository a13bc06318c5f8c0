"""How products of hybrid matrices are called."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import sparse24 as s24

M, K = 70, 80


@pytest.fixture
def weight(rng):
    return whole(rng, M, K)


def whole(rng, *shape, dtype=np.float16):
    return rng.integers(-3, 4, shape).astype(dtype)


def assert_same(got, want):
    np.testing.assert_array_equal(np.asarray(got), want)


def test_the_transposed_matrix_is_built_where_it_is_needed(rng, weight):
    h, x = s24.hybrid(weight.astype(np.float32)), whole(rng, 5, K, dtype=np.float32)
    held = h.nbytes
    turned = h.T
    assert turned.T is h
    assert turned.shape == (K, M)
    assert repr(turned) == repr(h).replace("70x80", "80x70")
    assert h.nbytes == held  # two views of the same tiles
    assert_same(x @ turned, x @ weight.T)
    assert_same(turned @ x[:, :M].T, weight.T @ x[:, :M].T)
    assert h.nbytes > held
    assert_same(turned.toarray(), weight.T)


@pytest.mark.parametrize("built", [False, True])
def test_a_transposed_matrix_outlives_the_other(rng, weight, built):
    h, x = s24.hybrid(weight.astype(np.float32)), whole(rng, 5, K, dtype=np.float32)
    turned, gone = h.T, weakref.ref(h)
    if built:
        turned.toarray()
    gc.disable()
    try:
        del h
        assert gone() is None  # at once: it holds memory of the GPU
    finally:
        gc.enable()
    assert_same(x @ turned, x @ weight.T)
    assert turned.T.T is turned
