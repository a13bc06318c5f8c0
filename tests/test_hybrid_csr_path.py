"""The path ``csr``: nearly empty matrices on the GPU, whose non-zeros are listed row by row."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from hybrid_cases import DTYPES, KINDS, assert_same_bits, matrix, with_kinds

import sparse24 as s24
from sparse24 import _dtypes
from sparse24._hybrid.layouts import layout
from sparse24.formats import hybrid_build
from sparse24.kernels import hybrid_csr
from sparse24.kernels import hybrid_csr_plan as plan

pytestmark = pytest.mark.stem("hybrid_csr")


def on_gpu(m):
    from cupyx.scipy import sparse as cupyx_sparse

    return cupyx_sparse.csr_matrix(m)


def laid_out(array, order, step):
    """The matrix in C or Fortran order, with elements of NaN between its rows and columns."""
    import cupy

    wide = cupy.full([step * extent for extent in array.shape], 77, array.dtype, order=order)
    wide[::step, ::step] = array
    return wide[::step, ::step]


MANY = 10**7  # elements that keep the GPU busy


@pytest.mark.parametrize(
    ("n", "vector", "nnz", "length", "want"),
    [(1, 1, MANY, 2000, (1, 128)), (1, 1, MANY, 5, (1, 1)), (8, 4, MANY, 50, (2, 4)),
     (64, 4, MANY, 100, (8, 2)), (32, 4, MANY, 100, (8, 2)), (5, 1, MANY, 3, (8, 1)),
     (512, 4, MANY, 900, (32, 4)),
     (12, 4, MANY, 16, (4, 1)), (1, 1, 40_000, 40, (1, 32)), (8, 4, 6000, 6, (2, 4))],
)  # fmt: skip
def test_a_team_spans_the_columns_and_some_elements(n, vector, nnz, length, want):
    how = plan.config(n, vector, nnz)
    split = how.split(length)
    assert (how.lanes, split) == want
    columns = how.lanes * how.wide * how.vector
    assert how.chunks * columns >= n > (how.chunks - 1) * columns
    assert how.teams(split) * how.lanes * split == plan.THREADS


def test_long_rows_are_cut_into_pieces():
    lengths = np.array([3, 1025, 0, 1024, 5 * 1024, 1023])
    pieces, passed = plan.cut(lengths, piece=1024)
    want = [(4, 0), (4, 1), (4, 2), (4, 3), (4, 4), (1, 0), (1, 1), (3, 0)]
    assert (pieces.tolist(), pieces.dtype, passed) == ([list(x) for x in want], np.int32, 7)
    none, passed = plan.cut(np.array([3, 4]), piece=1024)
    assert (none.shape, passed) == ((0, 2), 0)


@pytest.mark.parametrize(
    ("n", "vector", "want"),
    [(1, 1, 2048), (8, 8, 2048), (8, 4, 1024), (8, 2, 1024), (64, 8, 512), (99, 4, 512)],
)
def test_the_more_columns_the_shorter_are_pieces(n, vector, want):
    assert plan.config(n, vector, MANY).piece == want


@pytest.mark.parametrize("longest", [0, 3, 900, 1023, 1024, 70_000])
@pytest.mark.parametrize(("n", "vector"), [(1, 1), (8, 4), (64, 8), (300, 4)])
def test_every_row_is_in_one_range_or_cut_and_no_row_has_many_more_threads(rng, longest, n, vector):
    lengths = rng.integers(0, 12, 3000)
    lengths[rng.choice(3000, 40)] = rng.integers(0, longest + 1, 40)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    listed, how = plan.listing(starts), plan.config(n, vector, MANY)
    table, blocks = plan.ranges(how, listed, 3000, lengths.mean())
    assert len(table) <= hybrid_csr.MOST_RANGES
    rows = listed.rows
    np.testing.assert_array_equal(np.sort(rows["number"]), np.arange(3000))
    np.testing.assert_array_equal(rows["count"], lengths[rows["number"]])
    np.testing.assert_array_equal(rows["first"], starts[rows["number"]])
    seen = [row for row, _ in plan.cut(lengths, how.piece).pieces.tolist()]
    block = 0
    for part in table:
        assert part["block"] == block
        held = rows[part["first"] : part["end"]]
        block += -(-len(held) // how.teams(part["split"]))
        assert part["split"] <= max(2 * held["count"].max() / how.each, 1)
        seen.extend(held["number"])
    assert block == blocks
    assert sorted(set(seen)) == list(range(3000))
    assert len(seen) - 3000 == len(plan.cut(lengths, how.piece).pieces) - np.sum(
        lengths >= how.piece
    )


def test_rows_of_about_the_same_length_keep_their_order():
    lengths = np.array([4, 7, 100, 0, 5, 127, 64, 6])
    listed = plan.listing(np.concatenate([[0], np.cumsum(lengths)]))
    assert listed.rows["number"].tolist() == [2, 5, 6, 0, 1, 4, 7, 3]
    assert listed.shorter(64) == 3
    assert not plan.uneven(longest=64, mean=3)
    assert plan.uneven(longest=65, mean=16)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 5, 8, 33, 64, 100, 192, 300])
def test_product_is_that_of_the_dense_matrix(rng, cupy, n, dtype):
    w, b = matrix(rng, (201, 330), 0.97, dtype), matrix(rng, (330, n), 0.0, dtype)
    w[7], w[60:130] = b[:, 0], 0  # a long row, and some without elements
    wide = np.int64 if dtype == "int8" else np.float64
    want = w.astype(wide) @ b.astype(wide)
    h = with_kinds(cupy.asarray(w), KINDS)
    scale = 1e-6 if dtype in ("float32", "float64") else 8e-3 if dtype == "bfloat16" else 1e-3
    for order, step in (("C", 1), ("F", 1), ("C", 2)):
        out = laid_out(cupy.zeros((201, n), _dtypes.numpy_dtype(h.tiles.dtype.result)), order, step)
        out[...] = 99
        h.matmul(laid_out(cupy.asarray(b), order, step), algorithm="csr", out=out)
        got = out.get().astype(wide)
        if dtype == "int8":
            np.testing.assert_array_equal(got, want)
        else:
            np.testing.assert_allclose(got, want, rtol=scale, atol=scale * np.abs(want).max())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("length", [0, 1, 3, 64, 65, 200, 700, 1024, 1025, 2049, 4096, 4097])
def test_rows_of_any_length_are_summed_exactly(rng, cupy, length, dtype):
    w = np.zeros((70, 6000), dtype)
    for row in (0, 33, 69):
        w[row, rng.choice(6000, length, replace=False)] = 1
    h = s24.hybrid(cupy.asarray(w))
    for n in (1, 3, 16):
        b = (rng.random((6000, n)) < 0.1).astype(dtype)
        got = h.matmul(cupy.asarray(b), algorithm="csr").get()
        np.testing.assert_array_equal(got, w @ b)


@pytest.mark.gpu
def test_products_share_the_room_for_pieces_of_rows(rng, cupy):
    w = np.zeros((300, 6000), np.float32)
    w[::20] = rng.integers(-2, 3, (15, 6000))
    h, room = s24.hybrid(cupy.asarray(w)), set()
    for n in (*range(1, 200), *rng.integers(1, 200, 50)):
        b = rng.integers(-2, 3, (6000, n)).astype(np.float32)
        got = h.matmul(cupy.asarray(b), algorithm="csr")
        np.testing.assert_array_equal(got.get(), w @ b)
        room |= set(layout(h, "csr")._rooms)
    assert 1 < len(room) < 20


@pytest.mark.gpu
def test_results_are_the_same_bits_every_time(rng, cupy):
    w = matrix(rng, (500, 4000), 0.95)
    w[::50] = rng.standard_normal(4000)
    h, b = s24.hybrid(cupy.asarray(w)), cupy.asarray(matrix(rng, (4000, 20), 0.0))
    assert len(plan.cut(np.count_nonzero(w, axis=1), piece=1024).pieces) == 40
    first = h.matmul(b, algorithm="csr").get()
    np.testing.assert_allclose(first, w @ b.get(), rtol=1e-4, atol=1e-3)
    for _ in range(20):
        with cupy.cuda.Stream(non_blocking=True):
            assert_same_bits(h.matmul(b, algorithm="csr").get(), first)


@pytest.mark.gpu
def test_a_graph_replays_rows_that_are_cut_up(rng, cupy):
    w = matrix(rng, (300, 3000), 0.97)
    w[7] = 1
    h, b = s24.hybrid(cupy.asarray(w)), cupy.asarray(matrix(rng, (3000, 8), 0.0))
    want, out = h.matmul(b, algorithm="csr"), cupy.empty((300, 8), np.float32)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        h.matmul(b, algorithm="csr", out=out)
        stream.begin_capture()
        h.matmul(b, algorithm="csr", out=out)
        graph = stream.end_capture()
        for _ in range(3):
            out.fill(99)
            graph.launch(stream)
            stream.synchronize()
            assert_same_bits(out.get(), want.get())


@pytest.mark.gpu
def test_nan_and_infinities_stay_in_their_rows(rng, cupy):
    w = matrix(rng, (100, 200), 0.9)
    w[3, 5], w[4, 5], w[5, 5] = np.nan, np.inf, 0
    b = matrix(rng, (200, 4), 0.0)
    got = s24.hybrid(cupy.asarray(w)).matmul(cupy.asarray(b), algorithm="csr").get()
    assert np.isnan(got[3]).all()
    assert np.isinf(got[4]).all()
    assert np.isfinite(np.delete(got, [3, 4], axis=0)).all()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("n", [1, 8, 40])
def test_an_infinity_of_b_reaches_the_rows_that_have_an_element_there(rng, cupy, n, dtype):
    w, b = np.abs(matrix(rng, (300, 200), 0.97, dtype)), np.abs(matrix(rng, (200, n), 0.0, dtype))
    b[[0, 77]] = np.inf
    got = s24.hybrid(cupy.asarray(w)).matmul(cupy.asarray(b), algorithm="csr").get()
    touched = (w[:, [0, 77]] != 0).any(axis=1)
    assert 0 < touched.sum() < 300
    assert np.isposinf(got[touched]).all()
    assert np.isfinite(got[~touched]).all()


@pytest.mark.gpu
@pytest.mark.stem("hybrid_list")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_listed_on_the_gpu_as_on_the_cpu(rng, cupy, kind, dtype):
    w = matrix(rng, (200, 331), 0.7, dtype)
    w[65:129] = 0
    for h in (with_kinds(cupy.asarray(w), [kind]), with_kinds(cupy.asarray(w), [kind]).T):
        for got, want in zip(h.held(), h.to_device("cpu").held(), strict=True):
            np.testing.assert_array_equal(got.get(), want)


@pytest.mark.gpu
@pytest.mark.stem("hybrid_list")
def test_csr_of_a_gpu_matrix(rng, cupy):
    w = matrix(rng, (200, 331), 0.8)
    w[0, 0], w[3, 7], w[5] = np.nan, 1e-30, 0
    csr = s24.hybrid(cupy.asarray(w)).tocsr()
    assert (csr.format, csr.nnz) == ("csr", np.count_nonzero(w))
    assert_same_bits(csr.get().toarray(), w)
    small = s24.hybrid(cupy.asarray(w.astype(np.float64) * 1e-30)).tocsr("float32").get()
    want = (w.astype(np.float64) * 1e-30).astype(np.float32)
    assert small.nnz == np.count_nonzero(want) < np.count_nonzero(w)
    np.testing.assert_array_equal(small.toarray(), want)
    empty = s24.hybrid(cupy.zeros((5, 0), np.float32)).tocsr()
    assert (empty.shape, empty.nnz) == ((5, 0), 0)


@pytest.mark.gpu
@pytest.mark.stem("hybrid_list", "hybrid_fill")
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_nothing_of_a_nearly_empty_matrix_becomes_dense(rng, cupy, dtype, monkeypatch):
    m = scipy.sparse.random_array((3000, 7000), density=5e-4, rng=rng, dtype=np.float32).tocsr()
    m.data = rng.integers(1, 4, m.nnz).astype(np.float32)
    h = s24.hybrid(on_gpu(m), dtype=dtype)
    monkeypatch.setattr(hybrid_build, "decode", None)
    for n in (1, 8, 300):
        b = rng.integers(-2, 3, (7000, n)).astype(dtype)
        np.testing.assert_array_equal((h @ cupy.asarray(b)).get(), (m @ b).astype(dtype))
        x = rng.integers(-2, 3, (n, 3000)).astype(dtype)
        np.testing.assert_array_equal((cupy.asarray(x) @ h).get(), (x @ m).astype(dtype))
    assert (h.T.tocsr().get() != m.T).nnz == 0
    assert (h.astype("float64").tocsr().get() != m).nnz == 0


@pytest.mark.gpu
def test_large_nearly_empty_matrices(rng, cupy):
    m = scipy.sparse.random_array((30_000, 20_000), density=1e-4, rng=rng, dtype=np.float32)
    h = s24.hybrid(m.tocsr()).to_device("cuda")
    for n in (1, 8, 40):
        b = rng.standard_normal((20_000, n)).astype(np.float32)
        got = h.matmul(cupy.asarray(b), algorithm="csr").get()
        np.testing.assert_allclose(got, m @ b, rtol=1e-4, atol=1e-5)
