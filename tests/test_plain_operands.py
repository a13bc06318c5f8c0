"""matmul of two plain arrays: exact, in the same types, with every argument."""

from __future__ import annotations

import numpy as np
import pytest
from matmul_cases import assert_close, put, sample

import sparse24 as s24
from sparse24 import _dtypes
from sparse24._arrays import to_numpy
from sparse24.kernels import reference


def test_plain_arrays_are_exact(xp, rng):
    sparse = s24.random((8, 16), rng=0).toarray()
    x = rng.standard_normal((16, 5)).astype(np.float32)
    got = s24.matmul(put(sparse, xp), put(x, xp))
    np.testing.assert_allclose(to_numpy(got), sparse @ x, rtol=1e-5, atol=1e-5)
    full = rng.standard_normal((8, 16)).astype(np.float32)
    got = s24.matmul(put(full, xp), put(x, xp))
    np.testing.assert_allclose(to_numpy(got), full @ x, rtol=1e-5, atol=1e-5)
    got = s24.matmul(put(x.T.copy(), xp), put(sparse.T.copy(), xp))
    np.testing.assert_allclose(to_numpy(got), (sparse @ x).T, rtol=1e-5, atol=1e-5)


@pytest.mark.stem("apply_epilogue")
@pytest.mark.parametrize("name", _dtypes.NAMES)
def test_plain_arrays_give_the_same_type_with_and_without_zeros(xp, name, rng):
    """A result must not change its type, or overflow, because a group has a third non-zero."""
    row = _dtypes.TABLE[name]
    full = sample((3, 9, 8), name, rng)
    full[full == 0] = 1
    x = sample((8, 4), name, rng)
    for a in (full, full[0], full[0][::-1], np.asfortranarray(full[0])):
        got = s24.matmul(put(a, xp), put(x, xp), a_dtype=name, b_dtype=name)
        assert to_numpy(got).dtype == _dtypes.numpy_dtype(row.result)
        assert_close(to_numpy(got), reference.matmul(a, x), name, 8)


def test_plain_arrays_take_every_argument(rng):
    full, x = (rng.standard_normal(shape).astype(np.float32) for shape in ((6, 8), (8, 5)))
    sparse = s24.prune(full)
    c, bias = rng.standard_normal((6, 5)).astype(np.float32), np.arange(5.0)
    for w in (full, sparse):
        aux, out = np.zeros((6, 5), np.float32), np.zeros((6, 5), np.float32)
        e = s24.Epilogue(bias=bias, activation="relu", aux=aux)
        got = s24.matmul(w, x, out, c=c, alpha=2.0, beta=3.0, scales=(0.5, 1.0), epilogue=e)
        assert got is out
        np.testing.assert_allclose(aux, w @ x + 3 * c + bias, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(out, np.maximum(aux, 0))
    assert s24.matmul(full, x, dtype="float16").dtype == np.float16
    assert s24.matmul(full, x, algorithm="dense").shape == (6, 5)


def test_plain_vectors_follow_numpy(rng):
    w, v = rng.standard_normal((4, 8)).astype(np.float32), np.ones(8, np.float32)
    np.testing.assert_allclose(s24.matmul(w, v), w @ v, rtol=1e-5)
    np.testing.assert_allclose(s24.matmul(v, w.T), w @ v, rtol=1e-5)
    assert s24.matmul(np.full(300, 100, np.int8), np.full(300, 100, np.int8)) == 3_000_000
    assert s24.matmul([[1.0, 2.0]], [[1.0], [2.0]]) == 5


def test_plain_arrays_of_other_types_multiply_as_their_library_does():
    whole = np.arange(8).reshape(2, 4)
    np.testing.assert_array_equal(s24.matmul(whole, whole.T), whole @ whole.T)
    out = np.zeros((2, 2), complex)
    assert s24.matmul(whole * 1j, whole.T, out) is out
    np.testing.assert_array_equal(out, whole @ whole.T * 1j)
    assert s24.matmul(whole[0], whole[1]) == whole[0] @ whole[1]
    with pytest.raises(s24.DTypeError, match="only the plain product"):
        s24.matmul(whole, whole.T, alpha=2.0)
    with pytest.raises(s24.ShapeError, match=r"out must have the shape of the product, \(2, 2\)"):
        s24.matmul(whole, whole.T, np.zeros((3, 3), int))
    with pytest.raises(s24.DTypeError, match="out must have dtype int64, got float64"):
        s24.matmul(whole, whole.T, np.zeros((2, 2)))
    with pytest.raises(s24.ShapeError, match="a must have at least one axis, got a scalar"):
        s24.matmul(3, 4)


@pytest.mark.parametrize("dtype", ["M8[s]", "m8[s]", "S1", "U1", [("x", "f4")]])
def test_plain_arrays_that_hold_no_numbers_are_refused(dtype):
    x, wrong = np.ones((2, 4), np.float32), np.zeros((3, 4), dtype)
    words = "must hold numbers, got .* which have no product; convert"
    for call in (
        lambda: s24.matmul(x, wrong.T),
        lambda: s24.matmul(wrong, x.T),
        lambda: s24.linear(x, wrong),
    ):
        with pytest.raises(s24.DTypeError, match=words):
            call()
    with pytest.raises(s24.DTypeError, match=words):
        s24.matmul(x, np.full((4, 3), None))


def test_torch_tensors_of_other_types_may_be_written_to():
    torch = pytest.importorskip("torch")
    whole, out = torch.arange(8).reshape(2, 4), torch.zeros(2, 2, dtype=torch.int64)
    assert s24.matmul(whole, whole.T, out) is out
    assert (out == whole @ whole.T).all()
