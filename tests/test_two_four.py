"""Sparse24Array: members, conversions, immutability, devices."""

from __future__ import annotations

import copy
import gc
import pickle
import timeit
import weakref

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sparse24 as s24
from sparse24 import _arrays, _dtypes, _foreign, _spec, _storage
from sparse24._arrays import to_numpy

SHAPES = [(1, 1), (1, 4), (3, 5), (8, 16), (17, 37), (64, 128), (65, 130), (2, 3, 9, 12)]


def pruned(shape, dtype, rng):
    """A dense 2:4 array of the dtype, with groups of 0 to 2 non-zeros."""
    x = rng.normal(size=shape).astype(np.float32)
    if np.dtype(dtype) == np.int8:
        x = rng.integers(-128, 128, shape)
    x = x.astype(dtype)
    keep = np.asarray(s24.random(shape, rng=rng).mask()) & (rng.random(shape) < 0.8)
    x = np.where(keep, x, np.zeros((), x.dtype))
    x[x == 0] = 0  # rounding to a narrow type leaves -0.0, which reads back as +0.0
    return x


@pytest.mark.parametrize("name", _dtypes.NAMES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_round_trip_is_exact(name, shape, rng):
    row = _dtypes.TABLE[name]
    x = pruned(shape, row.logical, rng)
    a = s24.compress(x)
    assert a.shape == shape
    assert a.dtype == row.logical
    np.testing.assert_array_equal(a.toarray().view(row.storage), x.view(row.storage))
    assert a.nnz == np.count_nonzero(x.astype(np.float64))
    np.testing.assert_array_equal(a.mask(), x.astype(np.float64) != 0)


@given(m=st.integers(0, 40), k=st.integers(0, 70), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_any_size_round_trips(m, k, seed):
    rng = np.random.default_rng(seed)
    x = pruned((m, k), np.float32, rng)
    a = s24.compress(x)
    assert a.values.shape == (m, _spec.values_per_row(k))
    assert a.metadata.shape == (m, _spec.metadata_bytes_per_row(k))
    np.testing.assert_array_equal(a.toarray(), x)
    assert a.packed.shape == _spec.packed_shape(m, k)


@pytest.mark.parametrize("pattern", [(2, 4), (1, 4)])
def test_the_parts_cannot_be_written_to(pattern):
    a = s24.compress(np.eye(8, dtype=np.float32), pattern=pattern)
    names = ("values", "metadata", "packed") if pattern == (2, 4) else ("values", "indices")
    for name in names:
        with pytest.raises(ValueError, match="read-only"):
            getattr(a, name)[...] = 1
    with pytest.raises(AttributeError, match="immutable"):
        a.values = np.ones(3)
    np.testing.assert_array_equal(a.toarray(), np.eye(8))


def test_other_formats_are_not_written_to_either():
    eye = np.eye(8, dtype=np.float32)
    windows = s24.compress(eye, pattern=(6, 8)).windows()
    for a, name in ((s24.hybrid(eye), "kinds"), (windows, "index")):
        with pytest.raises(ValueError, match="read-only"):
            getattr(a, name)[...] = 0
        with pytest.raises(AttributeError, match=f"{type(a).__name__} is immutable; cannot set"):
            a.shape = (4, 16)
        for same in (a, copy.copy(a), pickle.loads(pickle.dumps(a))):
            np.testing.assert_array_equal(same.toarray(), eye)


@pytest.mark.gpu
@pytest.mark.stem("compress", "decompress", "cast")
@pytest.mark.parametrize("name", _dtypes.NAMES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_moves_to_the_gpu_and_back(name, shape, rng):
    row = _dtypes.TABLE[name]
    x = pruned(shape, row.logical, rng)
    there = s24.compress(x).to_device("cuda")
    assert there.device.startswith("cuda")
    assert there.dtype == row.logical
    dense = to_numpy(there.toarray()).view(row.storage)
    np.testing.assert_array_equal(dense, x.view(row.storage))
    back = there.to_device("cpu")
    np.testing.assert_array_equal(back.metadata, s24.compress(x).metadata)
    np.testing.assert_array_equal(to_numpy(there.metadata), back.metadata)
    wide = there.astype("float32").toarray()
    np.testing.assert_array_equal(to_numpy(wide), x.astype(np.float32))


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("options", [{}, {"pattern": (5, 8)}, {"transposable": True}])
def test_arrays_are_freed_with_their_last_reference(xp, rng, options, axis):
    options = {**options, "on_excess": "prune"}
    w = xp.asarray(rng.standard_normal((24, 40)), "float32")
    a = s24.compress(w, **options) if axis == -1 else s24.compress(w.T, axis=-2, **options).T
    before = gc.isenabled()
    gc.disable()
    try:
        for _ in range(2):
            s24.linear(w, a, w[:, 0])
            assert a.T.T is a
            _ = (a @ w.T, w.T @ a, a.T @ w, a.T.nbytes, repr(a))
        held = [weakref.ref(a), weakref.ref(a.T)]
        del a
        assert [ref() for ref in held] == [None, None]
    finally:
        if before:
            gc.enable()


def test_is_immutable():
    a = s24.random((4, 4), rng=0)
    with pytest.raises(AttributeError, match="immutable"):
        a.shape = (2, 8)


def test_asarray_of_numpy_raises_and_names_toarray():
    a = s24.random((4, 4), rng=0)
    with pytest.raises(TypeError, match=r"\.toarray\(\)"):
        np.asarray(a)
    with pytest.raises(ValueError, match="ambiguous"):
        bool(a)


def test_toarray_into_an_array():
    a = s24.random((5, 12), rng=0)
    out = np.full((5, 12), 7, np.float32)
    assert a.toarray(out) is out
    np.testing.assert_array_equal(out, a.toarray())
    turned = np.full((12, 5), 7, np.float32)
    np.testing.assert_array_equal(a.T.toarray(out=turned), a.toarray().T)
    with pytest.raises(s24.ShapeError, match=r"out must have shape \(5, 12\)"):
        a.toarray(np.empty((12, 5), np.float32))
    with pytest.raises(s24.DTypeError, match="out must have dtype float32"):
        a.toarray(np.empty((5, 12)))
    out.flags.writeable = False
    with pytest.raises(s24.ArgumentError, match="read-only"):
        a.toarray(out)


def test_toarray_into_a_tensor_of_torch():
    torch = pytest.importorskip("torch")
    for name in ("float32", "bfloat16", "int8"):
        a = s24.random((6, 8), dtype=name, rng=0)
        n_m = s24.compress(a, pattern=(3, 8), on_excess="prune")
        for array in (a, a.T, n_m, s24.hybrid(a.toarray())):
            out = torch.full(array.shape, 7, dtype=getattr(torch, name))
            assert array.toarray(out=out) is out
            np.testing.assert_array_equal(_foreign.from_torch(out), array.toarray())
    with pytest.raises(s24.DTypeError, match="out must have dtype int8, got float32"):
        a.toarray(out=torch.zeros(6, 8))


def test_astype_converts_values_only():
    a = s24.random((4, 16), rng=0)
    half = a.astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(half.toarray(), a.toarray().astype(ml_dtypes.bfloat16))
    tiny = a.astype("float8_e4m3fn")
    assert tiny.dtype.name == "float8_e4m3fn"
    np.testing.assert_array_equal(tiny.packed, s24.compress(tiny.toarray()).packed)
    assert a.astype(np.float32) is a


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn"])
def test_empty_stacks_are_converted_on_a_gpu(name, monkeypatch):
    a, row = s24.compress(np.zeros((2, 3, 0), np.float32)), _dtypes.TABLE[name]
    monkeypatch.setattr(_arrays, "is_cupy", lambda x: isinstance(x, np.ndarray))
    monkeypatch.setattr(_arrays, "namespace", lambda x: np)
    converted = _storage.cast(a._operand.rows, row)
    assert converted.values.shape == (2, 3, 0)
    assert converted.values.dtype == (np.uint8 if row.is_float8 else row.logical)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(2, 3, 0), (2, 0, 8), (0, 4, 8)])
def test_empty_stacks_are_converted_and_multiplied(shape):
    cupy = pytest.importorskip("cupy")
    *batch, _, k = shape
    for name, result in (("float16", "float32"), ("float64", "float64")):
        a = s24.compress(cupy.zeros(shape, np.float32)).astype(name)
        assert (a.shape, a.dtype.name) == (shape, name)
        for b in (cupy.ones((k, 3), np.float32), cupy.ones((*batch, k, 0), np.float32)):
            y = a @ b
            assert (y.shape, y.dtype.name) == ((*shape[:-1], b.shape[-1]), result)
            assert not y.any()


def test_nbytes_of_sixteen_bits_is_nine_sixteenths():
    a = s24.random((64, 128), dtype="float16", rng=0)
    assert a.nbytes == 64 * 128 * 2 * 9 // 16
    assert a.copy().nbytes == a.nbytes


@pytest.mark.parametrize("transposable", [False, True])
def test_nbytes_counts_what_either_view_has_made(transposable):
    dense = np.eye(64, dtype=np.float32)
    a = s24.compress(dense, on_excess="prune", transposable=transposable)
    before = a.nbytes
    assert a.T.nbytes == before
    made = {id(x.base): x.base.nbytes for x in (a.T.packed, a.packed)}  # one where they are alike
    assert len(made) == 1 + transposable
    assert a.nbytes == a.T.nbytes == before + sum(made.values())


def test_device_names_are_checked():
    a = s24.random((4, 4), rng=0)
    assert a.to_device("cpu") is a
    for name in ("gpu", "gpu:0", "cuda:x", "cuda:-1", 0):
        with pytest.raises(s24.ArgumentError, match=f"device must be .*got {name!r}"):
            a.to_device(name)


def test_devices_of_torch_are_taken(tmp_path):
    torch, matrix = pytest.importorskip("torch"), np.eye(4, dtype=np.float32)
    patterns = (s24.compress(matrix, pattern=pattern) for pattern in ((2, 4), (1, 4)))
    for a in (*patterns, s24.hybrid(matrix)):
        assert a.to_device(torch.device("cpu")) is a
    assert s24.random((4, 4), device=torch.device("cpu")).device == "cpu"
    s24.save_npz(tmp_path / "a.npz", {"a": a, "matrix": matrix})
    loaded = s24.load_npz(tmp_path / "a.npz", device=torch.device("cpu"))
    np.testing.assert_array_equal(loaded["matrix"], loaded["a"].toarray())
    with pytest.raises(s24.ArgumentError, match=r"device must be 'cpu', .* got 'meta'"):
        a.to_device(torch.device("meta"))


def test_zeros_of_narrow_floats_are_found_as_quickly_as_others():
    def seconds(expression, x):
        return min(timeit.repeat(expression, globals={"x": x}, number=1, repeat=20))

    a = s24.random((1024, 1024), rng=0)
    for expression in ("x.nnz", "x.mask()"):
        assert seconds(expression, a.astype("float8_e4m3fn")) < 3 * seconds(expression, a)
    tiny = s24.compress(np.array([[-1e-10, 2, 0, 0]])).astype("float16")  # holds -0.0
    assert tiny.nnz == 1
    assert tiny.mask().tolist() == [[False, True, False, False]]
