"""Sums, extremes, parts and factors of hybrid matrices, for which nothing becomes dense."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse
from hybrid_cases import DTYPES, assert_same_bits

import sparse24 as s24
from sparse24._dtypes import lookup
from sparse24._hybrid import few_columns, many_columns
from sparse24._hybrid import lines as hybrid_lines
from sparse24.formats import hybrid_build, hybrid_indexing
from sparse24.formats import hybrid_tiles as ht
from sparse24.kernels import _numba, cpu_hybrid_csr, cpu_hybrid_held
from sparse24.kernels.chip import H200


def drawn(rng, dtype, shape=(130, 190)):
    """A tenth of whole numbers, and a full row and column, so that some extremes are no zeros."""
    dense = np.where(rng.random(shape) < 0.1, rng.integers(-9, 10, shape), 0)
    dense[70], dense[:, 150] = -3, 5
    return s24.hybrid(dense.astype(np.float64), dtype=dtype)


def numbers(h):
    dense = h.toarray()
    return dense.astype(np.float32) if dense.dtype.name == "bfloat16" else dense


def assert_as_numpy(h, dense, function, **options):
    want = getattr(dense, function)(**options)
    if "out" in options:
        options["out"] = np.full_like(options["out"], 9)
    got = getattr(h, function)(**options)
    assert got is options.get("out", got)
    assert (type(got), got.dtype, got.shape) == (type(want), want.dtype, want.shape)
    np.testing.assert_allclose(got, want, rtol=2e-3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", ["sum", "mean", "max", "min"])
def test_sums_and_extremes_are_numpys(rng, function, dtype, monkeypatch):
    h = drawn(rng, dtype)
    pairs = [(h, numbers(h)), (h.T, numbers(h).T)]
    monkeypatch.setattr(hybrid_build, "decode", None)
    for a, dense in pairs:
        for axis in (None, 0, 1, -1, -2, (0, 1), (1,)):
            for keepdims in (False, True):
                assert_as_numpy(a, dense, function, axis=axis, keepdims=keepdims)
            if function in ("sum", "mean"):
                assert_as_numpy(a, dense, function, axis=axis, dtype=np.float64)
                assert_as_numpy(a, dense, function, axis=axis, dtype=np.complex64)
        assert_as_numpy(a, dense, function, axis=0, out=np.zeros(a.shape[1]))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_reductions_over_no_axis_and_over_axes_that_do_not_exist(rng, dtype):
    h = drawn(rng, dtype)
    np.testing.assert_array_equal(h.max(axis=()), numbers(h))
    for axis in (2, -3, (0, 0), 1.5):
        with pytest.raises((ValueError, TypeError)) as want:
            numbers(h).sum(axis=axis)
        with pytest.raises(want.type, match=str(want.value)[:20].replace("(", r"\(")):
            h.sum(axis=axis)
    for out in (np.zeros((1, 190)), np.zeros(189)):
        with pytest.raises(ValueError, match=r"output parameter|broadcast"):
            h.sum(axis=0, out=out)


@pytest.mark.parametrize("make", [s24.hybrid, s24.compress])
def test_a_mean_in_float16_divides_by_more_elements_than_it_counts_to(make):
    dense = np.zeros((300, 300), np.float16)
    dense[::3, ::30] = 9
    a, out = make(dense), np.full((), 7, np.float16)
    want = dense.mean(dtype=np.float16)
    assert want > 0
    assert a.mean(dtype=np.float16) == want
    assert a.mean(out=out) is out
    assert out == want


def test_nan_and_the_extremes_of_rows_without_zeros():
    dense = np.zeros((3, 8))
    dense[0], dense[1, 2] = -1, np.nan
    h = s24.hybrid(scipy.sparse.csr_array(np.vstack([dense, np.zeros((30, 8))])))
    np.testing.assert_array_equal(h.max(axis=1)[:3], [-1, np.nan, 0])
    np.testing.assert_array_equal(h.sum(axis=1)[:3], [-8, np.nan, 0])
    assert np.isnan(h.min())
    assert (h[:1].max(), h[3:].max(), (-h[:1]).min()) == (-1, 0, 1)
    below = s24.hybrid(scipy.sparse.csr_array(-np.eye(8)))  # all that is stored is below zero
    assert (below.max(), (-below).min()) == (0, 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_parts_are_numpys(rng, dtype, monkeypatch):
    monkeypatch.setattr(hybrid_indexing, "DECODED", 0)
    h = drawn(rng, dtype)
    pairs = [(h, h.toarray()), (h.T, h.T.toarray())]
    for a, dense in pairs:
        m, k = a.shape
        one_axis = [3, -1, np.int8(5), slice(None), slice(70, 20, -7), slice(9, 9), [], [1, -1, 1]]
        for rows in (*one_axis, rng.permutation(m), rng.random(m) < 0.3, range(4), ...):
            assert_part(a, dense, rows)
            for columns in one_axis:
                if not (np.ndim(rows) and np.ndim(columns)):
                    assert_part(a, dense, (rows, columns))
        assert_part(a, dense, (..., rng.permutation(k)))
        assert_part(a, dense, (slice(60, 70), rng.random(k) < 0.5))
        for key in (m, np.ones(m + 1, bool), (slice(None), [k]), (0, 0, 0)):
            with pytest.raises(s24.Sparse24Error):
                a[key]


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_and_columns_are_taken_by_open_meshes(rng, dtype, monkeypatch):
    h = drawn(rng, dtype)
    dense, (m, k) = h.toarray(), h.shape
    monkeypatch.setattr(hybrid_indexing, "DECODED", 0)
    rows, columns = rng.integers(-m, m, 40), rng.integers(-k, k, 30)
    keys = [np.ix_(rows, columns), (rows[:, None], columns), (rows[:1, None], columns[None])]
    keys += [np.ix_(rows, []), np.ix_([], columns), np.ix_(rng.random(m) < 0.3, columns)]
    keys += [(rows[:, None], ..., columns), (rows[:30], columns), (rows[:30, None], columns[:1])]
    keys += [(rows[:30, None], np.array(5)), (rows[:30, None], 5), (5, columns[None])]
    keys += [(rows[:6].reshape(2, 3), columns[0]), (rows[:30], columns[None])]
    with monkeypatch.context() as patch:
        patch.setattr(hybrid_build, "decode", None)
        parts = [h[key] for key in keys]
        with pytest.raises(IndexError, match="out of range"):
            h[np.ix_([m], columns)]
    for part, key in zip(parts, keys, strict=True):
        assert_is_part(part, dense[key])


def test_parts_by_any_key_of_numpys_need_no_dense_matrix(rng, monkeypatch):
    h = drawn(rng, "float32")
    dense, keep = h.toarray(), rng.random(h.shape) < 0.1
    monkeypatch.setattr(hybrid_indexing, "DECODED", 0)
    at, some = np.array(70), [[1, 70], [3, 70]]
    keys = [at, (at, at), (..., at), ([1, 70], at), (some, 150), (70, some), (some, [0, 150])]
    keys += [keep, (None, 70), (70, None), (None, 70, 150), (slice(None), None, 150)]
    keys += [(70, 150), (70, 150, ...), (..., 3, -1), (70, ..., 0), (..., 70, slice(0, 9))]
    with monkeypatch.context() as patch:
        patch.setattr(hybrid_build, "decode", None)
        parts = [h[key] for key in keys]
        for key in (None, (some, slice(None)), (..., None)):
            with pytest.raises(s24.ArgumentError, match="has two axes, and the key gives 3"):
                h[key]
        wrong = [keep[:3], np.array(130), (some, 190), ([1, 2], [3, 4, 5])]
        for key in (*wrong, (..., ...), (..., 0, ...)):
            with pytest.raises(IndexError, match="out of range"):
                h[key]
    for part, key in zip(parts, keys, strict=True):
        assert_is_part(part, dense[key])


def assert_part(a, dense, key):
    assert_is_part(a[key], dense[key])


def assert_is_part(got, want):
    assert isinstance(got, s24.HybridArray) == (want.ndim == 2)
    got = got.toarray() if want.ndim == 2 else got
    assert type(got) is type(want)
    assert_same_bits(np.asarray(got), np.asarray(want))


FACTORS = {
    "csr_array": scipy.sparse.csr_array,
    "csc_matrix": scipy.sparse.csc_matrix,
    "coo_array": scipy.sparse.coo_array,
    "hybrid": s24.hybrid,
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FACTORS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # divisions by zero, as NumPy's
def test_sparse_factors_are_those_of_their_dense_arrays(rng, form, dtype, monkeypatch):
    h = drawn(rng, dtype)
    dense = np.where(rng.random(h.shape) < 0.15, rng.integers(-3, 4, h.shape), 0).astype(np.float32)
    dense[rng.random(h.shape) < 0.01] = np.nan
    for other in (dense, dense.T.copy().T):
        factor = FACTORS[form](other)
        want = [h * other, h / other, h.T * other.T]
        with monkeypatch.context() as patch:
            patch.setattr(hybrid_build, "decode", None)
            got = [h * factor, h / factor, h.T * factor.T]
        for one, expected in zip(got, want, strict=True):
            assert one.nnz == expected.nnz
            assert_same_bits(one.toarray(), expected.toarray())


def test_a_sparse_factor_keeps_its_type_duplicates_and_own_zeros(rng):
    h = drawn(rng, "bfloat16")
    assert (h * s24.hybrid(h.toarray())).dtype == h.dtype
    data, rows, columns = [1.0, 2.0, 0.0, 5.0], [3, 3, 4, 5], [150, 150, 150, 0]
    factor = scipy.sparse.csr_array((data, (rows, columns)), shape=h.shape)
    factor.data[-1] = 0
    stored = factor.nnz
    assert_same_bits((h * factor).toarray(), (h * factor.toarray()).toarray())
    assert factor.nnz == stored
    with pytest.raises(s24.ShapeError, match="does not broadcast"):
        h * factor[:5]


def test_a_sparse_factor_may_have_its_elements_in_any_order_and_twice(rng):
    h = drawn(rng, "float64")
    columns = rng.integers(0, h.shape[1], (h.shape[0], 60))
    starts = np.arange(0, columns.size + 1, 60)
    data = rng.integers(1, 4, columns.size).astype(np.float64)
    factor = scipy.sparse.csr_array((data, columns.ravel(), starts), shape=h.shape)
    assert not factor.has_sorted_indices
    assert_same_bits((h * factor).toarray(), h.toarray() * factor.toarray())


def test_a_hybrid_factor_of_another_shape_broadcasts_or_is_refused(rng):
    h = drawn(rng, "float32")
    row = np.where(rng.random(h.shape[1]) < 0.1, 2, 0).astype(np.float32)[None]
    factor = s24.hybrid(row)
    assert factor.is_less_as_csr
    assert_same_bits((h * factor).toarray(), h.toarray() * row)
    with pytest.raises(s24.ShapeError, match="does not broadcast"):
        h * s24.hybrid(np.eye(*h.shape, dtype=np.float32))[:5]


def test_kernels_are_called_for_many_bands_of_a_tall_matrix(rng, monkeypatch):
    w = scipy.sparse.random_array((100_000, 70), density=0.01, rng=rng, dtype=np.float32).tocsr()
    calls = []
    for module, name in ((cpu_hybrid_held, "_put_bands"), (cpu_hybrid_csr, "_fill")):
        kernel = getattr(module, name)
        counted = lambda *args, kernel=kernel: calls.append(kernel) or kernel(*args)  # noqa: E731
        monkeypatch.setattr(module, name, counted)
    assert (s24.hybrid(w).tocsr() != w).nnz == 0
    assert 3 <= len(calls) <= 3 * 4 * _numba.threads()  # the rows are walked over twice


def test_a_matrix_larger_than_memory(rng, monkeypatch):
    """Dense it would take 26 GB."""
    m, k = 6400, 500_000
    places = rng.integers(0, m, 5000), rng.integers(0, k, 5000)
    w = scipy.sparse.coo_array((rng.standard_normal(5000), places), shape=(m, k)).tocsr()
    decode = hybrid_build.decode

    def of_few_tiles(tiles):
        assert tiles.shape == (m, ht.TILE)  # those of one column
        return decode(tiles)

    monkeypatch.setattr(hybrid_build, "decode", of_few_tiles)
    h = s24.hybrid(w)
    np.testing.assert_allclose(h.sum(axis=0), w.sum(axis=0))
    np.testing.assert_allclose(h.max(axis=1), w.max(axis=1).toarray().ravel())
    np.testing.assert_array_equal(h[:, 77], w[:, [77]].toarray().ravel())
    assert (h[::-1].tocsr() != w[::-1]).nnz == 0
    assert ((h * w).tocsr() != w * w).nnz == 0
    assert (h[:, 1000:9000].tocsr() != w[:, 1000:9000]).nnz == 0


def test_columns_have_as_many_bits_as_they_need():
    k = 2**32 + 200
    places = np.array([0, 1, 2]), np.array([k - 1, 2, 0])
    h = s24.hybrid(scipy.sparse.coo_array((np.array([1.0, 2, 3]), places), shape=(3, k)))
    np.testing.assert_array_equal(h.tocsr().indices, [k - 1, 2, 0])
    np.testing.assert_array_equal((2 * h).tocsr().indices, [k - 1, 2, 0])
    half = s24.hybrid(scipy.sparse.coo_array(([1.0], ([0], [7])), shape=(1, 2**31 + 100)))
    joined = np.concatenate([half, half], axis=1)
    np.testing.assert_array_equal(joined.tocsr().indices, [7, 2**31 + 107])


@pytest.mark.parametrize(
    ("shape", "words"),
    [((65535 * 64 + 1, 8), "has at most 4194240 rows"), ((8, 2**31), "at most 2147483392 col")],
)
def test_tiles_on_a_gpu_have_as_many_rows_and_columns_as_kernels_number(shape, words):
    hybrid_build.refuse_large(shape, on_gpu=False)
    with pytest.raises(s24.UnsupportedError, match=words):
        hybrid_build.refuse_large(shape, on_gpu=True)


@pytest.mark.parametrize(
    ("shape", "left"), [((65535 * 128 + 1, 128), {"two_four"}), ((128, 2**28), {"two_four"})]
)
def test_paths_for_few_rows_are_not_offered_to_many(shape, left, monkeypatch):
    """Nor planned, which would launch more blocks than a grid has."""
    h = SimpleNamespace(
        shape=shape, size=shape[0] * shape[1], density=0.01, _dtype=lookup("float16")
    )
    monkeypatch.setattr(many_columns, "dense_time", lambda *_: 1.0)
    monkeypatch.setattr(many_columns, "excess", lambda h: 0)
    monkeypatch.setattr(many_columns, "_excess_of_longest_row", lambda h: 0.0)
    lines = hybrid_lines.H200_LINES
    assert many_columns.two_four_times(h, 256, lines, H200).keys() == left
    if shape[0] > shape[1]:
        monkeypatch.setattr(few_columns, "rows_plan", None)
        monkeypatch.setattr(few_columns, "_gather_time", lambda *_: {})
        assert few_columns.times(h, 8, lines, H200).keys() == set()
