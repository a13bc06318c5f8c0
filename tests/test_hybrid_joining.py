"""`numpy.concatenate` and the like of hybrid matrices."""

from __future__ import annotations

import numpy as np
import pytest

import sparse24 as s24
from sparse24 import _arrays

DTYPES = ["float16", "bfloat16", "float32", "float64", "int8"]


def drawn(rng, shape, zeros, dtype="float32"):
    w = rng.integers(-9, 10, shape) * (rng.random(shape) >= zeros)
    return w.astype(s24.hybrid(np.zeros((1, 1), np.float32)).astype(dtype).dtype)


def made(w, xp=np):
    h = s24.hybrid(w)
    return h if xp is np else h.to_device("cuda")


def assert_joined(got, dense, axis):
    want = np.concatenate(dense, axis)
    assert isinstance(got, s24.HybridArray)
    np.testing.assert_array_equal(_arrays.to_numpy(got.toarray()), want)
    again = s24.hybrid(want)
    assert (got.shape, got.dtype, got.nnz) == (want.shape, want.dtype, again.nnz)
    if got.device == "cpu" and got.stored.is_listed == again.stored.is_listed:
        for part, other in zip(got.stored.elements, again.stored.elements, strict=True):
            np.testing.assert_array_equal(part, other)
    x = np.ones((want.shape[1], 3), want.dtype)
    y = got @ (x if got.device == "cpu" else _arrays.cupy_module().asarray(x))
    product = want.astype(np.float64) @ x.astype(np.float64)
    np.testing.assert_array_equal(_arrays.to_numpy(y).astype(np.float64), product)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_matrices_are_joined(dtype, axis, rng, xp):
    sizes = (70, 64, 1, 130)
    shapes = [(m, 40) if axis == 0 else (40, m) for m in sizes]
    dense = [drawn(rng, shape, z, dtype) for shape, z in zip(shapes, (0.5, 0.9, 0.0, 1.0))]
    got = np.concatenate([made(w, xp) for w in dense], axis=axis)
    assert_joined(got, dense, axis)


def test_numpys_other_names_join_too(rng):
    dense = [drawn(rng, (50, 30), 0.8) for _ in range(3)]
    assert_joined(np.vstack([made(w) for w in dense]), dense, 0)
    assert_joined(np.hstack([made(w) for w in dense]), dense, 1)


def test_transposed_and_listed_matrices_are_joined(rng, xp):
    from scipy import sparse

    wide, nearly_empty = drawn(rng, (90, 2000), 0.9), drawn(rng, (900, 2000), 0.9995)
    listed = s24.hybrid(sparse.csr_array(nearly_empty))
    assert listed.stored.is_listed
    if xp is not np:
        listed = listed.to_device("cuda")
    turned = made(np.ascontiguousarray(wide.T), xp).T
    assert_joined(np.concatenate([turned, listed]), [wide, nearly_empty], 0)
    assert_joined(np.concatenate([listed, listed]), [nearly_empty] * 2, 0)
    assert np.concatenate([listed, listed]).stored.is_listed
    assert_joined(np.concatenate([turned.T, turned.T], axis=1), [wide.T] * 2, 1)


def test_empty_matrices_are_joined(rng):
    w = drawn(rng, (5, 8), 0.5)
    none = np.zeros((0, 8), w.dtype)
    assert_joined(np.concatenate([made(none), made(w)]), [none, w], 0)
    assert_joined(np.concatenate([made(w)]), [w], 0)


def test_what_is_joined_keeps_the_hint(rng):
    hinted = s24.hybrid(drawn(rng, (64, 64), 0.7), n_hint=8)
    assert np.concatenate([hinted, hinted]).n_hint == 8


def test_what_does_not_fit_is_refused(rng):
    h = made(drawn(rng, (8, 16), 0.5))
    with pytest.raises(s24.DTypeError, match="with one another, got ndarray; make one of it"):
        np.concatenate([h.toarray(), h])
    with pytest.raises(s24.DTypeError, match=r"got Sparse24Array; .*hybrid\(x\.toarray\(\)\)"):
        np.concatenate([h, s24.random(h.shape)])
    with pytest.raises(s24.DTypeError, match=r"float32 and float16; convert with .astype"):
        np.concatenate([h, h.astype("float16")])
    with pytest.raises(s24.ShapeError, match=r"differ in axis 0 only, got shapes \(8, 16\) and"):
        np.concatenate([h, h[:, :8]])
    with pytest.raises(s24.ArgumentError, match=r"takes no dtype= with sparse arrays"):
        np.concatenate([h, h], dtype=np.float64)
    with pytest.raises(s24.ArgumentError, match="axis must be in"):
        np.concatenate([h, h], axis=2)
    with pytest.raises(s24.ArgumentError, match="axis must be an integer, got None"):
        np.concatenate([h, h], axis=None)
    for more in ({}, {"axis": 1}, {"dtype": np.float64}):
        with pytest.raises(s24.UnsupportedError, match="keep a list of the matrices, or join"):
            np.stack([h, h], **more)
    with pytest.raises(s24.DTypeError, match="not converted to a dense array implicitly"):
        np.tile(h, 2)
