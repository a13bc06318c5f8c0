"""What products on the CPU have made of tiles, the non-zeros row by row, serves all else, too."""

from __future__ import annotations

import numpy as np
import pytest

import sparse24 as s24
from sparse24.formats import hybrid_build
from sparse24.kernels import cpu_hybrid_held

IDX = np.array([7, 190, 3, 3, -1])
KEYS = [
    IDX, slice(5, 290), slice(None, None, -2), np.arange(300) % 3 == 0,
    (slice(None), slice(9, 390)), (slice(2, None), IDX), np.ix_(IDX, IDX), (..., slice(1, None)),
]  # fmt: skip


def numbers(rng, name, share=0.06):
    w = rng.integers(1, 9, (300, 400)) * (rng.random((300, 400)) < share)
    return w.astype(name)


def refuse(*_):
    raise AssertionError("a part was found anew that was ready")


@pytest.fixture(params=["float32", "float64"])
def multiplied(request, rng):
    """A matrix in tiles that has been multiplied, and its dense form."""
    w = numbers(rng, request.param)
    h = s24.hybrid(w)
    np.testing.assert_array_equal(h @ np.ones(400, w.dtype), w.sum(axis=1))
    return h, w


def test_sums_and_conversions_walk_no_tiles_again(multiplied, monkeypatch):
    h, w = multiplied
    monkeypatch.setattr(cpu_hybrid_held, "held", refuse)
    for axis in (0, 1):
        np.testing.assert_array_equal(h.sum(axis=axis), w.sum(axis=axis))
        np.testing.assert_array_equal(h.max(axis=axis), w.max(axis=axis))
    np.testing.assert_array_equal(h.tocsr().toarray(), w)
    np.testing.assert_array_equal(h.T.tocsr().toarray(), w.T)
    np.testing.assert_array_equal(h.T @ np.ones(300, w.dtype), w.sum(axis=0))


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_parts_walk_no_tiles_again(multiplied, key, monkeypatch):
    h, w = multiplied
    with monkeypatch.context() as patched:
        patched.setattr(cpu_hybrid_held, "held", refuse)
        patched.setattr(hybrid_build, "decode", refuse)
        part = h[key]
    np.testing.assert_array_equal(part.toarray(), w[key])


@pytest.mark.parametrize("key", KEYS, ids=str)
@pytest.mark.parametrize("name", ["float16", "float32", "int8"])
def test_parts_of_mostly_zeros_make_nothing_dense(rng, name, key, monkeypatch):
    w = numbers(rng, name)
    h = s24.hybrid(w)
    h @ np.ones(400, name)  # float16 and int8 are widened for products
    with monkeypatch.context() as patched:
        patched.setattr(hybrid_build, "decode", refuse)
        part = h[key]
    np.testing.assert_array_equal(part.toarray(), w[key])


def test_what_a_caller_writes_into_does_not_reach_later_products(multiplied):
    h, w = multiplied
    csr, part = h.tocsr(), h[:]
    csr.data[:], csr.indices[:] = 0, 0
    np.testing.assert_array_equal(part.toarray(), w)
    np.testing.assert_array_equal(h @ np.ones(400, w.dtype), w.sum(axis=1))
    np.testing.assert_array_equal(h.tocsr().toarray(), w)
