"""NMArray: round trips, products, embeddings, what is waited for."""

from __future__ import annotations

import itertools
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
from n_m_cases import sample
from pruning_cases import on

import sparse24 as s24
from sparse24 import _arrays, _dtypes
from sparse24._errors import UnsupportedError
from sparse24.formats.n_m import NMArray
from sparse24.formats.n_m_parts import embeds_in_24
from sparse24.kernels import reference

pytestmark = pytest.mark.stem("n_m", "compress", "decompress")

PATTERNS = [(1, 2), (1, 4), (2, 4), (2, 8), (4, 8), (6, 8), (4, 6), (8, 16), (3, 5), (31, 32)]


def logical(x, name):
    return _arrays.to_numpy(x).view(_dtypes.TABLE[name].logical)


@pytest.mark.parametrize("name", _dtypes.NAMES)
@pytest.mark.parametrize("shape", [(5, 37), (2, 3, 32), (0, 8), (4, 0)])
def test_round_trip(xp, rng, name, shape):
    x = sample(rng, shape, name, (2, 8))
    given_x, dtype = on(xp, x)
    array = s24.compress(given_x, pattern=(2, 8), dtype=dtype)
    assert isinstance(array, NMArray)
    assert (array.shape, array.dtype, array.ndim) == (shape, x.dtype, len(shape))
    dense = array.toarray()
    assert type(dense) is type(given_x)
    np.testing.assert_array_equal(logical(dense, name), x)
    assert array.nnz == np.count_nonzero(x)
    np.testing.assert_array_equal(_arrays.to_numpy(array.mask()), x != 0)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_arrays_are_those_of_the_reference(xp, rng, pattern):
    x = sample(rng, (6, 50), "float16", pattern)
    x[0, 0], x[1, 3] = -0.0, 0
    array = NMArray.from_dense(xp.asarray(x), pattern=pattern)
    values, places = reference.compress_n_m(x, *pattern)
    np.testing.assert_array_equal(_arrays.to_numpy(array.values).view("u2"), values.view("u2"))
    np.testing.assert_array_equal(_arrays.to_numpy(array.indices), places)


@pytest.mark.parametrize("name", ["float16", "int8", "float8_e5m2"])
def test_from_dense_converts_first_and_takes_bits_of_fp8_as_numbers(name, rng):
    x, row = (9 * rng.standard_normal((6, 20))).astype(np.float32), _dtypes.TABLE[name]
    narrow = reference.to_dtype(x, row.logical)
    how = {"pattern": (3, 5), "on_excess": "prune"}
    want = NMArray.from_dense(narrow, **how)
    for given in (x, narrow, narrow.view(np.uint8)) if row.is_float8 else (x, narrow):
        got = NMArray.from_dense(given, dtype=name, **how)
        assert got.dtype == row.logical
        np.testing.assert_array_equal(got.toarray(), want.toarray())


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("name", ["float32", "bfloat16", "int8", "float8_e5m2", "float64"])
def test_products(xp, rng, pattern, name):
    x = sample(rng, (9, 44), name, pattern)
    b = rng.integers(-4, 5, (44, 6)).astype(np.float32).astype(x.dtype)
    given_x, dtype = on(xp, x)
    array = s24.compress(given_x, pattern=pattern, dtype=dtype)
    want = x.astype(np.float64) @ b.astype(np.float64)
    if dtype is not None:  # plain fp8 bits have no type of their own on the GPU
        return
    for got, wanted in (
        (array @ xp.asarray(b), want),
        (array @ xp.asarray(b[:, 0].copy()), want[:, 0]),
        (xp.asarray(b.T.copy()) @ array.T, want.T),
        (xp.asarray(b[:9].T.copy()) @ array, b[:9].T.astype(np.float64) @ x.astype(np.float64)),
    ):
        result = _dtypes.TABLE[name].result
        assert got.dtype == _dtypes.numpy_dtype(result)
        rounded = reference.to_dtype(wanted, _dtypes.numpy_dtype(result))
        np.testing.assert_array_equal(_arrays.to_numpy(got), rounded)


