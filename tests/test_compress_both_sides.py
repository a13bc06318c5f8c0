"""Arrays that are compressed for products from both sides, or with their dense matrix."""

from __future__ import annotations

import numpy as np
import pytest

import sparse24 as s24


def test_transposable_serves_both_sides(rng):
    x = rng.normal(size=(12, 20)).astype(np.float32)
    a = s24.compress(x, on_excess="prune", transposable=True)
    assert a.transposable
    dense = a.toarray()
    np.testing.assert_array_equal(a.T.toarray(), dense.T)
    tiles = (dense != 0).reshape(3, 4, 5, 4)
    assert (tiles.sum(1) == 2).all()
    assert (tiles.sum(3) == 2).all()
    g = rng.normal(size=(12, 3)).astype(np.float32)
    np.testing.assert_allclose(a.T @ g, dense.T @ g, rtol=1e-5, atol=1e-6)
    with pytest.raises(s24.ArgumentError, match="transposable=True takes no mask=; zero the other"):
        s24.compress(x, transposable=True, mask=dense != 0)
    with pytest.raises(s24.ArgumentError, match=r"axis must be in \[-2, 2\), got 7"):
        s24.compress(x, transposable=True, axis=7)


@pytest.mark.parametrize("xp", ["numpy", pytest.param("cupy", marks=pytest.mark.gpu)])
def test_transposable_prunes_nothing_unasked(xp, rng):
    xp = pytest.importorskip(xp)
    x = xp.asarray(rng.normal(size=(8, 12)).astype(np.float32))
    way_out = r"prune\(x, transposable=True\)\), or compress with on_excess='prune'"
    with pytest.raises(s24.PatternError, match=rf"x\[0, 0:4\] has more than 2 .* 24 .*{way_out}"):
        s24.compress(x, transposable=True)
    along_rows = xp.zeros((8, 12), np.float32)
    along_rows[4:, 5] = 1
    with pytest.raises(s24.PatternError, match=rf"x\[4:8, 5\] has more .* 1 such.*{way_out}"):
        s24.compress(along_rows, transposable=True)
    with pytest.raises(s24.PatternError, match=r"x\[5, 4:8\] has more than 2"):
        s24.compress(along_rows.T, transposable=True, axis=-2)
    with pytest.raises(s24.ArgumentError, match=r"'deferred' keeps the check of one axis, .* two"):
        s24.compress(x, transposable=True, check="deferred")
    tile = np.zeros((4, 4), np.float32)  # no 4x4 mask of eight holds these seven
    tile[0, 0] = tile[1, 1:3] = tile[2, 2:] = 1
    tile[3, 1::2] = 1
    for kept in (s24.prune(x, transposable=True), xp.asarray(tile)):
        a = s24.compress(kept, transposable=True, keep_dense=True)
        for got in (a.toarray(), a.T.toarray().T, a._operand.dense):
            assert (got == kept).all()
        assert s24.compress(kept, transposable=True, check=False).nnz == int((kept != 0).sum())


@pytest.mark.parametrize("transposable", [False, True])
def test_a_kept_dense_matrix_is_a_copy(transposable):
    x = np.eye(8, dtype=np.float32)
    a = s24.compress(x, keep_dense=True, transposable=transposable)
    x[...] = 7
    y = s24.matmul(a, np.ones((8, 2), np.float32), algorithm="dense")
    assert (y == 1).all()


def test_keep_dense_holds_what_was_compressed(rng):
    x = rng.normal(size=(4, 8)).astype(np.float32)
    a = s24.compress(x, on_excess="prune", keep_dense=True)
    np.testing.assert_array_equal(a._operand.dense, a.toarray())
    assert a.nbytes > s24.compress(x, on_excess="prune").nbytes


def test_a_kept_dense_matrix_multiplies_where_it_is_faster(rng, monkeypatch):
    from sparse24.kernels import cpu

    x = rng.normal(size=(3, 256, 64)).astype(np.float32)
    b = rng.normal(size=(64, 32)).astype(np.float32)
    kept, lean = (s24.compress(x, on_excess="prune", keep_dense=keep) for keep in (True, False))
    told = s24.explain(lean, b)
    assert told.chosen == "cpu_sparse"
    assert "keep_dense=True would let it run" in told.reason
    assert "multiplying the kept dense matrix" in s24.explain(kept, b).reason
    for name in ("matmul", "decompress_matmul"):
        monkeypatch.setattr(cpu, name, None)  # neither is called
    want = s24.prune(x) @ b
    for got in (kept @ b, s24.matmul(kept, b, algorithm="dense")):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)


def test_a_stack_that_obeys_both_ways_is_compressed_both_ways(rng):
    x = s24.prune(rng.standard_normal((3, 8, 12)), transposable=True)
    a = s24.compress(x, transposable=True)
    np.testing.assert_array_equal(a.mT.toarray(), x.swapaxes(-1, -2))
    g = rng.standard_normal((3, 8, 2))
    np.testing.assert_allclose(a.mT @ g, x.swapaxes(-1, -2) @ g)
    np.testing.assert_allclose(a @ a.mT.toarray(), x @ x.swapaxes(-1, -2))
