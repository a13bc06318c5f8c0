"""Large hybrid matrices: nothing is made of them for which a device has no room."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse
from hybrid_cases import DTYPES

import sparse24 as s24
from sparse24 import _arrays
from sparse24._dtypes import lookup
from sparse24._hybrid import choice as hybrid_choice
from sparse24._hybrid import cost as hybrid_cost
from sparse24._hybrid import fit as hybrid_fit
from sparse24._hybrid import lines as hybrid_lines
from sparse24._hybrid import predict as hybrid_predict
from sparse24._hybrid import room
from sparse24.formats import hybrid_build
from sparse24.formats.hybrid_listed import are_worth_listing
from sparse24.kernels.chip import H200

MEMORY_OF_H200 = 150 * 10**9
REDDIT, OF_ROW = 232965, 492  # nodes of the graph, and edges of one


@pytest.fixture
def h200(monkeypatch):
    """Times are predicted as on an H200."""
    monkeypatch.setattr(hybrid_fit, "lines", lambda number: hybrid_lines.H200_LINES)
    monkeypatch.setattr(hybrid_predict, "chip", lambda number: H200)
    monkeypatch.setattr(room, "memory", lambda device: MEMORY_OF_H200)


def alike_rows(size: int, of_row: int, dtype: str) -> SimpleNamespace:
    """A matrix on a GPU of which only the lengths of rows and the filled tiles can be found out."""
    known = {
        "row lengths": SimpleNamespace(value=np.full(size, of_row)),
        "filled tiles": SimpleNamespace(value=float((size // 64) ** 2)),
    }
    stored = SimpleNamespace(grid=(-(-size // 64),) * 2, bytes_in_tiles=1e9)
    return SimpleNamespace(
        _dtype=lookup(dtype), stored=stored, size=size**2, shape=(size, size), nnz=size * of_row,
        density=of_row / size, device="cuda:0", prepared=lambda name, make: known[name],
    )  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 8, 64, 512])
def test_a_large_graph_is_multiplied_without_a_dense_copy(h200, dtype, n):
    h = alike_rows(REDDIT, OF_ROW, dtype)
    told = hybrid_choice.explain(h, n)
    assert told["candidates"].keys() == {"tiles", "csr"}
    assert told["choice"] == "csr"
    size = h.size * lookup(dtype).itemsize / 1e9
    assert "paths that need a dense copy of the matrix are left out" in told["reason"]
    assert f"takes {size:.1f} GB and cuda:0 has 150.0 GB" in told["reason"]


def test_a_path_for_which_there_is_no_room_is_refused_with_the_reason(h200):
    b = SimpleNamespace(shape=(REDDIT, 8), strides=(32, 4), dtype=np.dtype(np.float32))
    for path in ("cublas", "panel"):
        with pytest.raises(s24.ArgumentError, match=r"'tiles', 'csr' for .*; paths that need a d"):
            hybrid_choice.choose(alike_rows(REDDIT, OF_ROW, "float32"), b, path, balance=True)


@pytest.mark.parametrize(
    ("size", "dtype", "gigabytes", "fits"),
    [
        (30000, "float16", 150, True), (30000, "float64", 150, True), (60000, "float32", 150, True),
        (30000, "float16", 8, False), (16384, "float64", 8, True), (100000, "int8", 150, False),
    ],
)  # fmt: skip
def test_there_is_room_for_a_share_of_the_memory(monkeypatch, size, dtype, gigabytes, fits):
    monkeypatch.setattr(room, "memory", lambda device: gigabytes * 10**9)
    assert room.for_dense(alike_rows(size, 300, dtype)) == fits


def test_no_words_where_there_is_room(h200):
    assert room.lacking(alike_rows(30000, 30, "float16")) == ""
    assert "left out" not in hybrid_choice.explain(alike_rows(60000, 30, "float16"), 8)["reason"]


def test_the_memory_of_a_device_is_all_of_it(monkeypatch):
    asked = lambda number: SimpleNamespace(mem_info=(3, 100 + number))  # noqa: E731
    cupy = SimpleNamespace(cuda=SimpleNamespace(Device=asked))
    monkeypatch.setattr(_arrays, "cupy_module", lambda: cupy)
    ask = room.memory.__wrapped__
    assert ask("cuda:5") == 105
    assert 1 << 28 < ask("cpu") < 1 << 50
    monkeypatch.delattr(os, "sysconf")
    assert ask("cpu") == sys.maxsize


@pytest.mark.parametrize(
    ("shape", "of_row", "listed"),
    [
        ((REDDIT, REDDIT), OF_ROW, True), ((40000, 40000), 400, True),
        ((40000, 40000), 2100, False), ((30000, 30000), 300, False), ((30000, 30000), 20, True),
        ((16384, 16384), 20, False), ((16384, 16384), 16, True), ((0, 5), 0, False),
        ((1000, 2_000_000), 90_000, True), ((2_000_000, 1000), 60, False),
    ],
)  # fmt: skip
def test_rows_of_large_matrices_are_stored_up_to_a_twentieth(shape, of_row, listed):
    assert are_worth_listing(shape[0] * of_row, shape) == listed


def of_rows(rng, size, of_row):
    """A CSR matrix of SciPy with small whole numbers, as many in each row."""
    step = size // of_row
    columns = step * np.arange(of_row) + rng.integers(0, step, (size, of_row))
    values = rng.integers(1, 4, columns.size).astype(np.float32)
    starts = np.arange(size + 1) * of_row
    return scipy.sparse.csr_array((values, columns.ravel(), starts), (size, size))


def test_a_large_matrix_takes_the_memory_of_csr(rng):
    m = of_rows(rng, 33000, 66)  # of 500 elements one
    h = s24.hybrid(m)
    assert h._tiles.is_listed
    b = rng.integers(-4, 5, (33000, 3)).astype(np.float32)
    for n in (1, 3):
        np.testing.assert_array_equal(h @ b[:, :n], m @ b[:, :n])
        np.testing.assert_array_equal(h.T @ b[:, :n], m.T @ b[:, :n])
    assert h.nbytes < 8.2 * m.nnz + h.T.nbytes
    assert "fewer than one element in 20 is a non-zero" in h.summary(8)
    wide = h.astype("float64")
    assert np.shares_memory(wide.stored.csr.columns, h.stored.csr.columns)  # views, not copies
    assert (2 * h).T.stored.is_listed
    assert (wide.tocsr() != m).nnz == 0


@pytest.fixture
def none(monkeypatch):
    """Devices that have room for nothing."""
    monkeypatch.setattr(room, "ALWAYS", 0)
    monkeypatch.setattr(room, "memory", lambda device: 10**6)


@pytest.fixture
def half_full(rng):
    weight = rng.integers(-3, 4, (600, 700)) * (rng.random((600, 700)) < 0.7)
    return weight.astype(np.float32)


@pytest.mark.parametrize("dtype", ["float32", "int8"])  # of which BLAS multiplies one
def test_the_cpu_multiplies_the_elements_where_there_is_no_room(none, half_full, dtype):
    h = s24.hybrid(half_full, dtype=dtype)
    b = np.ones((700, 200), h.dtype)
    np.testing.assert_array_equal((h @ b).astype(float), half_full.sum(1)[:, None] + 0 * b[:600])
    assert h.is_prepared("cpu")
    assert not h.is_prepared("blas")
    told = h.explain(200)
    assert told["candidates"].keys() == {"cpu"}
    assert ("left out" in told["reason"]) == (dtype != "int8")  # which BLAS does not multiply
    assert "left out" not in h.explain(16)["reason"]  # nor so few columns
    with pytest.raises(s24.ArgumentError, match=r"must be one of 'auto', 'cpu' for this matrix"):
        h.matmul(b, algorithm="blas")


def test_bits_of_all_elements_need_room_as_well(monkeypatch, half_full):
    h = s24.hybrid(half_full)
    monkeypatch.setattr(hybrid_choice.hybrid_on_cpu, "_even_masks", lambda h, n: 0.1)
    assert "masks" in h.explain(4)["candidates"]
    monkeypatch.setattr(room, "ALWAYS", 0)
    monkeypatch.setattr(room, "memory", lambda device: 100_000)
    assert "masks" not in h.explain(4)["candidates"]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8"])
@pytest.mark.parametrize("large", [True, False])
def test_nothing_becomes_dense_on_a_gpu_without_room(rng, none, monkeypatch, dtype, large):
    cupy = pytest.importorskip("cupy")
    from cupyx.scipy.sparse import csr_matrix

    monkeypatch.setattr(hybrid_cost, "LARGE", 1 if large else 1 << 60)
    m = of_rows(rng, 3000, 60)
    h = s24.hybrid(csr_matrix(m), dtype=dtype)
    assert h._tiles.is_listed == large
    monkeypatch.setattr(hybrid_build, "decode", None)
    assert h.explain(8)["candidates"].keys() == {"tiles", "csr"}
    for n in (1, 8, 300):
        b = rng.integers(-2, 3, (3000, n))
        for got, want in (
            (h @ cupy.asarray(b.astype(dtype)), m @ b),
            (h.T @ cupy.asarray(b.astype(dtype)), m.T @ b),
            (cupy.asarray(b.T.astype(dtype)) @ h.T, (m @ b).T),
        ):
            np.testing.assert_array_equal(got.get().astype(float), want)


def test_a_dense_form_that_memory_cannot_hold_is_refused_with_its_size():
    side, at = 3_000_000, np.arange(5)
    m = scipy.sparse.coo_array((np.ones(5, np.float32), (at, at + 7)), shape=(side, side))
    h = s24.hybrid(m)
    for call, size in ((h.toarray, 36000), (h.todense, 36000), (h.T.mask, 45000), (h.mask, 45000)):
        with pytest.raises(s24.DeviceError, match=rf"takes {size}\.0 GB, which cpu does") as told:
            call()
        assert isinstance(told.value, MemoryError)
        assert "take parts such as H[:1000], or .tocsr() and .tocoo()" in str(told.value)
    np.testing.assert_array_equal(h.tocoo().col, at + 7)
    assert h[:3].nnz == 3
    with pytest.raises(MemoryError, match=r"takes 36000\.0 GB") as told:
        h @ h
    assert "is sparse" in told.value.__notes__[0]


@pytest.mark.parametrize("density", [0.0001, 0.5])
def test_it_is_refused_before_it_is_made_and_when_there_is_no_memory(rng, density, monkeypatch):
    shape = (300, 400)
    h = s24.hybrid(scipy.sparse.random_array(shape, density=density, rng=rng, dtype=np.float32))
    want = h.toarray()
    monkeypatch.setattr(room, "ALWAYS", 100)
    monkeypatch.setattr(room, "memory", lambda device: want.nbytes)
    np.testing.assert_array_equal(h.toarray(), want)
    monkeypatch.setattr(hybrid_build, "decode", None)
    with pytest.raises(s24.DeviceError, match=r"the mask, beside the dense matrix, of shape"):
        h.mask()

    def decode(stored):
        raise MemoryError("Unable to allocate")

    monkeypatch.setattr(hybrid_build, "decode", decode)
    for out in (None, np.empty_like(want)):
        with pytest.raises(s24.DeviceError, match=r"the dense matrix of shape \(300, 400\) takes"):
            h.toarray(out)
