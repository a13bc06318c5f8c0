"""Products on the CPU that add up across the groups, a block of rows of A at a time."""

from __future__ import annotations

import numpy as np
import pytest

import sparse24 as s24
from sparse24 import _dtypes
from sparse24._records import PLAIN
from sparse24.kernels import _numba, cpu_across, cpu_compress
from sparse24.kernels._simd_expand import AVAILABLE

SHAPES = [(1, 1), (37, 30), (300, 130), (64, 64)]


@pytest.fixture(params=[1 << 20, 1 << 12], ids=["one block", "blocks"])
def blocks(request, monkeypatch):
    monkeypatch.setattr(cpu_across, "_BLOCK_BYTES", request.param)
    monkeypatch.setattr(cpu_across, "_LARGE_BYTES", request.param)


def whole(rng, shape, name):
    return rng.integers(-3, 4, shape).astype(_dtypes.TABLE[name].logical)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", _dtypes.NAMES)
def test_exact_on_whole_numbers_from_both_sides(rng, name, shape):
    A = s24.compress(whole(rng, shape, name), on_excess="prune")
    dense = A.toarray().astype(float)
    fits = 240 if name == "float8_e4m3fn" else 2048
    for n in (1, 5, 40):
        x = whole(rng, (n, shape[0]), name)
        want = np.clip(x.astype(float) @ dense, -fits, fits)
        first = x @ A
        if not name.startswith("float8") and name != "bfloat16":
            np.testing.assert_array_equal(first.astype(float), want)
        else:
            np.testing.assert_allclose(first.astype(float), want, rtol=0.13)
        for again in (x @ A, (A.T @ x.T).T, (A.T @ np.ascontiguousarray(x.T)).T):
            np.testing.assert_array_equal(again, first)
        np.testing.assert_array_equal(x[0] @ A, first[0])
        np.testing.assert_array_equal(A.T @ x[0], first[0])


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("name", ["float32", "bfloat16", "int8"])
def test_an_epilogue_and_out(rng, name):
    A = s24.compress(whole(rng, (90, 48), name), on_excess="prune")
    x, bias = whole(rng, (6, 90), name), rng.integers(-4, 5, 48).astype(np.float32)
    epilogue = s24.Epilogue(bias=bias, activation="relu")
    want = np.maximum(x.astype(float) @ A.toarray().astype(float) + bias, 0)
    out = np.empty((6, 48), np.float32)
    for _ in range(2):
        s24.matmul(x, A, epilogue=epilogue, dtype="float32", out=out)
        np.testing.assert_array_equal(out, want)
        np.testing.assert_array_equal(
            s24.matmul(x, A, dtype="float32").astype(float),
            x.astype(float) @ A.toarray().astype(float),
        )


def test_no_dense_matrix_is_made(rng, monkeypatch):
    A = s24.compress(whole(rng, (300, 130), "float32"), on_excess="prune")
    monkeypatch.setattr(cpu_compress, "decompress", None)
    assert (whole(rng, (2, 300), "float32") @ A).shape == (2, 130)


def test_sums_of_many_int8_are_exact(rng):
    A = s24.compress(np.full((5000, 4), 127, np.int8), on_excess="prune")
    x = np.full((3, 5000), 127, np.int8)
    want = x.astype(np.int64) @ A.toarray().astype(np.int64)
    np.testing.assert_array_equal(s24.matmul(x, A, dtype="int32"), want)


def test_a_converted_matrix_is_not_remembered(rng):
    A = s24.compress(whole(rng, (60, 40), "float32"), on_excess="prune")
    x = rng.standard_normal((3, 60))
    for _ in range(2):
        np.testing.assert_allclose(x @ A, x @ A.toarray(), atol=1e-12)
    assert not A._plans


def test_the_same_bits_on_any_threads(rng, monkeypatch):
    A = s24.compress(rng.standard_normal((500, 300)), on_excess="prune")
    x = rng.standard_normal((7, 500))
    want = x @ A
    monkeypatch.setattr(_numba, "WAKING", 1)
    np.testing.assert_array_equal(x @ A, want)


@pytest.mark.parametrize(("k", "m", "n"), [(0, 8, 3), (8, 0, 3), (8, 8, 0)])
def test_empty(k, m, n):
    values, metadata = cpu_compress.compress(np.ones((k, m), np.float32))[:2]
    out = np.full((m, n), 7, np.float32)
    cpu_across.matmul_across(values, metadata, m, np.ones((k, n), np.float32), out, PLAIN)
    assert not out.any()


@pytest.mark.skipif("float32" not in AVAILABLE, reason="this processor spreads nothing")
@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16", "float8_e4m3fn", "int8"])
def test_blocks_are_spread_by_vectors(rng, monkeypatch, name):
    monkeypatch.setattr(cpu_across.Across, "_scatter", None)  # element by element
    A = s24.compress(whole(rng, (70, 70), name), on_excess="prune")
    x = whole(rng, (40, 70), name)
    want = x.astype(float) @ A.toarray().astype(float)
    np.testing.assert_array_equal(s24.matmul(x, A, dtype="float32"), want)
