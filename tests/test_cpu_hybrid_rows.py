"""Products on the CPU over the non-zeros of rows: exact, and the same on any threads."""

from __future__ import annotations

import timeit

import numba
import numpy as np
import pytest
from hybrid_cases import assert_the_same_bits_on_any_threads

import sparse24 as s24
from sparse24._dtypes import TABLE
from sparse24.kernels import _numba, cpu_hybrid_rows, cpu_matmul, reference
from sparse24.kernels.cpu_hybrid_rows import Rows, matmul

COLUMNS = [1, 2, 7, 16, 17, 64, 65, 130]


def whole(rng, shape, density):
    return rng.integers(-4, 5, shape) * (rng.random(shape) < density)


def rows_of(w, dtype):
    dense = w.astype(dtype.logical)
    starts = np.concatenate([[0], np.cumsum(np.count_nonzero(dense, axis=1))])
    columns = np.nonzero(dense)[1].astype(np.uint32)
    return Rows(starts, columns, dense[dense != 0].view(dtype.storage), dtype)


def product(w, b, name="float32"):
    dtype = TABLE[name]
    out = np.full((w.shape[0], b.shape[1]), 7, dtype.accumulator)
    matmul(rows_of(w, dtype), b.astype(dtype.accumulator), out)
    return out


@pytest.mark.parametrize("name", ["float32", "float16", "int8", "float64", "bfloat16"])
@pytest.mark.parametrize("n", COLUMNS)
@pytest.mark.parametrize("density", [0.0, 0.02, 0.3, 1.0])
def test_exact_on_whole_numbers(rng, name, n, density):
    w, b = whole(rng, (37, 203), density), rng.integers(-4, 5, (203, n))
    w[5] = 0
    np.testing.assert_array_equal(product(w, b, name), w @ b)


@pytest.mark.parametrize("shape", [(0, 5, 3), (4, 0, 3), (4, 5, 0), (1, 1, 1), (3, 1, 1)])
def test_small_and_empty(rng, shape):
    m, k, n = shape
    w, b = whole(rng, (m, k), 0.9), rng.integers(-4, 5, (k, n))
    np.testing.assert_array_equal(product(w, b), w @ b)


@pytest.mark.parametrize("n", [1, 64])
def test_operands_of_any_strides(rng, n):
    w, b = whole(rng, (50, 90), 0.2), rng.integers(-4, 5, (90, 2 * n))
    for view in (b[:, ::2], np.asfortranarray(b[:, :n]), b[::-1, :n]):
        np.testing.assert_array_equal(product(w, view), w @ view)
    rows, out = rows_of(w, TABLE["float32"]), np.zeros((50, 2 * n), np.float32)
    matmul(rows, b[:, :n].astype(np.float32), out[:, ::2])
    np.testing.assert_array_equal(out[:, ::2], w @ b[:, :n])
    assert not out[:, 1::2].any()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("n", [2, 5, 64, 130])
def test_few_non_zeros_copy_nothing_of_b(rng, n, order, monkeypatch):
    """Panels of b are made only where enough non-zeros read them."""
    made = []
    pack = cpu_hybrid_rows.pack_panels
    monkeypatch.setattr(cpu_hybrid_rows, "pack_panels", lambda *x: made.append(x) or pack(*x))
    b = np.asarray(rng.integers(-4, 5, (2000, n)), np.float32, order=order)
    for density, packs in ((0.03, False), (0.5, True)):
        w = whole(rng, (60, 2000), density)
        w[7] = 0
        np.testing.assert_array_equal(product(w, b), w @ b)
        assert bool(made) == packs


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8"])
def test_a_transposed_operand_is_widened_in_its_order(rng, dtype):
    H = s24.hybrid(whole(rng, (96, 300), 0.2).astype(TABLE[dtype].logical))
    x = rng.integers(-4, 5, (90, 300)).astype(H.dtype)
    want = x.astype(float) @ H.toarray().astype(float).T
    np.testing.assert_array_equal((x @ H.T).astype(float), want)


@pytest.mark.parametrize("n", [1, 8, 100])
def test_error_is_that_of_a_dense_product(rng, n):
    w = rng.standard_normal((128, 6000)).astype(np.float32)
    w[rng.random(w.shape) < 0.4] = 0
    b = rng.standard_normal((6000, n)).astype(np.float32)
    want = w.astype(np.float64) @ b

    def error(x):
        return np.linalg.norm(x - want) / np.linalg.norm(want)

    assert error(product(w, b)) <= 2 * error(w @ b)


@pytest.mark.parametrize("n", [1, 70])
def test_the_same_bits_on_any_threads(rng, n, monkeypatch):
    assert_the_same_bits_on_any_threads(product, rng, n, monkeypatch)


def test_little_work_is_not_cut(monkeypatch):
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", 2)
    assert len(_numba.slices(1000, 16)) == 8
    assert len(_numba.slices(1000, 16, work=4 * _numba.WAKING)) == 8
    assert len(_numba.slices(1000, 16, work=3 * _numba.WAKING)) == 6
    assert len(_numba.slices(1000, 16, work=_numba.WAKING)) == 2
    assert _numba.slices(1000, 16, work=_numba.WAKING - 1) == [slice(0, 1000)]
    assert len(_numba.slices(1000, 16, 300, work=0)) == 4


def test_middling_products_wake_no_threads(rng, monkeypatch):
    def wake():
        raise AssertionError("threads were woken, which takes longer than the product")

    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", 2)
    monkeypatch.setattr(_numba, "_workers", wake)
    w = s24.prune(whole(rng, (512, 512), 1.0).astype(np.int8))
    values, metadata = reference.compress(w)
    for n in (8, 12):
        b = whole(rng, (512, n), 1.0).astype(np.int8)
        out = np.empty((512, n), np.int32)
        cpu_matmul.matmul(values, metadata, 512, b, out)
        np.testing.assert_array_equal(out, w.astype(int) @ b)
        np.testing.assert_array_equal(product(w, b, "int8"), out)


def test_empty_rows_take_less_time_than_short_ones():
    """In graphs and in wide matrices that are transposed, most rows hold little or nothing."""

    def seconds(each, m=100_000):
        starts, columns = np.arange(m + 1) * each, np.zeros(m * each, np.uint32)
        rows = Rows(starts, columns, np.ones(m * each, np.uint32), TABLE["float32"])
        b, out = np.ones((8, 1), np.float32), np.empty((m, 1), np.float32)
        return min(timeit.repeat(lambda: matmul(rows, b, out), number=1, repeat=40))

    assert seconds(0) < 0.3 * seconds(8)


@pytest.mark.parametrize("each", range(1, 18))
def test_rows_of_each_length_end_where_the_next_begins(rng, each):
    w = np.zeros((9, 40))
    w[::2, rng.permutation(40)[:each]] = rng.integers(1, 5, (5, each))
    b = rng.integers(-4, 5, (40, 1))
    np.testing.assert_array_equal(product(w, b), w @ b)
