"""The CPU products against float64, and exactly for integers."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from cpu_matmul_cases import PRODUCTS, operands, result_like
from hypothesis import given, settings
from hypothesis import strategies as st

from sparse24 import _dtypes, testing
from sparse24._errors import ArgumentError, DTypeError, ShapeError
from sparse24._records import PLAIN, Fused
from sparse24.kernels import _numba, cpu_batch, cpu_compress, cpu_matmul, cpu_operand, reference

# (m, k, n): sizes 0 and 1, edges of tiles, of panels and of the steps over K
SHAPES = [
    (0, 4, 4), (4, 0, 4), (4, 4, 0), (1, 1, 1), (5, 7, 3), (13, 30, 9), (7, 64, 16), (9, 33, 17),
    (100, 131, 70), (33, 260, 1), (6, 2100, 8), (12, 2052, 33), (200, 40, 130), (2, 70, 300),
    (205, 134, 330),
]  # fmt: skip
EPSILON = {"float16": 2**-11, "bfloat16": 2**-8, "float32": 2**-24, "float64": 2**-53}


def assert_close(got, a, b):
    """Within the rounding of the sums and of the result; exact for integers."""
    want = reference.matmul(a, b)
    if got.dtype.kind == "i":
        np.testing.assert_array_equal(got, want)
        return
    accumulator = 2**-53 if got.dtype == np.float64 else 2**-24
    size = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
    k = max(a.shape[-1], 1)
    bound = size * accumulator * k + np.abs(want) * EPSILON.get(got.dtype.name, 2**-8)
    assert (np.abs(got.astype(np.float64) - want) <= bound + 1e-12).all()


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", _dtypes.NAMES)
def test_product(rng, name, shape, product):
    m, k, n = shape
    a, values, metadata, b = operands(rng, m, k, n, name)
    out = result_like((m, n), name)
    product(values, metadata, k, b, out)
    assert_close(out, a, b)


@pytest.mark.parametrize("name", _dtypes.NAMES)
def test_dense_product(rng, name):
    a, _, _, b = operands(rng, 9, 30, 12, name, (3,), ())
    out = result_like((3, 9, 12), name)
    cpu_matmul.dense_matmul(a, b, out)
    assert_close(out, a, b)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("n", [3, 17, 40])
@pytest.mark.parametrize("k", [130, 257, 1024])
def test_error_is_at_most_twice_that_of_the_dense_product(k, n, order):
    """Of lengths where OpenBLAS rounds little, too: with one of its orders, some hundred."""
    rng = np.random.default_rng(2)
    a = reference.prune(rng.standard_normal((64, k)).astype(np.float32))
    b = np.asarray(rng.standard_normal((k, n)).astype(np.float32), order=order)
    values, metadata, _ = cpu_compress.compress(a, "check")
    out = result_like((64, n), "float32")
    cpu_matmul.matmul(values, metadata, k, b, out)
    testing.assert_accurate(out, reference.matmul(a, b), rival=a @ b)


@pytest.mark.parametrize("n", [2, 50])
def test_int8_extremes_are_exact(n):
    a = np.zeros((3, 4096), np.int8)
    a[:, ::2] = -128
    values, metadata, _ = cpu_compress.compress(a, "check")
    b = np.full((4096, n), -128, np.int8)
    for product in PRODUCTS:
        out = result_like((3, n), "int8")
        product(values, metadata, 4096, b, out)
        np.testing.assert_array_equal(out, 2048 * 128 * 128)


@pytest.mark.parametrize(
    ("lead_a", "lead_b"),
    [((), (3,)), ((2,), ()), ((2, 1), (3,)), ((9,), (9,)), ((0,), ())],
    ids=str,
)
@pytest.mark.parametrize("n", [1, 20])
@pytest.mark.parametrize("product", PRODUCTS)
def test_batches_broadcast(rng, product, n, lead_a, lead_b):
    a, values, metadata, b = operands(rng, 5, 18, n, "float32", lead_a, lead_b)
    lead = np.broadcast_shapes(lead_a, lead_b)
    out = result_like((*lead, 5, n), "float32")
    product(values, metadata, 18, b, out)
    assert_close(out, a, b)


@pytest.mark.parametrize("name", ["bfloat16", "float32", "int8"])
@pytest.mark.parametrize("n", [4, 37])
def test_strides_of_b_and_out(rng, n, name):
    a, values, metadata, b = operands(rng, 11, 26, n, name)
    wide = np.zeros((52, 3 * n), b.dtype)
    wide[::2, ::3] = b
    raw = np.zeros(b.nbytes + 1, np.uint8)[1:].view(b.dtype).reshape(b.shape)
    raw[...] = b
    raw.flags.writeable = False
    for other in (np.asfortranarray(b), wide[::2, ::3], raw, b[::-1][::-1]):
        tall = result_like((22, 2 * n), name)
        misaligned = np.zeros(11 * n * tall.itemsize + 1, np.uint8)[1:].view(tall.dtype)
        for out in (result_like((n, 11), name).T, tall[::2, ::2], misaligned.reshape(11, n)):
            cpu_matmul.matmul(values, metadata, 26, other, out)
            assert_close(np.ascontiguousarray(out), a, b)


def test_a_stack_with_one_matrix_is_one_product(rng, monkeypatch):
    a, values, metadata, b = operands(rng, 12, 16, 7, "float32", (), (4, 10))
    calls, multiply = [], cpu_matmul._multiply
    monkeypatch.setattr(
        cpu_matmul, "_multiply", lambda *args: (calls.append(args[3].shape), multiply(*args))
    )
    out = result_like((4, 10, 12, 7), "float32")
    cpu_matmul.matmul(values, metadata, 16, b, out)
    assert calls == [(16, 280)]
    assert_close(out, a, b)
    monkeypatch.setattr(cpu_batch, "MOST_FOLDED", 210)  # of three times 70
    calls.clear()
    out[...] = 0
    cpu_matmul.matmul(values, metadata, 16, b, out, Fused(column_bias=np.ones(7)))
    assert calls == [(16, 210), (16, 70)]
    assert_close(out - 1, a, b)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 40), st.integers(1, 70), st.integers(1, 70),
    st.sampled_from(["float32", "int8"]), st.integers(0, 2**32),
)  # fmt: skip
def test_the_kernels_agree_with_the_dense_product(m, k, n, name, seed):
    a, values, metadata, b = operands(np.random.default_rng(seed), m, k, n, name)
    out = result_like((m, n), name)
    cpu_matmul.matmul(values, metadata, k, b, out, PLAIN)
    assert_close(out, a, b)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("n", [1, 5, 40, 700])
def test_the_number_of_threads_changes_no_bit(rng, monkeypatch, n, name):
    _, values, metadata, b = operands(rng, 150, 300, n, name)
    monkeypatch.setattr(_numba, "WAKING", 1)
    results = []
    for threads in (1, 2, 7):
        monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", threads)
        results.append(result_like((150, n), name))
        cpu_matmul.matmul(values, metadata, 300, b, results[-1])
    for other in results[1:]:
        np.testing.assert_array_equal(results[0].view(np.uint8), other.view(np.uint8))


def test_messages(rng):
    _, values, metadata, b = operands(rng, 4, 8, 5, "float32")
    out = np.empty((4, 5), np.float32)
    with pytest.raises(ShapeError, match=r"b must have k = 8 rows, got shape \(7, 5\)"):
        cpu_matmul.matmul(values, metadata, 8, b[:7], out)
    with pytest.raises(ShapeError, match=r"out must have the shape of the product, \(4, 5\)"):
        cpu_matmul.matmul(values, metadata, 8, b, out.T)
    with pytest.raises(DTypeError, match="b must have a type that sums in float32 like float32"):
        cpu_matmul.matmul(values, metadata, 8, b.astype(np.float64), out)
    out.flags.writeable = False
    with pytest.raises(ArgumentError, match="out is read-only"):
        cpu_matmul.matmul(values, metadata, 8, b, out)


@pytest.mark.parametrize("name", _dtypes.NAMES)
@pytest.mark.parametrize("k", [3, 12, 24, 37, 60, 127, 252])
def test_rests_of_rows_in_vectors_and_one_by_one(rng, name, k, monkeypatch):
    """Zeros that fill a vector up multiply no element of b, nor what lies behind its columns."""
    logical = _dtypes.TABLE[name].logical
    values, metadata, _ = cpu_compress.compress(rng.integers(-3, 4, (21, k)).astype(logical))
    dense = cpu_compress.decompress(values, metadata, k).astype(float)
    for n in (1, 3, 16):
        b = rng.integers(-2, 3, (k, n)).astype(logical)
        for limit in (0, 1 << 30):
            monkeypatch.setattr(cpu_operand, "_PADDED", limit)
            out = np.empty((21, n), _dtypes.TABLE[name].accumulator)
            cpu_matmul.matmul(values, metadata, k, b, out)
            np.testing.assert_array_equal(out, dense @ b.astype(float))
