"""The block-hybrid format: exactness, products, sources, messages."""

from __future__ import annotations

import pickle

import ml_dtypes
import numpy as np
import pytest
import scipy.sparse
from hybrid_cases import DTYPES, KINDS, assert_same_bits, matrix, with_kinds

import sparse24 as s24
from sparse24 import _arrays, families
from sparse24._errors import ArgumentError, DTypeError, ShapeError
from sparse24._to_hybrid import hybrid
from sparse24.formats import hybrid_build, hybrid_source
from sparse24.formats import hybrid_tiles as ht
from sparse24.formats.hybrid import HybridArray
from sparse24.kernels import cpu_hybrid, hybrid_kinds

pytestmark = pytest.mark.stem("hybrid_tiles")


@pytest.mark.stem("hybrid_fill")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(64, 64), (130, 77), (1, 1), (3, 300), (65, 5)])
def test_toarray_returns_the_bits(rng, xp, shape, kind, dtype):
    w = matrix(rng, shape, 0.5, dtype)
    assert with_kinds(xp.asarray(w), [kind]).nnz == np.count_nonzero(w)
    back = with_kinds(xp.asarray(w), [kind]).toarray()
    assert_same_bits(back if xp is np else back.get(), w)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("zeros", [0.3, 0.8, 0.97])
def test_csr_and_products_make_nothing_dense(rng, dtype, zeros, monkeypatch):
    w = matrix(rng, (300, 130), zeros, dtype)
    w[64:128] = 0
    h = with_kinds(w, KINDS)
    monkeypatch.setattr(hybrid_build, "decode", None)
    for matrix_, dense in ((h, w), (h.T, w.T)):
        csr, want = matrix_.tocsr(), scipy.sparse.csr_array(dense.astype(np.float64))
        csr.check_format(full_check=True)
        assert csr.has_canonical_format
        for name in ("indptr", "indices", "data"):
            np.testing.assert_array_equal(getattr(csr, name), getattr(want, name))
        x = rng.integers(-3, 4, (dense.shape[1], 2)).astype(w.dtype)
        wide = dense.astype(np.float64) @ x.astype(np.float64)
        np.testing.assert_allclose((matrix_ @ x).astype(np.float64), wide, rtol=0.02, atol=0.1)


def test_a_sparse_matrix_is_turned_and_converted_without_a_dense_copy(rng, monkeypatch):
    w = matrix(rng, (300, 130), 0.95)
    h = hybrid(w, n_hint=4)
    with monkeypatch.context() as patch:
        patch.setattr(hybrid_build, "decode", None)
        turned, wide = h.T, h.astype("float64")
        assert turned.kinds.shape == (3, 5)
    assert (turned.n_hint, wide.n_hint) == (4, 4)
    assert_same_bits(turned.toarray(), w.T)
    assert_same_bits(wide.toarray(), w.astype(np.float64))


def test_csr_has_no_stored_zeros(rng):
    w = matrix(rng, (70, 70), 0.5)
    tiles = with_kinds(w, [hybrid_kinds.BITMAP]).tiles.map(np.array)
    tiles.values[:2] = [-0.0, 0.0]
    h = HybridArray.from_tiles(tiles)
    assert h.tocsr().nnz == h.nnz == np.count_nonzero(w) - 2
    small = hybrid(np.array([[1e-300, 1.0]]))
    assert small.tocsr("float32").nnz == 1
    assert small.tocsr().nnz == 2


def test_what_is_stored_cannot_be_written_to_on_the_cpu(rng):
    w = matrix(rng, (70, 70), 0.5)
    h = hybrid(w)
    given = h.tiles.map(np.array)
    few = hybrid(scipy.sparse.eye_array(5000, format="csr", dtype=np.float32))
    assert few.stored.is_listed
    made = h, h.T, few, few.T, pickle.loads(pickle.dumps(h)), HybridArray.from_tiles(given)
    for array in made:
        for held in (*array.stored.elements, *array.tiles.elements, array.tiles.kinds):
            with pytest.raises(ValueError, match="read-only"):
                held[...] = 0
    for arrays in (h.tocsr(), few.tocsr()):  # which are the caller's
        arrays.data[...] = 0
    given.values[...] = given.values  # and so are these
    assert_same_bits(h.toarray(), w)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)])
def test_csr_of_an_empty_matrix(shape):
    h = hybrid(np.zeros(shape, np.float32))
    assert h.tocsr().shape == h.T.tocsr().shape[::-1] == shape


def test_overflow_in_any_order(rng):
    w = matrix(rng, (64, 64), 0.2)
    tiles = with_kinds(w, [hybrid_kinds.TWO_FOUR]).tiles.map(np.array)
    tiles.overflow_values[:], tiles.overflow_places[:] = (
        tiles.overflow_values[::-1].copy(), tiles.overflow_places[::-1].copy()
    )  # fmt: skip
    h = HybridArray.from_tiles(tiles)
    assert_same_bits(h.tocsr().toarray(), w)
    assert_same_bits(h.toarray(), w)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_a_part_end_where_it_ends(rng, kind):
    w = matrix(rng, (64, 64), 0.3)
    tiles = hybrid_build.as_bits(with_kinds(w, [kind]).tiles)
    out = np.zeros((64, 64), np.uint32)
    cpu_hybrid.decode(tiles.rows(0, 5), out[:5])
    assert_same_bits(out[:5].view(np.float32), w[:5])
    assert not out[5:].any()