def test_prunes_on_request_and_names_the_excess(xp, rng):
    x = rng.standard_normal((4, 20)).astype(np.float32)
    array = s24.compress(xp.asarray(x), pattern=(3, 8), on_excess="prune")
    want = s24.prune(x, pattern=(3, 8))
    np.testing.assert_array_equal(_arrays.to_numpy(array.toarray()), want)
    want[2, 8:16] = 1
    message = r"x\[2, 8:16\] has more than 3 non-zeros, the first of 1 such groups"
    with pytest.raises(s24.PatternError, match=message):
        s24.compress(xp.asarray(want), pattern=(3, 8))


def test_mask_and_refused_options(xp, rng):
    x = rng.standard_normal((4, 20)).astype(np.float32)
    kept = s24.mask(x, pattern=(3, 8), method="random", rng=0)
    array = s24.compress(xp.asarray(x), pattern=(3, 8), mask=xp.asarray(kept))
    np.testing.assert_array_equal(_arrays.to_numpy(array.toarray()), np.where(kept, x, 0))
    first = s24.compress(xp.asarray(x), pattern=(3, 8), check=False)
    np.testing.assert_array_equal(_arrays.to_numpy(first.toarray())[:, :3], x[:, :3])
    for option in (
        {"transposable": True},
        {"keep_dense": True},
        {"check": "deferred"},
        {"like": first},
    ):
        with pytest.raises(s24.ArgumentError, match=r"needs pattern \(2, 4\)"):
            s24.compress(x, pattern=(3, 8), **option)


def test_axis_2(xp, rng):
    x = sample(rng, (24, 7), "float32", (24, 32))
    x = s24.prune(x, pattern=(2, 8), axis=0)
    array = s24.compress(xp.asarray(x), pattern=(2, 8), axis=-2)
    assert (array.axis, array.T.axis, array.shape, array.T.shape) == (-2, -1, (24, 7), (7, 24))
    np.testing.assert_array_equal(_arrays.to_numpy(array.toarray()), x)
    np.testing.assert_array_equal(_arrays.to_numpy(array.T.toarray()), x.T)
    v = np.arange(24, dtype=np.float32)
    np.testing.assert_array_equal(_arrays.to_numpy(xp.asarray(v) @ array), v @ x)


def test_numpy_like_members(xp, rng):
    x = sample(rng, (6, 16), "float32", (1, 4))
    array = s24.compress(xp.asarray(x), pattern=(1, 4))
    np.testing.assert_array_equal(_arrays.to_numpy(array[2:5].toarray()), x[2:5])
    assert array.astype("float16").dtype == np.float16
    assert array.astype("float8_e5m2").nnz == array.nnz
    assert s24.compress(xp.asarray(x), pattern=(1, 4), dtype="int8").dtype == np.int8
    assert array.copy().values is not array.values
    assert array.to_device("cpu").device == "cpu"
    np.testing.assert_array_equal(array.to_device("cpu").toarray(), x)
    assert _arrays.to_numpy(array.tocsr().toarray()).tolist() == x.tolist()
    assert array.density == np.count_nonzero(x) / x.size
    assert array.nbytes == 6 * 4 * 5
    out = xp.empty_like(array.toarray())
    assert array.toarray(out) is out
    with pytest.raises(AttributeError, match="immutable"):
        array.pattern = (2, 4)


def test_embedding_is_exact_and_refused_where_it_is_not(xp, rng):
    for pattern in PATTERNS:
        x = sample(rng, (8, 60), "float32", pattern)
        array = NMArray.from_dense(xp.asarray(x), pattern=pattern)
        if embeds_in_24(*pattern):
            np.testing.assert_array_equal(_arrays.to_numpy(array.to_24().toarray()), x)
        else:
            with pytest.raises(s24.PatternError, match="does not embed into 2:4"):
                array.to_24()


def test_embedding_by_brute_force():
    """Against every placement of full groups over one period."""
    for m in range(2, 7):
        for n in range(1, m):
            fullest = 0
            for places in itertools.product(itertools.combinations(range(m), n), repeat=2):
                row = np.zeros(12 * m, int)
                for group in range(12):
                    row[[group * m + i for i in places[group % 2]]] = 1
                fullest = max(fullest, row.reshape(-1, 4).sum(1).max())
            assert embeds_in_24(n, m) == (fullest <= 2), (n, m)


