"""Matrices of SciPy and cupyx become sparse arrays, and sparse arrays matrices of theirs."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

import sparse24 as s24
from sparse24 import _dtypes
from sparse24._arrays import to_numpy
from sparse24._hybrid import room

FORMATS = ("csr", "csc", "coo", "bsr", "lil", "dok", "dia")


@pytest.mark.parametrize("kind", FORMATS)
def test_every_scipy_format(kind):
    dense = s24.random((8, 12), rng=0).toarray()
    a = s24.from_scipy(scipy.sparse.coo_array(dense).asformat(kind))
    np.testing.assert_array_equal(a.toarray(), dense)
    np.testing.assert_array_equal(a.tocsr().toarray(), dense)
    np.testing.assert_array_equal(a.tocoo().toarray(), dense)
    assert a.tocsc().format == "csc"
    np.testing.assert_array_equal(a.tocsc().toarray(), dense)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_matrix_too_large_to_be_dense_is_refused_before_it_is(kind, monkeypatch):
    m = scipy.sparse.eye_array(40, dtype=np.float32).asformat(kind)
    monkeypatch.setattr(room, "ALWAYS", 100)
    monkeypatch.setattr(room, "memory", lambda device: {"cpu": 4 * m.shape[0] ** 2 - 1}[device])
    monkeypatch.setattr(type(m), "toarray", None)
    for make, name in ((s24.from_scipy, "m"), (s24.compress, "x"), (s24.asarray, "x")):
        with pytest.raises(s24.DeviceError, match=rf"^{name}, made dense, of shape") as told:
            make(m)
        assert isinstance(told.value, MemoryError)
        assert "which cpu does not have; sparse24.hybrid stores" in str(told.value)
    with pytest.raises(MemoryError, match=r"^the operand, made dense") as told:
        s24.random((4, 40)) @ m
    assert "is sparse" in told.value.__notes__[0]


def test_a_matrix_that_finds_no_memory_as_a_dense_one_is_refused_too(monkeypatch):
    def toarray(m):
        raise MemoryError("Unable to allocate")

    m = scipy.sparse.eye_array(8, format="csr")
    monkeypatch.setattr(type(m), "toarray", toarray)
    with pytest.raises(s24.DeviceError, match=r"^m, made dense, of shape"):
        s24.from_scipy(m)


@pytest.mark.gpu
@pytest.mark.stem("compress", "decompress")
@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "dia"])
def test_every_cupyx_format(kind):
    from cupyx.scipy import sparse as cupyx_sparse

    dense = s24.random((8, 12), rng=0).toarray()
    on_cpu = scipy.sparse.csr_matrix(dense).asformat(kind)
    a = s24.from_scipy(getattr(cupyx_sparse, f"{kind}_matrix")(on_cpu))
    assert a.device.startswith("cuda")
    np.testing.assert_array_equal(to_numpy(a.toarray()), dense)
    np.testing.assert_array_equal(a.tocsr().get().toarray(), dense)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *((kind, name) for kind in ("2:4", "1:4") for name in _dtypes.NAMES),
        *(("hybrid", name) for name in _dtypes.NAMES if not name.startswith("float8")),
    ],
)
@pytest.mark.stem("compress", "decompress", "cast", "n_m", "hybrid_tiles")
def test_every_type_becomes_csr(xp, kind, name):
    a = s24.random((8, 12), dtype=name, rng=0)
    if kind == "1:4":
        a = s24.compress(a, pattern=(1, 4), on_excess="prune")
    if kind == "hybrid":
        a = s24.hybrid(a.toarray())
    want = a.toarray().astype(np.float64)
    m = (a if xp is np else a.to_device("cuda")).tocsr()
    m = m if xp is np else m.get()
    np.testing.assert_array_equal(m.toarray(), want)
    assert m.nnz == a.nnz


def test_matrices_beyond_24_are_sent_to_hybrid():
    for make in (s24.from_scipy, s24.compress, s24.asarray):
        with pytest.raises(s24.PatternError, match=r"; sparse24\.hybrid keeps every element$"):
            make(scipy.sparse.csr_array(np.ones((2, 4))))
    with pytest.raises(s24.PatternError, match=r"on_excess='prune'$"):
        s24.compress(np.ones((3, 2, 4)))  # a stack, which hybrid does not take
    with pytest.raises(s24.ArgumentError, match=r"scipy\.sparse"):
        s24.from_scipy(np.ones((2, 4)))


@pytest.mark.parametrize("dtype", _dtypes.NAMES)
@pytest.mark.parametrize("shape", [(5, 12), (3, 7), (4, 2), (1, 1), (0, 8), (3, 0), (40, 133)])
def test_csr_is_made_of_what_is_stored(rng, monkeypatch, shape, dtype):
    dense = rng.integers(-2, 3, shape).astype(_dtypes.TABLE[dtype].logical)
    a = s24.compress(dense, on_excess="prune")
    dense, turned = a.toarray(), s24.compress(dense, on_excess="prune", axis=0)
    want = turned.toarray()
    monkeypatch.setattr(s24.Sparse24Array, "toarray", None)
    for array, full in ((a, dense), (a.T, dense.T), (turned, want)):
        csr, numbers = array.tocsr(), full.astype(np.float32)
        assert csr.has_canonical_format
        assert csr.nnz == np.count_nonzero(numbers)
        assert csr.dtype == (full.dtype if dtype in ("float32", "float64", "int8") else np.float32)
        np.testing.assert_array_equal(csr.toarray(), numbers)


def test_csr_keeps_nan_and_drops_what_a_narrower_type_rounds_to_zero():
    a = s24.compress(np.array([[np.nan, 1e-300, 0, 0], [np.inf, 0, -0.0, 2]]))
    assert a.tocsr().nnz == 4
    csr = a.tocsr("float32")
    np.testing.assert_array_equal(csr.toarray(), [[np.nan, 0, 0, 0], [np.inf, 0, 0, 2]])
    assert csr.nnz == 3


def test_half_precision_goes_to_scipy_as_float32():
    a = s24.random((4, 8), dtype="bfloat16", rng=0)
    assert a.tocsr().dtype == np.float32
    assert a.tocsr(dtype=np.float64).dtype == np.float64


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", ">f4", object, "nonsense"])
def test_types_that_scipy_does_not_store_are_refused(dtype):
    a = s24.random((4, 8), rng=0)
    for x in (a, s24.hybrid(a.toarray()), s24.compress(a.toarray(), pattern=(6, 8)).windows()):
        with pytest.raises(s24.DTypeError, match=r"dtype must be one that .* becomes float32"):
            x.tocsr(dtype)
    with pytest.raises(s24.DTypeError, match=r"dtype must be one that .* got "):
        a.asformat("coo", dtype)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("stored", [
    np.array([16777217.0, -16777216.0, 5.0]),
    np.array([100, 100, 5], np.int8),
    np.array([True, True, True]),
])  # fmt: skip
def test_elements_that_stand_twice_are_added_up_in_their_own_type(stored, dtype):
    m = scipy.sparse.csr_array((stored, np.array([0, 0, 1]), np.array([0, 3])), shape=(1, 4))
    want = m.toarray().astype(dtype)
    np.testing.assert_array_equal(s24.hybrid(m, dtype=dtype).toarray(), want)
    np.testing.assert_array_equal(s24.hybrid(m.tocsc(), dtype=dtype).toarray(), want)
    assert m.nnz == 3


@pytest.mark.parametrize("form", ["csr", "csc", "bsr"])
@pytest.mark.parametrize(("indices", "indptr"), [([9, 0], [0, 1, 2]), ([0, -1], [0, 1, 2]),
                                                 ([0, 1], [0, 2, 1])])  # fmt: skip
def test_matrices_that_point_outside_are_refused(form, indices, indptr):
    m = getattr(scipy.sparse, f"{form}_array")(np.eye(2, dtype=np.float32))
    m.indices, m.indptr = np.array(indices, np.int32), np.array(indptr, np.int32)
    for call in (s24.hybrid, s24.from_scipy, lambda m: s24.random((4, 2), rng=0) @ m):
        with pytest.raises(s24.FormatError, match=f"not a valid {form} matrix: .*ind.*coo_array"):
            call(m)


@pytest.mark.parametrize("form", ["coo", "lil"])
@pytest.mark.parametrize("place", [-3, 9])
def test_places_that_were_written_to_are_looked_at(form, place):
    m = getattr(scipy.sparse, f"{form}_array")(np.eye(2, dtype=np.float32))
    if form == "coo":
        m.coords[1][0] = place
    else:
        m.rows[0] = [place]
    for call in (s24.hybrid, s24.from_scipy, lambda m: s24.random((4, 2), rng=0) @ m):
        with pytest.raises(s24.FormatError, match=rf"not a valid {form} matrix: .*ind.*coo_array"):
            call(m)


def test_what_scipy_allows_is_taken():
    data, indptr = np.array([1, 2, 3, 4], np.float32), [0, 2, 2, 4]
    for indices in ([1, 1, 2, 2], [4, 1, 5, 2]):  # duplicates; not in order
        m = scipy.sparse.csr_array((data, np.array(indices, np.int64), indptr), shape=(3, 6))
        for form in (m, m.tocsc(), scipy.sparse.csr_matrix(m)):
            np.testing.assert_array_equal(s24.hybrid(form).toarray(), m.toarray())
            np.testing.assert_array_equal(s24.from_scipy(form).toarray(), m.toarray())
        assert m.indices.tolist() == indices


def test_products_of_elements_by_scipy_name_the_order_that_works():
    dense = s24.prune(np.arange(1, 17, dtype=np.float32).reshape(2, 8))
    a, m = s24.compress(dense), scipy.sparse.csr_array(dense)
    for product in (lambda: m * a, lambda: m.multiply(a)):
        with pytest.raises(s24.DTypeError, match=r"write A \* m"):
            product()
    np.testing.assert_array_equal((a * m).toarray(), dense * dense)