def test_few_elements_of_a_tile_are_stored_with_their_places(rng):
    places = rng.integers(0, 4000, (2, 30000))
    csr = scipy.sparse.csr_array((rng.random(30000, np.float32) + 1, places), (4000, 4000))
    h = hybrid(csr)
    assert set(np.unique(h.kinds)) == {hybrid_kinds.EMPTY, hybrid_kinds.SCATTERED}
    of_tiles = h.kinds.size * (1 + 8 + 4 + 8) + 16  # kinds, starts, slots and overflow_starts
    assert h.nbytes == of_tiles + csr.nnz * (4 + 2)
    assert (h.tocsr() != csr).nnz == 0
    assert "scattered" in h.summary()


def test_is_immutable():
    h = hybrid(np.eye(4, dtype=np.float32), n_hint=8)
    for name, value in {"n_hint": 2, "shape": (2, 8), "_tiles": None, "note": 1}.items():
        with pytest.raises(AttributeError, match=f"HybridArray is immutable; cannot set {name}"):
            setattr(h, name, value)
    assert h.n_hint == 8


def test_special_values_survive(xp):
    w = np.zeros((70, 70), np.float32)
    w[0, :6] = [-0.0, np.nan, np.inf, -np.inf, 1e-45, -0.0]
    w[69, 69] = -1
    for kind in KINDS:
        h = with_kinds(xp.asarray(w), [kind])
        back = h.toarray() if xp is np else h.toarray().get()
        assert_same_bits(back, w)
        assert not np.signbit(back[0, 0])


@pytest.mark.stem("hybrid_fill")
@pytest.mark.gpu
def test_gpu_and_cpu_build_the_same_arrays(rng):
    cupy = pytest.importorskip("cupy")
    w = matrix(rng, (200, 331), 0.5, "float16")
    host, device = with_kinds(w, KINDS).tiles, with_kinds(cupy.asarray(w), KINDS).tiles
    for name in ht.ARRAYS:
        np.testing.assert_array_equal(getattr(host, name), getattr(device, name).get())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 7, 300])
def test_product_matches_dense(rng, xp, n, dtype):
    w, b = matrix(rng, (130, 201), 0.6, dtype), matrix(rng, (201, n), 0.0, dtype)
    wide = np.int64 if dtype == "int8" else np.float64
    want = w.astype(wide) @ b.astype(wide)
    h = with_kinds(xp.asarray(w), [*KINDS, hybrid_kinds.DENSE])
    got = h @ xp.asarray(b)
    got = (got if xp is np else got.get()).astype(wide)
    scale = 1e-6 if dtype in ("float32", "float64") else 8e-3 if dtype == "bfloat16" else 1e-3
    if dtype == "int8":
        np.testing.assert_array_equal(got, want)
    else:
        assert np.abs(got - want).max() <= scale * np.abs(want).max()


def test_product_takes_vectors_stacks_strides_and_out(rng, xp):
    w = xp.asarray(matrix(rng, (96, 80)))
    h = hybrid(w)
    b = xp.asarray(rng.standard_normal((3, 80, 10)).astype(np.float32))
    close = lambda x, y: xp.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)  # noqa: E731
    close(h @ b, w @ b)
    close(h.matmul(b, balance=False), w @ b)
    close(h @ b[:, None], w @ b[:, None])
    close(h @ b[0, :, 0], w @ b[0, :, 0])
    close(h @ b[1, :, ::2], w @ b[1, :, ::2])
    close(b[2].T @ h.T, b[2].T @ w.T)
    close(h.rmatvec(w[:, 0]), w.T @ w[:, 0])
    out = xp.full((96, 10), xp.nan, np.float32)
    assert h.matmul(b[0], out=out) is out
    close(out, w @ b[0])


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)])
def test_empty_sizes(shape):
    h = hybrid(np.zeros(shape, np.float32))
    assert h.toarray().shape == shape
    assert (h @ np.ones((shape[1], 3), np.float32)).tolist() == [[0.0] * 3] * shape[0]


def test_all_zeros_store_nothing():
    h = hybrid(np.full((128, 128), -0.0, np.float16))
    assert h.nnz == 0
    assert set(h.kinds.ravel()) == {hybrid_kinds.EMPTY}
    assert h.tiles.values.size == 0


@pytest.mark.parametrize("name", sorted(families.FAMILIES))
def test_families_round_trip(rng, name):
    w = families.make(name, (256, 320), zeros=0.8, dtype="float16", rng=rng)
    assert abs((w == 0).mean() - 0.8) < 0.12
    assert_same_bits(hybrid(w, n_hint=512).toarray(), w)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_small_numbers_of_fp8_are_no_zeros(dtype):
    assert (families.make("iid", (200, 200), zeros=0, dtype=dtype, rng=0) != 0).all()