def test_what_products_are_made_of_is_waited_for_once(monkeypatch):
    """Other streams may read it next, such as torch's, which do not wait for CuPy's."""
    settled: list = []
    monkeypatch.setattr(_arrays, "settle", settled.append)
    array = s24.compress(np.eye(8, dtype=np.float32), pattern=(1, 4))
    for _ in range(2):
        array @ np.ones(8, np.float32)
        np.ones(8, np.float32) @ array.T
    assert [x is array._values for x in settled] == [True]


def test_a_gpu_is_waited_for_but_in_a_capture(monkeypatch):
    waits: list = []
    stream = SimpleNamespace(synchronize=lambda: waits.append(1))
    cuda = SimpleNamespace(get_current_stream=lambda: stream)
    monkeypatch.setattr(_arrays, "cupy_module", lambda: SimpleNamespace(cuda=cuda))
    for on_gpu, capturing, want in ((False, False, 0), (True, True, 0), (True, False, 1)):
        monkeypatch.setattr(_arrays, "is_cupy", lambda x, on_gpu=on_gpu: on_gpu)
        monkeypatch.setattr(_arrays, "is_capturing", lambda capturing=capturing: capturing)
        _arrays.settle(np.ones(3))
        assert len(waits) == want


def test_refusals(rng):
    x = np.zeros((4, 15), np.float32)
    with pytest.raises(s24.PatternError, match="windows need an even m"):
        s24.compress(x, pattern=(2, 5)).windows()
    with pytest.raises(s24.PatternError, match="windows need an even m and n <= m - 2"):
        s24.compress(x, pattern=(7, 8)).windows()
    array = s24.compress(x, pattern=(4, 8))
    with pytest.raises(s24.ShapeError, match="do not fit"):
        array @ np.ones((4, 2), np.float32)
    with pytest.raises(s24.ShapeError, match="at least two axes"):
        s24.compress(np.zeros(8, np.float32), pattern=(4, 8))


def test_patterns_that_embed_take_every_argument(rng):
    w, x = rng.standard_normal((6, 16)).astype(np.float32), np.ones((3, 16), np.float32)
    a = s24.compress(w, pattern=(1, 4), on_excess="prune")
    bias, out = np.arange(6.0, dtype=np.float32), np.zeros((3, 6), np.float32)
    want = np.maximum(x @ a.toarray().T + bias, 0)
    got = s24.linear(x, a, bias, activation="relu")
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    e = s24.Epilogue(bias=bias, activation="relu")
    assert s24.matmul(x, a.T, out, epilogue=e) is out
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-5)


def test_one_embedded_array_serves_both_sides_and_is_counted():
    a = s24.compress(np.eye(8, dtype=np.float32), pattern=(1, 4))
    before = a.nbytes
    _ = np.ones((2, 8), np.float32) @ a.T
    held = a.nbytes
    assert held == a.T.nbytes == before + a.embedded().nbytes
    _ = a @ np.ones(8, np.float32)
    assert a.nbytes == held


def test_a_graph_does_not_hold_the_first_product(monkeypatch, rng):
    a = NMArray.from_dense(sample(rng, (8, 16), "float32", (1, 2)), pattern=(1, 2))
    with monkeypatch.context() as capture:
        capture.setattr(_arrays, "is_cupy", lambda x: True)
        capture.setattr(_arrays, "is_capturing", lambda: True)
        with pytest.raises(UnsupportedError, match="run it once before the capture"):
            a.embedded()
    first = a.embedded()
    monkeypatch.setattr(_arrays, "is_cupy", lambda x: True)
    monkeypatch.setattr(_arrays, "is_capturing", lambda: True)
    assert a.embedded() is first


@pytest.mark.parametrize("shape", [(1024, 1024), (2, 8, 256, 256), (4096, 4, 64)])
def test_a_factor_of_columns_needs_no_number_for_each_element(shape, rng):
    array = s24.compress(
        rng.normal(size=shape).astype(np.float16), pattern=(6, 8), on_excess="prune"
    )
    factor = rng.uniform(0.5, 2, shape[-1]).astype(np.float16)
    want = array.toarray() * factor  # also takes the imports of a first call
    tracemalloc.start()
    got = array * factor
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * array.values.size + 4e6
    np.testing.assert_array_equal(got.toarray(), want)
