"""Sparse matrices with hardly any elements, of which rows are stored and no tiles."""

import copy
import pickle

import numpy as np
import pytest
import scipy.sparse
from hybrid_cases import DTYPES
from listed_cases import dense, graph, on

import sparse24 as s24
from sparse24 import _dtypes
from sparse24._arrays import to_numpy
from sparse24._hybrid import room
from sparse24.formats import hybrid_build
from sparse24.formats import hybrid_tiles as ht
from sparse24.formats.hybrid import HybridArray


@pytest.fixture
def pair(rng, xp):
    """A listed matrix, and its dense form in NumPy."""
    m = graph(rng)
    return s24.hybrid(on(xp, m)), m.toarray()


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_rows_are_stored_and_nothing_else(rng, xp, dtype):
    m = graph(rng, dtype=dtype)
    h, want = s24.hybrid(on(xp, m), dtype=dtype), dense(m, dtype)
    assert h._tiles.is_listed
    assert to_numpy(h.toarray()).tobytes() == want.tobytes()
    assert (h.nnz, h.dtype, h.shape) == (m.nnz, want.dtype, m.shape)
    assert h.nbytes == 8 * (m.shape[0] + 1) + m.nnz * (4 + want.itemsize)


def test_dense_and_fuller_matrices_are_stored_in_tiles(rng):
    m = graph(rng)
    assert not s24.hybrid(m.toarray())._tiles.is_listed
    assert not s24.hybrid(graph(rng, elements=2000))._tiles.is_listed


def test_zeros_of_the_source_are_left_out(rng, xp):
    m = graph(rng)
    want = m.toarray()
    m.data[::3] = 0
    m.data[1::3] = -0.0
    m.data[2] = np.nan
    want = m.toarray()
    h = s24.hybrid(on(xp, m))
    assert h._tiles.is_listed
    assert h.nnz == np.count_nonzero(want)
    np.testing.assert_array_equal(to_numpy(h.toarray()), want)
    assert not np.signbit(to_numpy(h.toarray())[want == 0]).any()


def test_later_changes_of_the_source_and_of_results_change_nothing(rng, xp):
    m = on(xp, graph(rng))
    h = s24.hybrid(m)
    want = to_numpy(h.toarray())
    m.data[:] = 5
    m.indices[:] = 0
    made = h.tocsr()
    made.data[:] = 7
    made.indices[:] = 0
    np.testing.assert_array_equal(to_numpy(h.toarray()), want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 5, 64])
def test_products_from_both_sides(rng, xp, dtype, n):
    m = graph(rng, dtype=dtype)
    h, w = s24.hybrid(on(xp, m), dtype=dtype), m.toarray().astype(np.float64)
    logical = _dtypes.lookup(dtype).logical
    right = rng.integers(-4, 5, (900, n)).astype(logical)
    left = rng.integers(-4, 5, (n, 700)).astype(logical)
    x = rng.integers(-4, 5, (n, 900)).astype(logical)
    for got, want in (
        (h @ xp.asarray(right), w @ right.astype(float)),
        (xp.asarray(left) @ h, left.astype(float) @ w),
        (h.T @ xp.asarray(left.T), w.T @ left.T.astype(float)),
        (xp.asarray(x) @ h.T, x.astype(float) @ w.T),
    ):
        np.testing.assert_array_equal(to_numpy(got).astype(float), want)
    assert h.T.T is h
    assert h.T.stored.is_listed


def test_tiles_are_built_where_they_are_asked_for(rng, pair):
    h, want = pair
    assert h.kinds.shape == h.tiles.grid == (11, 15)
    assert isinstance(h.tiles, ht.Tiles)
    assert h.tiles is h.tiles
    again = HybridArray.from_tiles(h.tiles.to_numpy())
    np.testing.assert_array_equal(again.toarray(), want)
    assert h._tiles.is_listed
    assert h.nbytes > h.stored.nbytes + h.tiles.kinds.size * ht.TABLE_BYTES


def test_kinds_are_those_of_the_tiles_that_are_not_built(rng, xp, monkeypatch):
    for counted in (1, 40, 1 << 20):  # bands one by one, a few together, all at once
        monkeypatch.setattr(hybrid_build, "COUNTED", counted)
        for shape in ((700, 900), (900, 64), (1, 2000)):
            h = s24.hybrid(on(xp, graph(rng, shape)))
            got = h.kinds
            assert not h.is_prepared("tiles")
            np.testing.assert_array_equal(got, to_numpy(h.tiles.kinds).reshape(h.tiles.grid))
            np.testing.assert_array_equal(h.kinds, got)


