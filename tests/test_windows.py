"""Windows24: patterns such as 6:8 as 2:4 over a longer k, their products, and NumPy's functions."""

from __future__ import annotations

import re

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

import sparse24 as s24
from sparse24 import _arrays
from sparse24.formats.windows import Windows24

pytestmark = pytest.mark.stem("n_m", "compress", "decompress")


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 8), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_windows_hold_every_element_once(half, k, seed):
    m = 2 * half
    rng = np.random.default_rng(seed)
    x = s24.prune(rng.integers(-9, 10, (5, k)).astype(np.float32), pattern=(m - 2, m))
    windows = Windows24.from_dense(x, (m - 2, m))
    assert s24.is_24(windows.array.toarray())
    back = np.zeros_like(x)
    for column, source in zip(windows.array.toarray().T, windows.index, strict=True):
        back[:, source] += column
    np.testing.assert_array_equal(back, x)


def test_windows_take_either_name_of_an_axis():
    x = np.zeros((8, 12), np.float32)
    x[:6, [0, 3, 5]] = 1
    for axis, same in [(1, -1), (0, -2)]:
        by_name = Windows24.from_dense(x, (6, 8), axis=axis)
        assert by_name.axis == same
        np.testing.assert_array_equal(by_name.toarray(), x)
    with pytest.raises(s24.ArgumentError, match="axis must be one of the last two, got 0"):
        Windows24.from_dense(x[None], (6, 8), axis=0)
    with pytest.raises(s24.ShapeError, match="dense must have at least two axes"):
        Windows24.from_dense(x[0], (6, 8))


@pytest.mark.parametrize("pattern", [(6, 8), (4, 6), (4, 8), (14, 16)])
def test_products_over_windows(xp, rng, pattern):
    x = s24.prune(rng.integers(-9, 10, (9, 44)).astype(np.float32), pattern=pattern)
    b = rng.integers(-4, 5, (2, 44, 8)).astype(np.float32)
    array = s24.compress(xp.asarray(x), pattern=pattern)
    windows = array.windows()
    np.testing.assert_array_equal(_arrays.to_numpy(windows @ xp.asarray(b)), x @ b)
    np.testing.assert_array_equal(
        _arrays.to_numpy(windows @ xp.asarray(b[0, :, 0].copy())), x @ b[0, :, 0]
    )
    turned = array.T.windows()
    got = xp.asarray(b[0].T.copy()) @ turned
    np.testing.assert_array_equal(_arrays.to_numpy(got), b[0].T @ x.T)
    with pytest.raises(s24.ShapeError, match=r"serve x @ W, not W @ b; use W\.toarray\(\) @ b"):
        turned @ xp.asarray(b[0])
    with pytest.raises(s24.ShapeError, match=r"and x @ W\.T, not x @ W; use x @ W\.toarray"):
        xp.asarray(b[0].T.copy()) @ windows
    again = xp.asarray(b[0].T.copy()) @ windows.T
    np.testing.assert_array_equal(_arrays.to_numpy(again), b[0].T @ x.T)


@pytest.mark.parametrize("dtype", ["float32", "int8", "float8_e4m3fn"])
@pytest.mark.parametrize("shape", [(5, 16), (3, 13), (2, 4, 24), (0, 16), (5, 0), (2, 0, 7)])
@pytest.mark.parametrize("pattern", [(6, 8), (4, 6), (2, 6)])
def test_windows_give_the_matrix_back(rng, pattern, shape, dtype):
    x = rng.integers(1, 9, shape).astype(np.float32)
    array = s24.compress(x, pattern=pattern, on_excess="prune", dtype=dtype)
    windows = array.windows()
    np.testing.assert_array_equal(windows.toarray(), array.toarray())
    np.testing.assert_array_equal(windows.mT.toarray(), array.mT.toarray())
    assert (windows.ndim, windows.device) == (len(shape), "cpu")
    if len(shape) > 2:
        with pytest.raises(s24.ArgumentError, match="T is for matrices, got 3 axes"):
            windows.T  # noqa: B018


def test_windows_give_the_bits_of_nan_back():
    bits = np.array([[0x7F800001, 0xFFC12345, 0, 0, 0x7F800000, 0x80000001, 0, 0]], np.uint32)
    array = s24.compress(bits.view(np.float32), pattern=(6, 8))
    np.testing.assert_array_equal(array.windows().toarray().view(np.uint32), bits)


def test_names_of_other_arrays_lead_to_the_array_before(rng):
    windows = s24.compress(rng.random((4, 8)), pattern=(6, 8), on_excess="prune").windows()
    for name, way in (
        ("astype", ".astype"), ("to_device", ".to_device"), ("sum", ".sum"),
        ("cuda", '.to_device("cuda")'), ("diagonal", ".tocsr().diagonal"),
    ):  # fmt: skip
        assert not hasattr(windows, name)
        words = rf"no attribute '{name}'; use A{re.escape(way)} of the n:m array A, before A\.win"
        with pytest.raises(AttributeError, match=words):
            getattr(windows, name)
    with pytest.raises(AttributeError, match=r"use sparse24\.save_.* with the n:m array A, before"):
        windows.save  # noqa: B018
    with pytest.raises(AttributeError, match=r"has no attribute 'asytpe'$"):
        windows.asytpe  # noqa: B018


def test_windows_meet_numpy_and_scipy_as_other_formats_do(rng):
    x, b = rng.standard_normal((6, 20)).astype(np.float32), np.ones((20, 3), np.float32)
    windows = s24.compress(x, pattern=(6, 8), on_excess="prune").windows()
    dense = windows.toarray()
    assert (windows.nnz, windows.size) == (np.count_nonzero(dense), 120)
    np.testing.assert_array_equal(windows.tocsr().toarray(), dense)
    other = scipy.sparse.csr_array(b)
    for product in (np.matmul(windows, b), windows @ other, (other.T @ windows.mT).T):
        np.testing.assert_allclose(product, dense @ b, rtol=1e-5, atol=1e-5)
    for function in (np.asarray, np.count_nonzero, np.transpose, np.sum, lambda w: w == 0):
        with pytest.raises(s24.DTypeError, match="Windows24"):
            function(windows)
    with pytest.raises(s24.DTypeError, match="Windows24 is not compared element by element"):
        np.array_equal(windows, dense)
    with pytest.raises(s24.DTypeError, match=r"compare its \.toarray\(\)$"):  # it has no mask()
        windows == dense  # noqa: B015
    with pytest.raises(s24.ArgumentError, match="truth value of Windows24"):
        bool(windows)
