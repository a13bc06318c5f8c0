"""Tiles made of a sparse matrix row by row are those made of its dense rows."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import scipy.sparse
from hybrid_cases import DTYPES, KINDS, assert_same_bits, matrix

import sparse24 as s24
from sparse24 import _arrays
from sparse24.formats import hybrid_build, hybrid_source
from sparse24.formats import hybrid_tiles as ht
from sparse24.kernels import hybrid_kinds

pytestmark = pytest.mark.stem("hybrid_fill")


def tiles_of(w, dtype, kinds):
    source = hybrid_source.Source(w, dtype)
    turn = np.resize(np.asarray(kinds), int(np.prod(ht.grid_of(w.shape))))

    def choose(held, spill):
        return np.where(held == 0, hybrid_kinds.EMPTY, turn)

    stored, nnz = hybrid_build.build(source, choose)
    return hybrid_build.tiles_of(stored, choose) if stored.is_listed else stored, nnz


def on_device(xp, m):
    """The SciPy matrix as one of the library that belongs to `xp`."""
    if xp is np:
        return m
    from cupyx.scipy import sparse as cupyx_sparse

    return getattr(cupyx_sparse, f"{m.format}_matrix")(m)


def assert_same_tiles(m, dtype, kinds=KINDS, xp=np):
    got, nnz = tiles_of(on_device(xp, m), dtype, kinds)
    got = got.to_numpy()
    want, total = tiles_of(m.toarray(), dtype, kinds)
    assert nnz == total
    for name in ht.ARRAYS:
        one, other = getattr(got, name), getattr(want, name)
        assert one.dtype == other.dtype
        assert one.tobytes() == other.tobytes(), name


@pytest.fixture(autouse=True)
def nothing_becomes_dense(monkeypatch):
    """Whoever asks a sparse source for dense rows fails."""
    bits = hybrid_source.Source.bits

    def of_dense(self, first, last):
        assert not self.sparse
        return bits(self, first, last)

    monkeypatch.setattr(hybrid_source.Source, "bits", of_dense)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("zeros", [0.0, 0.4, 0.97])
@pytest.mark.parametrize("shape", [(64, 64), (130, 77), (1, 1), (3, 300), (200, 66)])
def test_every_kind_of_tile(rng, xp, shape, zeros, dtype):
    w = matrix(rng, shape, zeros, "float32") if zeros else rng.standard_normal(shape)
    for kinds in (KINDS, *([kind] for kind in KINDS)):
        assert_same_tiles(scipy.sparse.csr_array(w), dtype, kinds, xp)


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr", "lil", "dok", "dia"])
def test_every_format_of_scipy(rng, form):
    m = scipy.sparse.random_array((130, 100), density=0.2, rng=rng, format=form)
    assert_same_tiles(m, "float32")


@pytest.mark.gpu
@pytest.mark.parametrize("form", ["csr", "csc", "coo", "dia"])
def test_every_format_of_cupyx(rng, form):
    cupy = pytest.importorskip("cupy")
    m = scipy.sparse.random_array((130, 100), density=0.2, rng=rng, format=form)
    assert_same_tiles(m, "float32", xp=cupy)


def test_stored_zeros_are_no_elements(rng, xp):
    m = scipy.sparse.random_array((100, 100), density=0.4, rng=rng, format="csr")
    m.data[::3] = 0.0
    m.data[1::3] = -0.0
    m.data[::5] = np.nan
    h = s24.hybrid(on_device(xp, m))
    assert h.nnz == np.count_nonzero(m.data)
    for kind in KINDS:
        assert_same_tiles(m, "float64", [kind], xp)


def test_what_rounds_to_zero_is_no_element(rng, xp):
    m = scipy.sparse.random_array((100, 100), density=0.4, rng=rng, format="csr")
    m.data *= np.where(rng.random(m.nnz) < 0.5, 100, 0.3)
    for dtype in ("int8", "float16"):
        assert_same_tiles(m * 1e-3 if dtype == "float16" else m, dtype, xp=xp)
    assert s24.hybrid(on_device(xp, m), dtype="int8").nnz < m.nnz


def test_columns_out_of_order_and_wide_indices(rng, xp):
    m = scipy.sparse.random_array((150, 90), density=0.5, rng=rng, format="csr")
    order = np.lexsort((rng.random(m.nnz), np.repeat(np.arange(150), np.diff(m.indptr))))
    mixed = scipy.sparse.csr_array((m.data[order], m.indices[order], m.indptr), m.shape)
    assert not mixed.has_sorted_indices
    mixed.indices, mixed.indptr = mixed.indices.astype(np.int64), mixed.indptr.astype(np.int64)
    given = on_device(xp, mixed)
    assert_same_bits(_arrays.to_numpy(s24.hybrid(given).toarray()), m.toarray())
    unsorted = _arrays.to_numpy(given.indices)
    np.testing.assert_array_equal(unsorted, m.indices[order])  # the caller's matrix stays as it is
    assert_same_tiles(mixed, "float32", xp=xp)


def test_duplicates_are_added_up_as_scipy_does():
    data = np.array([1e16, 1.0, -1e16, 3.0])
    m = scipy.sparse.csr_array((data, np.array([2, 2, 2, 0]), np.array([0, 3, 4])), shape=(2, 70))
    assert_same_bits(s24.hybrid(m).toarray(), m.toarray())
    data, columns = np.tile([1e16, 1.0, -1e16, 3.0], 100), np.tile([9, 2, 9, 9, 5, 2], 100)[:400]
    m = scipy.sparse.csr_array((data, columns, np.array([0, 400])), shape=(1, 70))
    assert_same_bits(s24.hybrid(m).toarray(), m.toarray())
    np.testing.assert_array_equal(m.indices, columns)  # the caller's matrix stays as it is


@pytest.mark.parametrize("dtype", ["float32", "float64", "bool"])
def test_duplicates_are_added_up(rng, xp, dtype):
    places = rng.integers(0, 90, (2, 4000))
    data = rng.integers(1, 5, 4000).astype(dtype)
    m = scipy.sparse.coo_array((data, places), shape=(90, 90))
    given = on_device(xp, m)
    assert_same_bits(_arrays.to_numpy(s24.hybrid(given, dtype="float32").toarray()),
                     m.toarray().astype(np.float32))  # fmt: skip
    assert given.nnz == 4000


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0), (64, 128)])
def test_matrices_without_elements(xp, shape):
    h = s24.hybrid(on_device(xp, scipy.sparse.csr_array(shape, dtype=np.float32)))
    assert (h.shape, h.nnz) == (shape, 0)
    np.testing.assert_array_equal(_arrays.to_numpy(h.toarray()), np.zeros(shape, np.float32))


def test_a_matrix_of_many_more_tiles_than_elements(rng, xp):
    places = rng.integers(0, 20_000, (2, 30_000))
    m = scipy.sparse.coo_array((np.ones(30_000, np.float32), places), shape=(20_000, 20_000))
    h = s24.hybrid(on_device(xp, m.tocsr()))
    x = np.arange(20_000, dtype=np.float32) % 7
    np.testing.assert_array_equal(_arrays.to_numpy(h @ xp.asarray(x)), m @ x)


def test_long_rows_of_few_elements():
    nodes = np.arange(300_000)
    ring = scipy.sparse.csr_array((np.ones(nodes.size, np.float32), (nodes, np.roll(nodes, 1))))
    bands = s24.hybrid(ring[:640])
    assert (bands.shape, bands.nnz) == ((640, 300_000), 640)
    x = np.arange(300_000, dtype=np.float32)
    np.testing.assert_array_equal(bands @ x, np.roll(x, 1)[:640])


@pytest.mark.parametrize("columns", ["moved", "duplicates"])
def test_columns_that_somebody_has_written_to_are_looked_at_again(rng, xp, columns):
    m = scipy.sparse.random_array((150, 90), density=0.2, rng=rng, format="csr")
    given = on_device(xp, m)
    assert given.has_canonical_format  # which SciPy and cupyx keep
    written = rng.permutation(90)[m.indices] if columns == "moved" else m.indices // 2
    given.indices = xp.asarray(written)
    want = scipy.sparse.csr_array((m.data, written, m.indptr), m.shape).toarray()
    assert_same_bits(_arrays.to_numpy(s24.hybrid(given).toarray()), want)


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
