"""Products by few columns of unstructured matrices on the CPU, spread by masks."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hybrid_cases import assert_the_same_bits_on_any_threads

import sparse24 as s24
from sparse24._dtypes import TABLE
from sparse24.kernels import _simd_expand, cpu_hybrid_masks
from sparse24.kernels.cpu_hybrid_masks import FewColumns, Masked

TYPES = ["float16", "bfloat16", "float32", "float64", "int8"]
COLUMNS = [1, 2, 3, 4, 5, 8, 16, 33]
SHAPES = [(1, 1), (3, 7), (37, 203), (64, 64), (65, 129), (5, 1000)]

pytestmark = pytest.mark.skipif(
    not _simd_expand.AVAILABLE, reason="this machine spreads no vectors: other kernels multiply"
)


def whole(rng, shape, density):
    return rng.integers(-4, 5, shape) * (rng.random(shape) < density)


def masked(w, name):
    """Of a matrix of numbers that the type holds; what is not stored is 0 or -0."""
    dtype = TABLE[name]
    dense = np.asarray(w, dtype.logical)
    starts = np.concatenate([[0], np.cumsum(np.count_nonzero(dense, axis=1))])
    columns = np.nonzero(dense)[1].astype(np.uint32)
    bits = dense[dense != 0].view(dtype.storage)
    return Masked(starts, columns, bits, dtype, dense.shape[1])


def product(w, b, name="float32"):
    """In the type of sums, which begin as something else."""
    dtype = TABLE[name]
    out = np.full((w.shape[0], b.shape[1]), 7, dtype.accumulator)
    FewColumns(masked(w, name), *b.shape)(np.asarray(b, dtype.logical), out)
    return out


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("density", [0.0, 0.1, 0.6, 1.0])
def test_exact_on_whole_numbers(rng, name, density):
    for m, k in SHAPES:
        w = whole(rng, (m, k), density)
        w[m // 2] = 0
        for n in COLUMNS:
            b = rng.integers(-4, 5, (k, n))
            np.testing.assert_array_equal(product(w, b, name), w @ b)


@pytest.mark.parametrize("name", TYPES)
def test_results_of_the_type_of_the_operands(rng, name):
    w, b = whole(rng, (40, 90), 0.5), rng.integers(-2, 3, (90, 3))
    dtype = TABLE[name]
    out = np.full((80, 3), 7, np.int32 if name == "int8" else dtype.logical)
    FewColumns(masked(w, name), 90, 3)(b.astype(dtype.logical), out[::2])
    np.testing.assert_array_equal(out[::2].astype(float), w @ b)
    assert (out[1::2] == 7).all()


@pytest.mark.parametrize("n", [1, 6])
def test_operands_of_any_strides(rng, n):
    w, b = whole(rng, (50, 90), 0.4), rng.integers(-4, 5, (90, 2 * n)).astype(np.float32)
    for view in (
        b[:, ::2],
        np.asfortranarray(b[:, :n]),
        b[::-1, :n],
        np.broadcast_to(b[:1], b.shape),
    ):
        np.testing.assert_array_equal(product(w, view), w @ view)


def test_what_is_not_stored_has_no_effect_and_what_is_has(rng):
    w = whole(rng, (20, 70), 0.5).astype(float)
    w[:, 11] = -0.0
    w[3] = 0
    w[4, 5], w[6, 7] = np.nan, np.inf
    b = np.ones((70, 5))
    b[11] = np.nan
    b[11, 1] = np.inf
    finite = np.where(np.isnan(b) | np.isinf(b), 0, b)
    for name in ("float32", "float64", "bfloat16", "float16"):
        got = product(w, b, name)
        np.testing.assert_array_equal(got, np.where(w == 0, 0, w) @ finite)
        assert np.isnan(got[4]).all()
        assert np.isinf(got[6]).all()


@pytest.mark.parametrize("name", ["float32", "float64"])
@pytest.mark.parametrize("n", [1, 8])
def test_error_is_that_of_a_dense_product(rng, name, n):
    w = rng.standard_normal((128, 6000)).astype(name)
    w[rng.random(w.shape) < 0.4] = 0
    b = rng.standard_normal((6000, n)).astype(name)
    want = w.astype(np.longdouble) @ b

    def error(x):
        return np.linalg.norm(x - want) / np.linalg.norm(want)

    assert error(product(w, b, name)) <= 2 * error(w @ b)


@pytest.mark.parametrize("n", [1, 7])
def test_the_same_bits_on_any_threads(rng, n, monkeypatch):
    assert_the_same_bits_on_any_threads(product, rng, n, monkeypatch)


def test_one_product_serves_several_threads(rng):
    w, n = whole(rng, (300, 500), 0.5), 3
    multiply, wrong = FewColumns(masked(w, "float32"), 500, n), []

    def repeat(seed):
        b = np.random.default_rng(seed).integers(-4, 5, (500, n)).astype(np.float32)
        out = np.empty((300, n), np.float32)
        for _ in range(50):
            multiply(b, out)
            if not np.array_equal(out, w @ b):
                wrong.append(seed)

    workers = [threading.Thread(target=repeat, args=(seed,)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("n", [1, 4, 13])
def test_hybrid_matrices_multiply_by_masks_from_either_side(rng, name, n):
    dtype = TABLE[name].logical
    w = whole(rng, (130, 200), 0.9).astype(dtype)
    b, x = (rng.integers(-2, 3, shape).astype(dtype) for shape in ((200, n), (n, 130)))
    exact = w.astype(int)
    for h in (s24.hybrid(w), s24.hybrid(w.T).T):
        for _ in range(3):  # later calls repeat what was remembered
            got = h.matmul(b, algorithm="masks") if "masks" in h.explain(n)["candidates"] else h @ b
            want = exact @ b.astype(int)
            assert np.abs(got.astype(float) - want).max() <= 2**-8 * np.abs(want).max()
            got, want = x @ h, x.astype(int) @ exact
            assert np.abs(got.astype(float) - want).max() <= 2**-8 * np.abs(want).max()


def test_bytes_are_counted(rng):
    held = masked(whole(rng, (64, 640), 0.5), "bfloat16")
    stored = int(held.starts[-1])
    assert held.nbytes >= 65 * 8 + 64 * 80 + 2 * stored
    assert held.nbytes < 65 * 8 + 64 * 80 + 2 * stored + 256
    assert cpu_hybrid_masks.filled_up(TABLE["float64"], 9) == 16