def test_scipy_matrices(rng):
    for form in ("csr", "csc", "coo", "lil", "bsr"):
        w = scipy.sparse.random_array((100, 90), density=0.2, rng=rng, format=form)
        assert_same_bits(hybrid(w).toarray(), w.toarray())
    twice = scipy.sparse.coo_array(([1.0, 2.0], ([0, 0], [0, 0])), shape=(2, 2))
    assert hybrid(twice).toarray()[0, 0] == 3
    assert hybrid(twice, dtype="float16").dtype == np.float16
    dense = hybrid(w).tocsr()
    assert (dense != w).nnz == 0


@pytest.mark.stem("hybrid_fill")
def test_build_in_steps_with_a_bar(rng, xp, monkeypatch, capsys):
    w = matrix(rng, (300, 100))
    monkeypatch.setattr(hybrid_source, "STEP_ELEMENTS", 6400)
    monkeypatch.setattr(hybrid_source, "BAR_FROM", 0)
    assert_same_bits(_arrays.to_numpy(hybrid(xp.asarray(w)).toarray()), w)
    assert "sparse24.hybrid: fill" in capsys.readouterr().err


def test_operands_of_other_libraries(rng):
    torch = pytest.importorskip("torch")
    w = matrix(rng, (70, 80))
    h, x = hybrid(w), rng.standard_normal((80, 3)).astype(np.float32)
    want = w @ x
    left, right = h @ torch.from_numpy(x), torch.from_numpy(x.T.copy()) @ h.mT
    assert isinstance(left, torch.Tensor)
    assert isinstance(right, torch.Tensor)
    for got in (left, right.T, h @ scipy.sparse.csr_array(x), h @ list(x), s24.linear(x.T, h).T):
        np.testing.assert_allclose(np.asarray(got), want, rtol=1e-4, atol=1e-4)
    out = torch.empty((70, x.shape[1]))
    assert h.matmul(torch.from_numpy(x), out=out) is out
    np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-4)
    turned = h.T @ s24.compress(np.eye(70, dtype=np.float32))
    np.testing.assert_allclose(turned, w.T, rtol=1e-5, atol=1e-5)


def test_members_that_every_format_has(rng):
    w = matrix(rng, (70, 80))
    h = hybrid(w)
    np.testing.assert_array_equal(h.mask(), w != 0)
    half = h.astype("float16")
    np.testing.assert_array_equal(half.toarray(), w.astype(np.float16))
    assert h.astype("float32") is h
    assert h.to_device("cpu") is h
    with pytest.raises(ArgumentError, match="device must be"):
        h.to_device("gpu")


def test_out_must_be_writable_and_apart(rng):
    h, x = hybrid(matrix(rng, (64, 64))), np.ones((64, 64), np.float32)
    with pytest.raises(ArgumentError, match="out shares memory with b"):
        h.matmul(x, out=x)
    out = np.zeros((64, 64), np.float32)
    out.flags.writeable = False
    with pytest.raises(ArgumentError, match="out is read-only"):
        h.matmul(x, out=out)
    assert (x == 1).all()
    assert not out.any()


def test_messages(rng):
    h = hybrid(matrix(rng, (64, 64)))
    with pytest.raises(ShapeError, match=r"k = 64.*got \(63, 2\)"):
        h @ np.ones((63, 2), np.float32)
    x = np.ones((64, 2), np.float32)
    with pytest.raises(ShapeError, match="out must have the shape of the product"):
        h.matmul(x, out=np.empty((2, 2), np.float32))
    with pytest.raises(DTypeError, match="out must have dtype float32, got float64"):
        h.matmul(x, out=np.empty((64, 2)))
    with pytest.raises(DTypeError, match="out must have dtype float64, got float32"):
        h.matmul(x.astype(np.float64), out=np.empty_like(x))
    with pytest.raises(DTypeError, match="out must be an array, got list"):
        h.matmul(x, out=[0])
    with pytest.raises(ArgumentError, match="algorithm must be one of 'auto', 'cpu'"):
        h.matmul(np.ones((64, 2), np.float32), algorithm="magic")
    with pytest.raises(ShapeError, match="two axes"):
        hybrid(np.ones((2, 2, 2), np.float32))
    with pytest.raises(DTypeError, match="hybrid matrix"):
        hybrid(np.ones((2, 2), ml_dtypes.float8_e4m3fn))
    with pytest.raises(ArgumentError, match="n_hint must be a whole number from 1 on, got 0"):
        hybrid(np.ones((2, 2), np.float32), n_hint=0)
    with pytest.raises(DTypeError, match="out must be an array, got list"):
        h.toarray(out=[0])
    for n in (0, -1, 2.5, "a"):
        for tell in (h.explain, h.summary):
            with pytest.raises(ArgumentError, match=f"n must be a whole number from 1 .* {n!r}"):
                tell(n)
