"""2:4 products of int8 by few columns on the CPU, repeated: by masks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import sparse24 as s24
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