def test_keys_of_three_axes_are_refused_without_the_memory_of_all_elements(rng):
    side = 4 * 10**6  # a byte for each element would be 16 TB
    at = rng.integers(0, side, (2, 50))
    h = s24.hybrid(scipy.sparse.coo_array((np.ones(50, np.float32), at), (side, side)))
    for key in (True, False, (True, ...), (None, True), (slice(9), True), (True, [[1, 2]])):
        with pytest.raises(s24.ArgumentError, match=r"has two axes, and the key gives [34]"):
            h[key]
    assert h[True, 7, 9] == h[7, 9:10]


def test_tiles_that_memory_cannot_hold_are_refused_before_they_are_made(monkeypatch):
    h = s24.hybrid(scipy.sparse.coo_array(([1.0], ([3], [5])), shape=(10**5, 10**5)))
    monkeypatch.setattr(room, "memory", lambda device: 10**8)
    with pytest.raises(MemoryError, match=r"build tiles in 0\.1 GB, .* has 0\.1 GB") as told:
        h.tiles  # noqa: B018
    assert "CSR" in told.value.__notes__[0]
    assert h.kinds.sum() == 4


@pytest.mark.gpu
@pytest.mark.parametrize("path", ["tiles", "csr", "cublas"])
def test_every_path_takes_them(rng, cupy, path):
    m = graph(rng)
    h, b = s24.hybrid(on(cupy, m)), rng.integers(-4, 5, (900, 4)).astype(np.float32)
    np.testing.assert_array_equal(h.matmul(cupy.asarray(b), algorithm=path).get(), m @ b)


@pytest.mark.gpu
def test_the_path_csr_reads_the_rows_that_are_stored(rng, cupy):
    h = s24.hybrid(on(cupy, graph(rng)))
    before = h.nbytes
    h @ cupy.ones((900, 4), np.float32)
    assert h.nbytes == before  # no row is cut up
    assert h.explain(4)["choice"] == "csr"


def test_products_on_the_cpu_read_the_rows_that_are_stored(rng):
    h = s24.hybrid(graph(rng))
    before = h.nbytes
    h @ np.ones((900, 4), np.float32)
    assert h.nbytes == before
    narrow = s24.hybrid(graph(rng), dtype="float16")
    before = narrow.nbytes
    narrow @ np.ones((900, 4), np.float16)
    assert narrow.nbytes == before + 4 * narrow.nnz  # the elements in float32


def test_arithmetic_stays_in_rows(rng, xp, pair):
    h, w = pair
    row, column = rng.integers(0, 5, 900), rng.integers(1, 5, (700, 1))
    row, column = row.astype(np.float32), column.astype(np.float32)
    for got, want in (
        (2 * h, 2 * w), (-h, -w), (abs(h), abs(w)), (h / 4, w / 4), (h * 0, w * 0),
        (h * xp.asarray(row), w * row), (h / xp.asarray(column), w / column),
        (h.T * xp.asarray(row[:, None]), w.T * row[:, None]),
    ):  # fmt: skip
        assert got.stored.is_listed
        np.testing.assert_array_equal(to_numpy(got.toarray()), want)
        assert got.nnz == np.count_nonzero(want)


def test_other_types_and_results_of_another_type(rng, xp, pair):
    h, w = pair
    for dtype in DTYPES:
        other = h.astype(dtype)
        assert other.stored.is_listed
        np.testing.assert_array_equal(to_numpy(other.toarray()).astype(float), w)
    small = h.astype("int8") * xp.full(900, 0.5, np.float32)
    np.testing.assert_array_equal(to_numpy(small.toarray()), w * 0.5)


def test_a_sparse_factor(rng):
    m, other = graph(rng), graph(rng)
    h = s24.hybrid(m)
    rows, columns = (x[:50] for x in m.nonzero())
    other = other + scipy.sparse.csr_matrix((np.full(50, 3, np.float32), (rows, columns)), m.shape)
    for factor in (other, s24.hybrid(other.tocsr())):
        got = h * factor
        assert got.stored.is_listed
        np.testing.assert_array_equal(got.toarray(), m.toarray() * other.toarray())


