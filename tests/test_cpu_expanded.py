"""2:4 products with few columns on the CPU that spread what is stored."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import sparse24 as s24
from sparse24 import _dtypes
from sparse24.kernels import _simd_expand, cpu_expanded, cpu_n_m_few, reference

needs_pairs = pytest.mark.skipif(
    _simd_expand.INTEGERS != "int16", reason="this processor spreads no bytes"
)


def case(rng, shape, n):
    a = s24.compress(rng.integers(-128, 128, shape).astype(np.int8), on_excess="prune")
    b = rng.integers(-128, 128, (shape[1], n)).astype(np.int8)
    return a, b, reference.matmul(a.toarray(), b)


@pytest.mark.parametrize("k", [1, 3, 4, 7, 8, 60, 64, 65, 100, 4093])
def test_masks_are_those_of_the_places(rng, k):
    a = s24.compress(rng.integers(-9, 10, (5, k)).astype(np.int8), on_excess="prune")
    groups = -(-k // 4)
    codes = (a.metadata[:, np.arange(groups) // 2] >> 4 * (np.arange(groups) % 2)) & 15
    places = np.stack([codes & 3, codes >> 2], -1).reshape(5, -1).astype(np.uint8)
    want = cpu_n_m_few.masks_of(places, 2, 4, k)
    np.testing.assert_array_equal(cpu_expanded.masks_of_codes(a.metadata, groups), want)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 15, 16, 17, 31, 36, 40])
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (40, 64), (37, 100), (129, 4093)])
def test_repeated_products_are_exact(rng, shape, n):
    a, b, want = case(rng, shape, n)
    for _ in range(3):
        np.testing.assert_array_equal(a @ b, want)
        np.testing.assert_array_equal(b.T @ a.T, want.T)
        np.testing.assert_array_equal(a @ b[:, 0], want[:, 0])


def test_with_options_and_of_parts_of_a_matrix(rng):
    a, b, want = case(rng, (96, 100), 5)
    whole, bias = np.full((192, 10), 7, np.int32), np.arange(96.0)[:, None]
    out = whole[::2, ::2]
    for _ in range(3):
        s24.matmul(a, b, out)
        np.testing.assert_array_equal(out, want)
        scaled = s24.matmul(a, b, epilogue=s24.Epilogue(bias=bias, activation="relu"))
        np.testing.assert_array_equal(scaled, np.maximum(want + bias, 0))
        np.testing.assert_array_equal(a[16:49] @ b, want[16:49])
        np.testing.assert_array_equal(s24.matmul(a, b, dtype="float32"), want)
    assert (whole[1::2] == 7).all()
    assert (whole[:, 1::2] == 7).all()


@needs_pairs
def test_masks_are_made_once_and_counted(rng):
    a, b, _ = case(rng, (64, 128), 4)
    before = a.nbytes
    a @ b
    first = a._operand.rows.derived["masks"]
    assert a.nbytes == before + first.nbytes == before + 64 * 16
    a @ b[:, :2]
    assert a._operand.rows.derived["masks"] is first


@needs_pairs
@pytest.mark.parametrize(("dtype", "n"), [("float32", 4), ("int8", 64)])
def test_other_products_need_no_masks(rng, dtype, n):
    a = s24.compress(np.ones((64, 128), dtype), on_excess="prune")
    a @ np.ones((128, n), dtype)
    assert "masks" not in a._operand.rows.derived


def test_threads_share_a_matrix(rng):
    a, b, want = case(rng, (200, 300), 6)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: a @ b, range(40)))
    assert all(np.array_equal(x, want) for x in found)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 16, 17])
@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (64, 40), (100, 37), (33, 1030)])
@pytest.mark.parametrize("name", _dtypes.NAMES)
def test_products_across_the_groups(rng, name, shape, n):
    dtype = _dtypes.TABLE[name].logical
    a = s24.compress(rng.integers(-3, 4, shape).astype(dtype), on_excess="prune")
    b = rng.integers(-3, 4, (shape[0], n)).astype(dtype)
    want = reference.matmul(a.toarray().T, b)
    for _ in range(3):
        for got in (a.T @ b, (b.T @ a).T, (np.stack([b.T, b.T]) @ a)[1].T):
            np.testing.assert_array_equal(got.astype(np.float64), want)
        np.testing.assert_array_equal((a.T @ b[:, 0]).astype(np.float64), want[:, 0])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_first_product_across_the_groups_has_the_bits_of_all_others(rng, dtype):
    a = s24.compress(rng.standard_normal((300, 260)).astype(dtype), on_excess="prune")
    x = rng.standard_normal((5, 300)).astype(dtype)
    other, first = a.copy(), x @ a
    for again in (x @ a, s24.matmul(x, a), x @ a.copy()):
        np.testing.assert_array_equal(again, first)
    turned = other.T @ x.T
    np.testing.assert_array_equal(other.T @ x.T, turned)
    # BLAS may add up the transposed product in another order, as it does on some processors.
    largest = np.finfo(dtype).eps * (abs(x) @ abs(a.toarray()))
    assert (abs(turned.T - first) <= 8 * largest).all()


def test_parts_of_a_matrix_and_options_across_the_groups(rng):
    a = s24.compress(rng.integers(-3, 4, (96, 100)).astype(np.float32), on_excess="prune")
    x = rng.integers(-3, 4, (4, 96)).astype(np.float32)
    want = reference.matmul(x, a.toarray())
    out, bias = np.full((8, 200), 7, np.float32), np.arange(100, dtype=np.float32)
    for _ in range(3):
        part = reference.matmul(x[:, 16:49], a.toarray()[16:49])
        np.testing.assert_array_equal(x[:, 16:49] @ a[16:49], part)
        s24.matmul(x, a, out[::2, ::2])
        np.testing.assert_array_equal(out[::2, ::2], want)
        got = s24.matmul(x, a, epilogue=s24.Epilogue(bias=bias, activation="relu"))
        np.testing.assert_array_equal(got, np.maximum(want + bias, 0))
        np.testing.assert_array_equal(s24.matmul(x, a, algorithm="dense"), want)
    assert (out[1::2] == 7).all()


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.skipif("float32" not in _simd_expand.SPREAD, reason="this processor spreads nothing")
def test_what_is_not_stored_meets_no_nan(name):
    dtype = _dtypes.TABLE[name].logical
    a = s24.compress(np.array([[1, 0, 2, 0], [0, 3, 0, 4]], dtype))
    got = np.array([[np.nan, 1], [1, np.inf]], dtype) @ a
    got = got.astype(np.float32)
    np.testing.assert_array_equal(got, [[np.nan, 3, np.nan, 4], [1, np.inf, 2, np.inf]])


@pytest.mark.parametrize("pattern", [(2, 4), (1, 2), (4, 8), (3, 4)])
@pytest.mark.parametrize("name", _dtypes.NAMES)
def test_extreme_numbers_are_spread_as_they_are(rng, name, pattern):
    """What is stored is moved byte by byte, and widened on the way."""
    dtype = _dtypes.TABLE[name].logical
    extreme = [-128, -1, 0, 1, 127] if name == "int8" else [-0.0, -1.5, 448, 2**-6, -(2**-9)]
    dense = rng.choice(np.array(extreme).astype(dtype), (5, 100))
    a = s24.compress(dense, pattern=pattern, on_excess="prune")
    eye = np.eye(5).astype(dtype)
    for first in range(5):
        got = eye[first : first + 1] @ a
        np.testing.assert_array_equal(got, a.toarray()[first : first + 1].astype(got.dtype))
