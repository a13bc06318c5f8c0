"""compress, asarray, from_scipy, random, backend: rules, errors, other libraries."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse
from scipy.sparse.linalg import aslinearoperator

import sparse24 as s24
from sparse24 import _dtypes
from sparse24._arrays import to_numpy
from sparse24.kernels import reference


def test_a_bad_group_is_named():
    x = np.zeros((3, 12), np.float32)
    x[1, 4:8] = 1
    x[2, 8:11] = 1
    with pytest.raises(s24.PatternError, match=r"x\[1, 4:8\].*first of 2 such groups.*prune"):
        s24.compress(x)
    with pytest.raises(s24.PatternError, match=r"x\[4:8, 1\]"):
        s24.compress(x.T, axis=-2)


def test_pruning_keeps_the_largest():
    x = np.array([[1, -5, 5, 2, np.nan, 9, np.inf, 0]], np.float32)
    kept = s24.compress(x, on_excess="prune").toarray()
    np.testing.assert_array_equal(kept, [[0, -5, 5, 0, np.nan, 0, np.inf, 0]])


@pytest.mark.stem("like")
@pytest.mark.parametrize("axis", [-1, -2])
def test_like_takes_the_places_of_the_non_zeros(xp, rng, axis):
    x = rng.normal(size=(24, 16)).astype(np.float16)
    old = s24.prune(np.where(rng.random(x.shape) < 0.4, x, np.float16(0)), axis=axis)
    again = s24.compress(xp.asarray(x), like=s24.compress(xp.asarray(old), axis=axis), axis=axis)
    got = to_numpy(again.toarray())
    np.testing.assert_array_equal(got, np.where(old != 0, x, np.float16(0)))
    assert again.axis == axis


@pytest.mark.stem("compress")
@pytest.mark.parametrize("axis", [-1, -2])
def test_scores_choose(xp, rng, axis):
    x = rng.normal(size=(2, 12, 20)).astype(np.float32)
    scores = rng.integers(-3, 4, x.shape)
    a = s24.compress(xp.asarray(x), scores=xp.asarray(scores), on_excess="prune", axis=axis)
    np.testing.assert_array_equal(to_numpy(a.toarray()), s24.prune(x, scores=scores, axis=axis))
    with pytest.raises(s24.ArgumentError, match="pass on_excess='prune'"):
        s24.compress(xp.asarray(x), scores=xp.asarray(scores))
    with pytest.raises(s24.ArgumentError, match=r"^scores= needs pattern \(2, 4\)"):
        s24.compress(x, scores=scores, on_excess="prune", pattern=(1, 4))
    with pytest.raises(s24.ShapeError, match="scores must have the shape of x"):
        s24.compress(x, scores=scores[0], on_excess="prune")


def test_mask_and_like(rng):
    x = rng.normal(size=(6, 16)).astype(np.float32)
    mask = s24.random((6, 16), rng=1).mask()
    a = s24.compress(x, mask=mask)
    np.testing.assert_array_equal(a.toarray(), np.where(mask, x, 0))
    np.testing.assert_array_equal(s24.compress(2 * x, like=a).toarray(), 2 * a.toarray())
    for axis, place in ((-1, "0, 0:4"), (-2, "0:4, 0")):
        with pytest.raises(s24.PatternError, match=rf"mask\[{place}\] keeps more than 2"):
            s24.compress(np.zeros_like(x), mask=np.ones_like(mask), axis=axis, on_excess="prune")
    with pytest.raises(s24.ShapeError, match="mask must have the shape of x"):
        s24.compress(x, mask=mask[:3])
    with pytest.raises(s24.DTypeError, match="boolean"):
        s24.compress(x, mask=mask.astype(np.int8))
    with pytest.raises(s24.ArgumentError, match="not two"):
        s24.compress(x, mask=mask, like=a)
    with pytest.raises(s24.ArgumentError, match=r"like must be .*got ndarray; .*mask=like != 0"):
        s24.compress(x, like=a.toarray())


@pytest.mark.stem("compress")
@pytest.mark.parametrize("axis", [-1, -2])
def test_like_along_the_other_axis_loses_nothing(xp, axis):
    x = xp.ones((8, 8), np.float32)
    old = s24.prune(np.ones((8, 8), np.float32), axis=-3 - axis)
    like = s24.compress(xp.asarray(old), axis=-3 - axis)
    with pytest.raises(s24.PatternError, match=rf"^like\[.*keeps more than 2.*axis={-3 - axis}"):
        s24.compress(x, like=like, axis=axis)
    like = s24.compress(xp.eye(8, dtype=np.float32), axis=-3 - axis)
    np.testing.assert_array_equal(
        to_numpy(s24.compress(x, like=like, axis=axis).toarray()), np.eye(8)
    )


@pytest.mark.parametrize("pattern", [(2, 4), (1, 4)])
def test_whatever_is_true_looks(pattern):
    for check in (True, 1, np.True_):
        with pytest.raises(s24.PatternError, match="non-zeros"):
            s24.compress(np.ones((2, 8)), check=check, pattern=pattern)
    for check in (False, 0, np.False_):
        s24.compress(np.ones((2, 8)), check=check, pattern=pattern, keep_dense=np.False_)


def test_axis_minus_two(rng):
    x = s24.random((5, 12), rng=0).toarray().T
    a = s24.compress(x, axis=0)
    assert a.axis == -2
    np.testing.assert_array_equal(a.toarray(), x)
    with pytest.raises(s24.ArgumentError, match="moveaxis"):
        s24.compress(np.zeros((4, 4, 4), np.float32), axis=0)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x[::2],
        lambda x: x[:, 4:],
        lambda x: np.asfortranarray(x),
        lambda x: x[::-1],
        lambda x: np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(x.dtype).reshape(x.shape),
    ],
    ids=["strided", "offset", "column-major", "reversed", "misaligned"],
)
def test_views_of_any_stride(change):
    x = change(s24.random((8, 24), rng=0).toarray())
    np.testing.assert_array_equal(s24.compress(x).toarray(), x)


@pytest.mark.parametrize("shape", [(0, 8), (3, 0), (0, 0), (2, 0, 4)])
def test_empty_arrays(shape):
    a = s24.compress(np.zeros(shape, np.float32))
    assert a.toarray().shape == shape
    assert a.nnz == 0
    assert a.density == 0.0


def test_negative_zero_is_a_zero():
    x = np.array([[-0.0, 1, -0.0, 2]], np.float32)
    back = s24.compress(x).toarray()
    assert not np.signbit(back).any()
    np.testing.assert_array_equal(back, [[0, 1, 0, 2]])


def test_dtype_narrows_on_request_only():
    x = np.array([[1.0, 0, 0, 2]])
    assert s24.compress(x).dtype == np.float64
    assert s24.compress(x, dtype="float16").dtype == np.float16
    with pytest.raises(s24.DTypeError, match="convert it first"):
        s24.compress(x.astype(np.int64))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "bfloat16", "float8_e4m3fn"])
@pytest.mark.parametrize("given", [bool, np.int64, np.uint8, np.uint16])
@pytest.mark.parametrize("make", [s24.from_scipy, s24.compress, s24.asarray])
def test_whole_numbers_are_converted_on_request(make, given, dtype):
    a = make(scipy.sparse.eye_array(8, dtype=given), dtype=dtype)
    assert a.dtype.name == dtype
    np.testing.assert_array_equal(a.toarray().astype(np.float32), np.eye(8))


def test_sparse_arrays_are_compressed_anew():
    a = s24.random((4, 8), rng=0)
    np.testing.assert_array_equal(s24.compress(a).toarray(), a.toarray())
    other = s24.compress(np.eye(8), pattern=(1, 4))
    np.testing.assert_array_equal(s24.asarray(other).toarray(), np.eye(8))


@pytest.mark.parametrize("axis", [-1, -2])
def test_sparse_arrays_along_the_other_axis_name_it(rng, axis):
    """Pruning them, as dense arrays that do not fit, would lose elements."""
    a = s24.random((128, 128), rng=rng)
    for array in (a, s24.quantise(a)):
        array = array if axis == -1 else array.T
        with pytest.raises(s24.PatternError, match=f"the other axis: pass axis={axis}$"):
            s24.compress(array, axis=-3 - axis)
        again = s24.compress(array, axis=axis)
        np.testing.assert_array_equal(again.toarray(), array.toarray())


@pytest.mark.parametrize("shape", [8, (8,), (-1, 4), ("a", 4), (2.5, 4)])
def test_shapes_are_whole_numbers(shape):
    with pytest.raises(s24.ShapeError, match=r"shape must be \(\.\.\., m, k\), whole numbers"):
        s24.random(shape)
    parts = np.ones((4, 4)), np.full((4, 1), 0x44, np.uint8)
    with pytest.raises(s24.ShapeError, match="shape must be"):
        s24.convert.from_parts(*parts, shape)
    with pytest.raises(s24.ShapeError, match=r"shape must be \(m, k\)"):
        s24.convert.from_bitmask(np.ones(4), np.zeros((4, 1), np.uint8), (2, 4, 4))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: s24.compress("w.npy"), s24.DTypeError, "x must be an array, got str"),
        (lambda: s24.hybrid(b"w.mtx"), s24.DTypeError, "w must be an array, got bytes; read the"),
        (
            lambda: s24.random((4, 4)) @ aslinearoperator(np.eye(4)),
            s24.DTypeError,
            "wrap the sparse",
        ),
        (lambda: s24.hybrid(Path("w.npy")), s24.DTypeError, "Path; read the file first"),
        (lambda: s24.prune(SimpleNamespace(weight=1)), s24.DTypeError, r"; pass its \.weight$"),
        (lambda: s24.prune({"w": np.eye(4)}), s24.DTypeError, "dict; pass its arrays one by one"),
        (lambda: s24.compress([None]), s24.DTypeError, "x must hold numbers, got a list"),
        (lambda: s24.compress(None), s24.DTypeError, "x must be an array, got NoneType"),
        (lambda: s24.compress([[1.0, 0], [1.0]]), s24.ShapeError, "x must be an array: "),
        (lambda: s24.compress(np.eye(4), pattern=(2.5, 4)), s24.PatternError, "must be a pair"),
        (lambda: s24.prune(scipy.sparse.eye_array(4)), s24.DTypeError, r"\.toarray\(\)"),
        (lambda: s24.is_24(s24.random((4, 8), rng=0)), s24.DTypeError, r"\.toarray\(\)"),
        (lambda: s24.advise((64, 64), 0), s24.ArgumentError, "tokens must be positive"),
        (lambda: s24.report({"a": np.eye(4)}, {"b": np.eye(4)}), s24.ArgumentError, "has no 'a'"),
    ],
)
def test_errors_are_ours_and_name_the_rule(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_files_of_several_arrays_name_the_way_to_them(tmp_path):
    np.savez(tmp_path / "layers.npz", up=np.eye(8), down=np.eye(8))
    with np.load(tmp_path / "layers.npz") as file:
        for call in (s24.compress, s24.prune, s24.is_24, s24.hybrid):
            with pytest.raises(s24.DTypeError, match="an array, got NpzFile; pass its arrays one"):
                call(file)


@pytest.mark.parametrize("dtype", [None, np.float64, "float64"])
def test_astype_takes_what_names_a_type_to_numpy(dtype):
    a = s24.random((4, 8), rng=0)
    for x in (a, s24.hybrid(a.toarray()), s24.compress(a.toarray(), pattern=(4, 8))):
        assert x.astype(dtype).dtype == np.float64


@pytest.mark.parametrize("name", _dtypes.NAMES)
def test_random_places_are_chosen_by_a_kernel(name, monkeypatch):
    scores = np.random.default_rng(3).random((5, 30))
    places = reference.top_mask(scores, 2, 4)
    monkeypatch.setattr(reference, "top_mask", None)  # slow, and many times the memory
    np.testing.assert_array_equal(s24.random((5, 30), dtype=name, rng=3).mask(), places)


def test_random_is_reproducible_and_full():
    a, b = s24.random((8, 16), rng=3), s24.random((8, 16), rng=3)
    np.testing.assert_array_equal(a.values, b.values)
    assert a.density == 0.5
    for name in ("int8", "float8_e4m3fn", "float8_e5m2"):  # some of whose numbers round to zero
        assert s24.random((64, 1024), dtype=name, rng=0).density == 0.5


def test_backends_are_named():
    with pytest.raises(s24.ArgumentError, match="name must be one of"), s24.backend("tpu"):
        pass
    with s24.backend("cpu"):
        assert s24.compress(np.eye(4, dtype=np.float32)).device == "cpu"


@pytest.mark.gpu
@pytest.mark.stem("compress")
def test_backend_cuda_takes_numpy_input():
    with s24.backend("cuda"):
        a = s24.compress(np.eye(4, dtype=np.float32))
    assert a.device.startswith("cuda")
    with s24.backend("cpu"), pytest.raises(s24.DeviceError, match="is on a GPU"):
        s24.compress(a.toarray())


def test_backend_cuda_does_not_fall_back(monkeypatch):
    monkeypatch.setattr("sparse24._arrays.cuda_available", lambda: False)
    with pytest.raises(s24.DeviceError, match="no CUDA device"), s24.backend("cuda"):
        pass
    monkeypatch.setattr("sparse24._arrays.cupy_module", lambda: None)  # as if it were installed
    with pytest.raises(s24.DeviceError, match=r"cannot move to cuda:0, as .*; name 'cpu'"):
        s24.random((4, 4), device="cuda:0")


@pytest.mark.parametrize(
    "ask", [lambda: s24.backend("cuda"), s24.autotune, lambda: nullcontext(s24.tuning.path())]
)
def test_who_asks_for_a_gpu_without_cupy_learns_what_to_install(ask, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(s24.DeviceError, match=r"without CuPy; install .*sparse24\[cuda13\]"), ask():
        pass


def test_asarray_passes_arrays_through():
    a = s24.random((4, 8), rng=0)
    assert s24.asarray(a) is a
    assert s24.asarray(a, dtype="float16").dtype == np.float16
    with pytest.raises(s24.PatternError, match="prune"):
        s24.asarray(np.ones((2, 4)))


def test_a_vector_is_refused_with_the_way_out():
    with pytest.raises(s24.ShapeError, match="at least two axes"):
        s24.compress(np.zeros(4, np.float32))