KEYS = [
    5, -1, slice(3, 400), slice(650, 5, -3), (slice(None), 7), (slice(10, 600), slice(800, 3, -2)),
    ([1, 500, 2],), (slice(None), [899, 0, 44]), (3, 4), (..., 12), ([1, 2], [3, 4]), slice(0, 0),
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_parts(pair, key):
    h, w = pair
    got, want = h[key], w[key]
    np.testing.assert_array_equal(to_numpy(got.toarray() if want.ndim == 2 else got), want)


def test_parts_of_a_matrix_that_no_memory_holds_as_dense(rng):
    m = graph(rng, (400000, 500000), 5000)
    h, rows = s24.hybrid(m), m.nonzero()[0]
    np.testing.assert_array_equal(h[rows[:9]].tocsr().toarray(), m[rows[:9]].toarray())
    assert h[:, 17].sum() == m[:, [17]].sum()
    assert h[1000:300000, ::2].nnz == m[1000:300000, ::2].nnz


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_sums_and_extremes(pair, axis):
    h, w = pair
    for name in ("sum", "mean", "max", "min"):
        got = to_numpy(getattr(h, name)(axis=axis))
        np.testing.assert_allclose(got, getattr(w, name)(axis=axis), rtol=1e-6)


def test_copies_and_pickles(pair):
    h, w = pair
    for other in (h.copy(), copy.deepcopy(h), pickle.loads(pickle.dumps(h)), h.to_device("cpu")):
        assert other.stored.is_listed
        np.testing.assert_array_equal(to_numpy(other.toarray()), w)


@pytest.mark.gpu
def test_to_the_gpu_and_back(rng, cupy):
    m = graph(rng)
    h = s24.hybrid(m).to_device("cuda")
    b = rng.integers(-4, 5, (900, 4)).astype(np.float32)
    np.testing.assert_array_equal((h @ cupy.asarray(b)).get(), m @ b)
    np.testing.assert_array_equal(h.to_device("cpu") @ b, m @ b)


def test_the_summary_says_that_rows_are_stored(pair):
    text = pair[0].summary(8)
    assert "rows    of non-zeros, not tiles" in text
    assert "bands" not in text


@pytest.mark.parametrize("shape", [(2000, 1), (1, 3000), (3000, 70), (1001, 1000)])
@pytest.mark.parametrize("elements", [0, 1])
def test_hardly_anything(rng, xp, shape, elements):
    m = graph(rng, shape, elements)
    h = s24.hybrid(on(xp, m))
    assert h._tiles.is_listed
    b = rng.integers(1, 5, (shape[1], 3)).astype(np.float32)
    np.testing.assert_array_equal(to_numpy(h @ xp.asarray(b)), m @ b)
    np.testing.assert_array_equal(to_numpy((2 * h).T.toarray()), 2 * m.toarray().T)
    assert h.kinds.sum() == 4 * elements


def test_a_graph_of_a_million_nodes_takes_the_memory_of_csr(rng, xp):
    m = graph(rng, (10**6, 10**6), 10**6)
    h = s24.hybrid(on(xp, m))
    assert h.nbytes < 17 * 10**6
    b = rng.integers(1, 5, (10**6, 2)).astype(np.float32)
    np.testing.assert_array_equal(to_numpy(h @ xp.asarray(b)), m @ b)
    np.testing.assert_array_equal(to_numpy(h.T @ xp.asarray(b)), m.T @ b)


@pytest.mark.parametrize("other", ["24", "3:7", "hybrid"])
def test_beside_another_sparse_operand_the_larger_one_stays_sparse(rng, other, xp):
    n = 1_000_000  # of which a dense matrix would take 4 TB
    places = rng.integers(0, n, 3 * n), rng.integers(0, n, 3 * n)
    m = scipy.sparse.csr_array((np.ones(3 * n, np.float32), places), (n, n))
    w = rng.integers(-9, 10, (2, n)).astype(np.float32)
    options = {"24": {}, "3:7": {"pattern": (3, 7)}}
    if other == "hybrid":
        few = s24.hybrid(w)
    else:
        few = s24.compress(w, on_excess="prune", **options[other])
    left = few.toarray()
    h = s24.hybrid(m)
    if xp is not np:
        h, few = h.to_device("cuda"), few.to_device("cuda")
    for large in (h, m, m.tocsc()) if xp is np else (h,):  # SciPy's, too
        for product in (few @ large, s24.matmul(few, large)):
            assert np.array_equal(to_numpy(product), left @ m)
        for product in (large @ few.T, s24.matmul(large, few.T), s24.linear(large, few)):
            assert np.array_equal(to_numpy(product), m @ left.T)
    assert np.array_equal(to_numpy(np.matmul(few, h)), left @ m)
    fused = {"alpha": 2.0, "epilogue": s24.Epilogue(bias=1.0)}
    assert np.array_equal(to_numpy(s24.matmul(few, h, **fused)), 2 * (left @ m) + 1)
    explained = s24.explain(few, h).chosen, s24.explain(h, few.T).chosen
    assert explained == (("cpu",) if xp is np else ("csr",)) * 2
