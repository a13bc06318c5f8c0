"""The element types of hybrid matrices, and those in which their operands meet."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

import sparse24 as s24
from sparse24 import _dtypes
from sparse24._errors import DTypeError
from sparse24._to_hybrid import hybrid
from sparse24.formats import hybrid_products
from sparse24.formats import hybrid_tiles as ht

pytestmark = pytest.mark.stem("hybrid_tiles")


@pytest.mark.parametrize("make", [np.asarray, scipy.sparse.csr_array])
def test_conversions_to_int8_saturate_as_in_compress(make):
    w = np.array([[300.7, 0, -1e9, 0], [2.5, 0, -3.5, 0]])
    want = s24.compress(w, dtype="int8").toarray()
    whole = [[127, 0, 0, 0], [2, 0, 0, 0]]
    for source, wanted in (
        (w, want), (w.astype(np.float32), want), (w.clip(0, 300).astype(np.int64), whole)
    ):  # fmt: skip
        np.testing.assert_array_equal(hybrid(make(source), dtype="int8").toarray(), wanted)
    np.testing.assert_array_equal(hybrid(w).astype("int8").toarray(), want)
    with pytest.raises(DTypeError, match=r"real numbers, got complex128; pass for example w\.real"):
        hybrid(make(w * 1j), dtype="float32")


@pytest.mark.parametrize(
    ("dtype", "narrower"),
    [("float64", "float32"), ("float64", "bfloat16"), ("float32", "float16"), ("float32", "int8"),
     ("bfloat16", "int8"), ("float32", "float8_e5m2")],
)  # fmt: skip
def test_operands_meet_in_the_wider_type(rng, dtype, narrower):
    dtype, narrower = (_dtypes.TABLE[name].logical for name in (dtype, narrower))
    h = hybrid(rng.integers(-2, 3, (40, 30)).astype(dtype))
    x = rng.integers(-2, 3, (30, 3)).astype(narrower)
    for got, want in ((h @ x, h @ x.astype(dtype)), (x[:, 0] @ h.T, x[:, 0].astype(dtype) @ h.T)):
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, want)
    if narrower.name in ht.DTYPES:
        small = h.astype(narrower)
        for got in (small @ x.astype(dtype), (x.T.astype(dtype) @ small.T).T):
            assert got.dtype == dtype
            np.testing.assert_array_equal(got, h @ x)
        held = small.nbytes
        small @ x.astype(dtype)
        assert small.nbytes == held  # the wide matrix is built once
    with pytest.raises(DTypeError, match=r"b\.dtype must be one of .* got dtype\('uint8'\)"):
        h @ x.astype(np.uint8)


@pytest.mark.parametrize("given", ["float64", "float16", "int64", "memmap"])
def test_on_the_cpu_a_product_is_remembered_where_operands_are_converted(
    monkeypatch, rng, given, tmp_path
):
    h = hybrid(rng.integers(-2, 3, (40, 30)).astype(np.float32))
    x = rng.integers(-2, 3, (3, 30)).astype(np.float32 if given == "memmap" else given)
    if given == "memmap":
        np.save(tmp_path / "x.npy", x)
        x = np.load(tmp_path / "x.npy", mmap_mode="r")
    out = np.empty((40, 3), np.result_type(x, np.float32))
    calls = (
        lambda: h @ x[0], lambda: h @ x.T, lambda: x @ h.T, lambda: h.matmul(x.T, out=out).copy(),
        lambda: s24.matmul(h, x[0], alpha=2.0),
    )  # fmt: skip
    first = [call() for call in calls]
    monkeypatch.setattr(hybrid_products, "_product", lambda *_, **__: pytest.fail("planned anew"))
    for call, product in zip(calls, first):
        again = call()
        assert again.dtype == out.dtype
        np.testing.assert_array_equal(again, product)
    np.testing.assert_array_equal(first[1], h.toarray() @ x.T)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_fp8_is_refused_whatever_the_elements_are(rng, dtype):
    """Also where none of them becomes zero, so that the tiles could stay."""
    whole = s24.random((64, 128), dtype="int8", rng=rng).toarray()
    rows = scipy.sparse.random_array((2000, 1000), density=1e-4, rng=rng, dtype=np.float32)
    for h in (hybrid(whole), hybrid(whole.astype(np.float32)), hybrid(rows)):
        with pytest.raises(DTypeError, match=f"for a hybrid matrix, got {dtype}; name one of"):
            h.astype(dtype)


def test_sparse_arrays_of_every_format_are_taken(rng):
    a = s24.random((64, 256), dtype="float16", rng=rng)
    one = s24.compress(a, pattern=(1, 4), on_excess="prune")
    for array in (a, a.T, one, one.T, s24.quantise(a), hybrid(a.toarray(), n_hint=2)):
        h = hybrid(array, n_hint=8)
        assert (type(h), h.dtype, h.n_hint) == (s24.HybridArray, np.float16, 8)
        np.testing.assert_array_equal(h.toarray(), array.toarray())
        wide = hybrid(array, dtype="float64")
        np.testing.assert_array_equal(wide.toarray(), array.astype("float64").toarray())
    assert hybrid(h) is h
    nearly_empty = hybrid(scipy.sparse.eye_array(5000, format="csr", dtype=np.float32))
    assert hybrid(nearly_empty, n_hint=3).stored.is_listed


def test_what_a_hybrid_matrix_cannot_hold_is_refused_of_sparse_arrays_too(rng):
    with pytest.raises(DTypeError, match="for a hybrid matrix, got float8_e5m2; name one"):
        hybrid(s24.random((4, 8), dtype="float8_e5m2", rng=rng))
    with pytest.raises(s24.ShapeError, match="build one hybrid matrix for each"):
        hybrid(s24.random((2, 4, 8), rng=rng))
    with pytest.raises(s24.PatternError, match="more than 2 non-zeros"):
        hybrid(s24.compress(np.ones((4, 8), np.float32), check="deferred"))


def test_numpys_whole_numbers_are_whole_numbers():
    h = hybrid(np.eye(4, dtype=np.float32), n_hint=np.int64(3))
    assert h.explain()["n"] == 3
    assert h.explain(np.int32(5))["n"] == 5


def test_a_matrix_of_too_many_tiles_is_told_to_stay_in_csr():
    wide = scipy.sparse.csr_array(([1.0], ([3], [5])), shape=(64, 1 << 52))
    with pytest.raises(MemoryError) as told:
        hybrid(wide)
    assert f"these are {1 << 46}" in told.value.__notes__[0]
    assert "CSR" in told.value.__notes__[0]
