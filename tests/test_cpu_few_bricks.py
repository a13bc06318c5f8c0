"""Products of quantised matrices with very few columns on the CPU, which read the bricks."""

from __future__ import annotations

import numpy as np
import pytest
from quantised_cases import exact_matrix, random_parts

import sparse24 as s24
from sparse24 import _dtypes, _quantised
from sparse24.kernels import _numba, cpu, cpu_few_bricks

pytestmark = pytest.mark.skipif(not cpu_few_bricks.AVAILABLE, reason="needs AVX2")

SHAPES = [(1, 4), (3, 0), (16, 128), (17, 126), (50, 300), (130, 1001), (8, 2000), (1000, 9)]
SINGLE = ["float16", "bfloat16", "float32"]
MOST = [(bits, n) for bits, most in cpu_few_bricks._MOST.items() for n in range(1, most + 1)]


@pytest.fixture
def no_dequantising(monkeypatch):
    def refuse(*args):
        raise AssertionError("dequantised")

    monkeypatch.setattr(_quantised, "dequantised", refuse)


def quantised(parts, shape, bits, name="float32"):
    """The array of parts."""
    return s24.convert.from_quantised(*parts, shape, bits=bits, dtype=_dtypes.TABLE[name].logical)


@pytest.mark.parametrize(("bits", "n"), MOST)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", SINGLE)
def test_products_of_rounded_elements(rng, no_dequantising, shape, name, bits, n):
    parts, (m, k), dtype = random_parts(rng, shape, bits), shape, _dtypes.TABLE[name].logical
    q, x = quantised(parts, shape, bits, name), rng.standard_normal((n, k)).astype(dtype)
    if not cpu.bricks_pay(bits, _dtypes.TABLE[name], x.T):
        pytest.skip("with AVX2 halves of 8 bits are dequantised")
    elements = exact_matrix(parts, k).astype(np.float32).astype(dtype).astype(np.float64)
    want, size = elements @ x.T.astype(np.float64), np.abs(elements) @ np.abs(x.T.astype(float))
    out = np.full((m, n), np.nan, np.float32)
    s24.matmul(q, x.T, out, dtype="float32")
    assert (np.abs(out - want) <= 1e-6 * size).all()
    for _ in range(2):  # the second product is a repeated one
        got = x @ q.T
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, out.T.astype(dtype))
    if n == 1:
        np.testing.assert_array_equal(q @ x[0], got[0])


@pytest.mark.parametrize("threads", [1, 3])
def test_a_row_that_ends_with_a_vector_gives_the_bits_of_the_dequantised(rng, monkeypatch, threads):
    """A large one, which threads share, and a small one."""
    monkeypatch.setattr(_numba, "threads", lambda: threads)
    for shape in ((2050, 4096), (70, 640)):
        a = s24.compress(s24.prune(rng.standard_normal(shape).astype(np.float32)))
        q = s24.quantise(a, method="absmax")
        x = rng.standard_normal((2, shape[1])).astype(np.float32)
        np.testing.assert_array_equal(x @ q.T, x @ q.dequantise().T)


@pytest.mark.parametrize(
    ("own", "other"),
    [("float16", "float32"), ("float32", "bfloat16"), ("bfloat16", "float16")],
)
def test_types_that_differ(rng, own, other):
    """Elements are rounded to the type in which a dequantised matrix is multiplied."""
    parts, shape = random_parts(rng, (50, 320), 4), (50, 320)
    b = rng.standard_normal((2, 320)).astype(_dtypes.TABLE[other].logical)
    q = quantised(parts, shape, 4, own)
    before, got = q.nbytes, b @ q.T
    want = b @ quantised(parts, shape, 4).dequantise(own).T
    assert (got.dtype, q.nbytes) == (np.float32, before)
    np.testing.assert_array_equal(got, want)


def test_memory_orders_and_options(rng, no_dequantising):
    parts, shape = random_parts(rng, (50, 300), 4), (50, 300)
    q, x = quantised(parts, shape, 4), rng.standard_normal((3, 300)).astype(np.float32)
    want = x @ q.T
    strided, room = np.empty((6, 600), np.float32), np.zeros((100, 6), np.float32)
    strided[::2, ::2] = x
    for b in (x.T, np.ascontiguousarray(x.T), strided[::2, ::2].T):
        for out in (None, np.empty((3, 50), np.float32).T, room[::2, ::2]):
            np.testing.assert_array_equal(s24.matmul(q, b, out), want.T)
    bias = rng.standard_normal(50).astype(np.float32)
    got = s24.linear(x, q, bias, activation="relu")
    np.testing.assert_allclose(got, np.maximum(want + bias, 0), rtol=1e-6, atol=1e-5)


def test_infinite_and_missing_numbers_count_where_an_element_is_stored(rng, no_dequantising):
    dense = np.zeros((20, 260), np.float32)
    dense[3, [0, 131, 259]] = 1, 2, -2
    q, x = s24.quantise(dense, method="absmax"), np.ones(260, np.float32)
    x[[130, 202]] = np.nan, np.inf
    x[131] = np.inf
    got = q @ x
    assert got[3] == np.inf
    x[131] = np.nan
    assert np.isnan((q @ x)[3])


def test_what_else_is_dequantised(rng, monkeypatch):
    parts, shape = random_parts(rng, (50, 300), 4), (50, 300)
    q, x = quantised(parts, shape, 4), np.ones((2, 300), np.float32)
    before = q.nbytes
    assert "as they are stored" in s24.explain(x, q.T).reason
    x @ q.T
    assert q.nbytes == before
    for product in (
        lambda q: x.astype(np.float64) @ q.T,
        lambda q: np.ones((5, 300), np.float32) @ q.T,
        lambda q: np.ones((2, 50), np.float32) @ q,
        lambda q: q @ np.ones((3, 300, 2), np.float32),
        lambda q: s24.matmul(q, x.T, algorithm="dense"),
    ):
        q = quantised(parts, shape, 4)
        product(q)
        assert q.nbytes > before
    monkeypatch.setattr(cpu_few_bricks, "AVAILABLE", False)
    assert not cpu.bricks_pay(4, _dtypes.TABLE["float32"], x.T)
    assert "dequantises" in s24.explain(x, q.T).reason
