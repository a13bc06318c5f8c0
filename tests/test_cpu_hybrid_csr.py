"""Tiles made of a SciPy matrix row by row are those made of its dense rows."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import scipy.sparse
from hybrid_cases import DTYPES, KINDS, assert_same_bits, matrix

import sparse24 as s24
from sparse24.formats import hybrid_build
from sparse24.formats import hybrid_tiles as ht
from sparse24.kernels import hybrid_kinds

pytestmark = pytest.mark.stem("hybrid_tiles")


def tiles_of(w, dtype, kinds):
    source = hybrid_build.Source(w, dtype)
    turn = np.resize(np.asarray(kinds), int(np.prod(ht.grid_of(w.shape))))
    return hybrid_build.build(
        source, lambda held, spill: np.where(held == 0, hybrid_kinds.EMPTY, turn)
    )


def assert_same_tiles(m, dtype, kinds=KINDS):
    got, nnz = tiles_of(m, dtype, kinds)
    want, total = tiles_of(m.toarray(), dtype, kinds)
    assert nnz == total
    for name in ht.ARRAYS:
        one, other = getattr(got, name), getattr(want, name)
        assert one.dtype == other.dtype
        assert one.tobytes() == other.tobytes(), name


@pytest.fixture(autouse=True)
def nothing_becomes_dense(request, monkeypatch):
    """Whoever asks a sparse source for dense rows fails, but for the tests of duplicates."""
    bits = hybrid_build.Source.bits

    def of_dense(self, first, last):
        assert not self.sparse
        return bits(self, first, last)

    if "duplicates" not in request.node.name:
        monkeypatch.setattr(hybrid_build.Source, "bits", of_dense)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("zeros", [0.0, 0.4, 0.97])
@pytest.mark.parametrize("shape", [(64, 64), (130, 77), (1, 1), (3, 300), (200, 66)])
def test_every_kind_of_tile(rng, shape, zeros, dtype):
    w = matrix(rng, shape, zeros, "float32") if zeros else rng.standard_normal(shape)
    assert_same_tiles(scipy.sparse.csr_array(w), dtype)
    for kind in KINDS:
        assert_same_tiles(scipy.sparse.csr_array(w), dtype, [kind])


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr", "lil", "dok", "dia"])
def test_every_format_of_scipy(rng, form):
    m = scipy.sparse.random_array((130, 100), density=0.2, rng=rng, format=form)
    assert_same_tiles(m, "float32")


def test_stored_zeros_are_no_elements(rng):
    m = scipy.sparse.random_array((100, 100), density=0.4, rng=rng, format="csr")
    m.data[::3] = 0.0
    m.data[1::3] = -0.0
    m.data[::5] = np.nan
    h = s24.hybrid(m)
    assert h.nnz == np.count_nonzero(m.data)
    for kind in KINDS:
        assert_same_tiles(m, "float64", [kind])


def test_what_rounds_to_zero_is_no_element(rng):
    m = scipy.sparse.random_array((100, 100), density=0.4, rng=rng, format="csr")
    m.data *= np.where(rng.random(m.nnz) < 0.5, 100, 0.3)
    for dtype in ("int8", "float16"):
        assert_same_tiles(m * 1e-3 if dtype == "float16" else m, dtype)
    assert s24.hybrid(m, dtype="int8").nnz < m.nnz


def test_columns_out_of_order_and_wide_indices(rng):
    m = scipy.sparse.random_array((150, 90), density=0.5, rng=rng, format="csr")
    order = np.lexsort((rng.random(m.nnz), np.repeat(np.arange(150), np.diff(m.indptr))))
    mixed = scipy.sparse.csr_array((m.data[order], m.indices[order], m.indptr), m.shape)
    assert not mixed.has_sorted_indices
    before = mixed.indices.copy()
    mixed.indices, mixed.indptr = mixed.indices.astype(np.int64), mixed.indptr.astype(np.int64)
    assert_same_tiles(mixed, "float32")
    np.testing.assert_array_equal(mixed.indices, before)  # the caller's matrix is not sorted


def test_duplicates_are_added_up_as_scipy_does():
    data = np.array([1e16, 1.0, -1e16, 3.0])
    m = scipy.sparse.csr_array((data, np.array([2, 2, 2, 0]), np.array([0, 3, 4])), shape=(2, 70))
    assert_same_bits(s24.hybrid(m).toarray(), m.toarray())


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0), (64, 128)])
def test_matrices_without_elements(shape):
    h = s24.hybrid(scipy.sparse.csr_array(shape, dtype=np.float32))
    assert (h.shape, h.nnz) == (shape, 0)
    np.testing.assert_array_equal(h.toarray(), np.zeros(shape, np.float32))


def test_long_rows_of_few_elements():
    nodes = np.arange(300_000)
    ring = scipy.sparse.csr_array((np.ones(nodes.size, np.float32), (nodes, np.roll(nodes, 1))))
    bands = s24.hybrid(ring[:640])
    assert (bands.shape, bands.nnz) == ((640, 300_000), 640)
    x = np.arange(300_000, dtype=np.float32)
    np.testing.assert_array_equal(bands @ x, np.roll(x, 1)[:640])


@pytest.mark.parametrize("columns", ["moved", "duplicates"])
def test_columns_that_somebody_has_written_to_are_looked_at_again(rng, columns):
    m = scipy.sparse.random_array((150, 90), density=0.2, rng=rng, format="csr")
    assert m.has_canonical_format  # which SciPy keeps
    m.indices = rng.permutation(90)[m.indices] if columns == "moved" else m.indices // 2
    assert_same_tiles(m, "float64")


def test_empty_tiles_take_little_memory_while_a_matrix_is_built():
    diagonal = scipy.sparse.eye_array(60_000, dtype=np.float32, format="csr")
    s24.hybrid(diagonal[:64])
    tracemalloc.start()
    h = s24.hybrid(diagonal)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    tiles = h.kinds.size
    assert (h.nnz, tiles) == (60_000, 938**2)
    assert peak < 64 * tiles
