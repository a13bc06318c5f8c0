"""What products on the CPU have made of tiles, the non-zeros row by row, serves all else, too."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import scipy.sparse

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


@pytest.mark.parametrize("key", [slice(None, None, -1), IDX, np.arange(2000) % 2 == 0], ids=str)
def test_rows_of_a_graph_take_the_memory_of_what_they_hold(rng, key):
    w = scipy.sparse.random_array((2000, 200000), density=5e-4, rng=rng, dtype=np.float32).tocsr()
    h = s24.hybrid(w)
    h[key]
    tracemalloc.start()
    part = h[key]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (part.tocsr() != w[key]).nnz == 0
    assert peak < 1.5 * part.nbytes + 2**17


@pytest.mark.parametrize("rows", [[], [0], [4, 4, 1], range(5)])
@pytest.mark.parametrize("column", [np.uint32, np.int64])
def test_rows_of_any_numbers(rng, rows, column):
    w = rng.integers(0, 3, (5, 7)).astype(np.float32)
    w[1] = 0
    csr = scipy.sparse.csr_array(w)
    starts, bits = csr.indptr.astype(np.int64), csr.data.view(np.uint32)
    rows = np.array(rows, np.intp)
    starts, columns, bits = cpu_hybrid_held.rows_at(starts, csr.indices.astype(column), bits, rows)
    got = scipy.sparse.csr_array((bits.view(np.float32), columns, starts), shape=(rows.size, 7))
    np.testing.assert_array_equal(got.toarray(), w[rows])


def test_what_a_caller_writes_into_does_not_reach_later_products(multiplied):
    h, w = multiplied
    csr, part = h.tocsr(), h[:]
    csr.data[:], csr.indices[:] = 0, 0
    np.testing.assert_array_equal(part.toarray(), w)
    np.testing.assert_array_equal(h @ np.ones(400, w.dtype), w.sum(axis=1))
    np.testing.assert_array_equal(h.tocsr().toarray(), w)
