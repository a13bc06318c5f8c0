"""Parts, joins and factors of listed matrices: memory and work beside what they return."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from listed_cases import graph

import sparse24 as s24
from sparse24.formats import hybrid_arithmetic, hybrid_reductions
from sparse24.kernels import cpu_hybrid_held

SIZE, ELEMENTS = 20_000, 150_000  # eight bytes each, four of the value and four of the column

# Bytes for each element of the matrix, with its rows' starts; half of them are in some parts.
MADE = {
    "half of the rows": (lambda h: h[: SIZE // 2], 10),
    "half of the columns": (lambda h: h[:, : SIZE // 2], 25),
    "every second row": (lambda h: h[::2], 25),
    "rows in another order": (lambda h: h[np.arange(SIZE)[::-1]], 32),
    "columns in another order": (lambda h: h[:, np.arange(SIZE)[::-1]], 36),
    "below one another": (lambda h: np.concatenate([h, h]), 25),
    "side by side": (lambda h: np.concatenate([h, h], axis=1), 42),
}


@pytest.mark.parametrize("what", MADE)
def test_parts_and_joins_take_little_memory_beside_what_they_return(rng, what):
    make, most = MADE[what]
    m = graph(rng, (SIZE, SIZE), ELEMENTS)
    h = s24.hybrid(m)
    make(h)
    tracemalloc.start()
    made = make(h)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert made.stored.is_listed
    assert peak < most * m.nnz


def test_a_few_rows_take_memory_for_these_alone(rng):
    size = 2 * SIZE
    h = s24.hybrid(graph(rng, (size, size), 10 * ELEMENTS))
    few, others = rng.permutation(size)[:50], rng.permutation(size)[:50]
    assert h.stored.is_listed
    for key in (few, (few, slice(None)), np.ix_(few, others)):
        h[key]
        tracemalloc.start()
        h[key]
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 20 * size  # numbers of rows or columns; those of all elements take 12 MB


def test_a_part_by_rows_and_columns_does_not_become_dense(rng):
    m = graph(rng, (1 << 20, 1 << 20), ELEMENTS)
    h = s24.hybrid(m)
    rows, columns = rng.permutation(1 << 20)[: 1 << 19], rng.permutation(1 << 20)[: 1 << 19]
    want = m[rows][:, columns]
    for key in (
        np.ix_(rows, columns),
        (rows[:, None], columns),
        (rows[:, None], columns - h.shape[1]),
    ):
        part = h[key]
        assert part.stored.is_listed
        assert part.shape == want.shape
        assert part.nnz == want.nnz > 0
        assert (part.tocsr() != want).nnz == 0


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int8"])
def test_sums_of_columns_do_not_order_elements_by_columns(rng, dtype, monkeypatch):
    monkeypatch.setattr(cpu_hybrid_held, "turned", None)
    monkeypatch.setattr(hybrid_reductions, "_AT_A_TIME", 100)  # so that parts are added up
    m = graph(rng, (3000, 40), 8000)
    for given in (m, m.toarray(), graph(rng)):  # tiles, full or not, and rows
        h = s24.hybrid(given, dtype=dtype)
        w = h.toarray().astype(np.float64)
        for a, axis in ((h, 0), (h.T, 1)):
            sums = a.sum(axis=axis)
            assert sums.dtype == {"int8": np.int64, "float64": np.float64}.get(dtype, np.float32)
            np.testing.assert_array_equal(sums, w.sum(axis=0))
            np.testing.assert_array_equal(a.sum(axis, np.float32, keepdims=True).ravel(), sums)
            np.testing.assert_allclose(a.mean(axis=axis), w.mean(axis=0), rtol=1e-6)


def test_sums_of_columns_take_little_memory_beside_the_rows(rng):
    w = rng.random((3000, 2000), np.float32)
    h = s24.hybrid(np.where(w < 0.1, w, 0))
    h.sum(axis=0)
    tracemalloc.start()
    h.sum(axis=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 14 * h.nnz  # in CSR they take 8 bytes an element


def test_sums_of_columns_of_float32_are_rounded_once():
    tenths = np.full((1 << 17, 1), 0.1, np.float32) * [1, 0, 0, 0, 0, 0, 0, 0]
    h = s24.hybrid(tenths.astype(np.float32))
    assert h.sum(axis=0)[0] == np.float32(h.toarray().sum(axis=0, dtype=np.float64)[0])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
@pytest.mark.parametrize("shape", [(700, 900), (70, 90)])  # rows, and tiles
def test_a_factor_with_elements_in_the_same_places_is_not_looked_up(rng, dtype, shape, monkeypatch):
    h = s24.hybrid(graph(rng, shape), dtype=dtype)
    w, other = h.toarray(), graph(rng, shape)
    factors = [h, h.tocsr(), (h * 3).tocsc()]
    monkeypatch.setattr(hybrid_arithmetic, "_numbered", None)
    for factor in factors:
        want = (w * factor.toarray()).astype(np.float64)
        np.testing.assert_array_equal((h * factor).toarray().astype(np.float64), want)
    with pytest.raises(TypeError, match="not callable"):
        h * other


@pytest.mark.parametrize("same", [True, False])
def test_a_sparse_factor_takes_little_memory(rng, same):
    m = graph(rng, (SIZE, SIZE), ELEMENTS)
    h, other = s24.hybrid(m), m if same else graph(rng, (SIZE, SIZE), ELEMENTS)
    h * other
    tracemalloc.start()
    made = h * other
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < (34 if same else 60) * m.nnz
    assert (made.tocsr() != m.multiply(other)).nnz == 0


def test_a_factor_of_rows_or_columns_is_not_looked_up_in_pairs_of_places(rng, monkeypatch):
    m = graph(rng)
    h, w = s24.hybrid(m), m.toarray()
    row, column = (rng.integers(1, 5, shape).astype(np.float32) for shape in ((1, 900), (700, 1)))
    monkeypatch.setattr(hybrid_arithmetic, "row_numbers", None)
    for factor in (row, column, row[0]):
        np.testing.assert_array_equal((h * factor).toarray(), w * factor)
    monkeypatch.undo()
    both = row * column
    np.testing.assert_array_equal((h * both).toarray(), w * both)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0)])
def test_factors_of_rows_and_columns_of_an_empty_matrix(shape):
    h = s24.hybrid(graph(np.random.default_rng(0), (64, 64), 4))[: shape[0], : shape[1]]
    for factor in (np.ones((1, shape[1]), np.float32), np.ones((shape[0], 1), np.float32)):
        assert (h * factor).shape == shape
