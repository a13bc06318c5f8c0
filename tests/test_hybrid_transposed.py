"""A hybrid matrix and its transpose: what each builds, keeps and waits for."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import sparse24 as s24
from sparse24 import _arrays
from sparse24._errors import ShapeError
from sparse24._hybrid import choice as hybrid_choice

M, K = 70, 80


@pytest.fixture
def weight(rng):
    return rng.integers(-3, 4, (M, K)).astype(np.float32)


@pytest.fixture
def x(rng):
    return rng.integers(-3, 4, (5, K)).astype(np.float32)


def test_the_transposed_matrix_is_built_where_it_is_needed(weight, x):
    h = s24.hybrid(weight)
    held = h.nbytes
    turned = h.T
    assert turned.T is h
    assert turned.shape == (K, M)
    assert repr(turned) == repr(h).replace("70x80", "80x70")
    assert h.nbytes == held  # two views of the same tiles
    np.testing.assert_array_equal(x @ turned, x @ weight.T)
    np.testing.assert_array_equal(turned @ x[:, :M].T, weight.T @ x[:, :M].T)
    assert h.nbytes > held
    np.testing.assert_array_equal(turned.toarray(), weight.T)


def test_layouts_are_waited_for_once(weight, monkeypatch):
    """The next product may run on another stream, which does not wait for the first one's."""
    h, settled = s24.hybrid(weight), []
    monkeypatch.setattr(_arrays, "settle", settled.append)
    for _ in range(2):
        h.prepared("a layout", lambda: np.ones(3))
        h.prepared("a mark", hybrid_choice.Ran)
    assert len(settled) == 1
    turned = h.T
    before = len(settled)
    for _ in range(2):
        assert turned.tiles.shape == weight.shape[::-1]
    assert len(settled) == before + 1


@pytest.mark.parametrize("built", [False, True])
def test_a_transposed_matrix_outlives_the_other(weight, x, built):
    h = s24.hybrid(weight)
    turned, gone = h.T, weakref.ref(h)
    if built:
        turned.toarray()
    gc.disable()
    try:
        del h
        assert gone() is None  # at once: it holds memory of the GPU
    finally:
        gc.enable()
    np.testing.assert_array_equal(x @ turned, x @ weight.T)
    assert turned.T.T is turned


def test_messages_name_the_operand(weight):
    h = s24.hybrid(weight)
    for x in (np.ones((2, 3), np.float16), np.ones(3, np.float16)):
        with pytest.raises(ShapeError, match=r"x must have shape .* \(..., n, k\) with k = 80"):
            x @ h.T


def test_messages_say_which_operand_fits_transposed(weight):
    h = s24.hybrid(weight)
    m, k = h.shape
    tokens = np.ones((3, k), np.float16)
    for product in (lambda: tokens @ h, lambda: h @ tokens):
        with pytest.raises(ShapeError, match=r"; the second one fits transposed, as in x @ A\.T"):
            product()
    for product in (lambda: h.T @ tokens.T, lambda: h @ np.ones((m, 3), np.float16)):
        with pytest.raises(ShapeError, match=r"; the first one fits transposed, as in A\.T @ x"):
            product()
