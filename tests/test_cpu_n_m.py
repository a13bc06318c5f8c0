"""General n:m patterns on the CPU, bit for bit against the reference."""

from __future__ import annotations

import functools
import timeit

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sparse24 as s24
from sparse24 import _dtypes
from sparse24._errors import ArgumentError, PatternError, ShapeError
from sparse24._records import Fused
from sparse24.kernels import cpu, cpu_n_m_matmul, reference

PATTERNS = [(1, 2), (1, 4), (2, 4), (2, 8), (4, 8), (6, 8), (8, 16), (1, 32), (31, 32), (3, 5)]
SHAPES = [(0, 8), (3, 0), (1, 1), (5, 33), (2, 3, 40), (90, 64)]
SPECIAL = (0.0, -0.0, 1.0, -1.0, np.nan, np.inf, -np.inf, 0.5)


def assert_same_bits(got, want):
    assert got.dtype == want.dtype
    carrier = f"u{got.dtype.itemsize}"
    np.testing.assert_array_equal(got.view(carrier), want.view(carrier))


def random_matrix(rng, shape, name):
    dtype = _dtypes.TABLE[name].logical
    if name == "int8":
        return rng.integers(-128, 128, shape).astype(np.int8) * (rng.random(shape) > 0.3)
    normal, odd = rng.standard_normal(shape), rng.choice(SPECIAL, shape)
    with np.errstate(invalid="ignore"):
        return np.where(rng.random(shape) < 0.3, odd, normal).astype(dtype)


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("name", _dtypes.NAMES)
def test_matches_reference(rng, name, pattern):
    for shape in SHAPES:
        x = random_matrix(rng, shape, name)
        pruned = reference.prune_n_m(x, *pattern)
        assert_same_bits(cpu.prune_n_m(x, *pattern), pruned)
        want = reference.compress_n_m(pruned, *pattern)
        for matrix, rule in ((x, "magnitude"), (pruned, "check")):
            values, places, status = cpu.compress_n_m(matrix, *pattern, rule)
            assert_same_bits(values, want[0])
            assert_same_bits(places, want[1])
            assert status == (-1, 0)
        got = cpu.decompress_n_m(*want, *pattern, shape[-1])
        assert_same_bits(got, reference.decompress_n_m(*want, *pattern, shape[-1]))


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("name", _dtypes.NAMES)
def test_mask_is_that_of_the_reference(rng, name, pattern):
    for shape in SHAPES:
        x = random_matrix(rng, shape, name)
        want = reference.top_mask(reference.magnitude_rank(x), *pattern)
        np.testing.assert_array_equal(cpu.mask_n_m(x, *pattern), want)
        np.testing.assert_array_equal(s24.mask(x, pattern=pattern), want)


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64])
def test_scores(rng, kind):
    x = random_matrix(rng, (9, 37), "float32")
    scores = rng.integers(-3, 4, x.shape).astype(kind)
    if scores.dtype.kind == "f":
        scores[rng.random(x.shape) < 0.2] = np.nan
        scores[rng.random(x.shape) < 0.2] = -np.inf
        scores[scores == 0] *= rng.choice([-1, 1], (scores == 0).sum())
    pruned = reference.prune_n_m(x, 3, 8, scores)
    assert_same_bits(cpu.prune_n_m(x, 3, 8, scores), pruned)
    values, places, _ = cpu.compress_n_m(x, 3, 8, "scores", scores)
    want = reference.compress_n_m(pruned, 3, 8)
    assert_same_bits(values, want[0])
    assert_same_bits(places, want[1])


def test_check_reports_excess(rng):
    x = random_matrix(rng, (40, 50), "float16")
    padded = np.pad(x, [(0, 0), (0, 6)]).reshape(40, 7, 8)
    bad = np.flatnonzero((padded != 0).sum(-1) > 4)
    values, places, status = cpu.compress_n_m(x, 4, 8, "check")
    assert status == (int(bad[0]), bad.size)
    want = reference.compress_n_m(x, 4, 8)
    assert_same_bits(values, want[0])
    assert_same_bits(places, want[1])


def test_two_four_is_a_case(rng):
    x = random_matrix(rng, (20, 44), "bfloat16")
    assert_same_bits(cpu.prune_n_m(x, 2, 4), cpu.prune(x))


def test_views(rng):
    base = random_matrix(rng, (30, 48), "float32")
    raw = np.zeros(base.nbytes + 1, np.uint8)[1:].view(base.dtype).reshape(base.shape)
    raw[...] = base
    for x in (base.T, base[::2, ::-1], raw, np.broadcast_to(base[:1], (4, 48))):
        assert_same_bits(cpu.prune_n_m(x, 2, 8), reference.prune_n_m(x, 2, 8))


@pytest.mark.parametrize("name", _dtypes.NAMES)
@pytest.mark.parametrize("columns", [1, 40])
def test_product(rng, name, columns):
    dtype = _dtypes.TABLE[name]
    for n, m in ((1, 4), (4, 8), (6, 8), (8, 16)):
        x = (4 * rng.standard_normal((3, 19, 50))).astype(dtype.logical)
        b = (4 * rng.standard_normal((50, columns))).astype(dtype.logical)
        dense = reference.prune_n_m(x, n, m)
        values, places, _ = cpu.compress_n_m(x, n, m)
        out = np.empty((3, 19, columns), _dtypes.numpy_dtype(dtype.result))
        cpu.matmul_n_m(values, places, n, m, 50, b, out, Fused())
        want = reference.matmul(dense, b)
        tolerance = {"float32": 1e-5, "float64": 1e-13, "int8": 0, "float16": 2e-3}.get(name, 1e-2)
        np.testing.assert_allclose(
            out.astype(np.float64), want, rtol=tolerance, atol=tolerance * np.abs(want).max()
        )


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 32), st.integers(2, 32), st.integers(1, 70), st.integers(0, 2**32))
def test_laws(n, m, k, seed):
    n = min(n, m - 1)
    x = random_matrix(np.random.default_rng(seed), (3, k), "float32")
    pruned = cpu.prune_n_m(x, n, m)
    assert_same_bits(cpu.prune_n_m(pruned, n, m), pruned)
    values, places, status = cpu.compress_n_m(pruned, n, m, "check")
    assert status == (-1, 0)
    rising = places.reshape(3, -1, n).astype(int)
    assert (np.diff(rising, axis=-1) > 0).all()
    assert rising.max(initial=0) < m
    positive_zeros = pruned.copy()
    positive_zeros[positive_zeros == 0] = 0
    assert_same_bits(cpu.decompress_n_m(values, places, n, m, k), positive_zeros)


def test_columns_are_written_as_quickly_for_short_groups():
    places, columns = np.zeros((96, 2048), np.uint8), np.empty((96, 2048), np.uint16)

    def seconds(n):
        call = functools.partial(cpu_n_m_matmul._rows_of_step, places, n, 2 * n, 32, columns)
        call()
        return min(timeit.repeat(call, number=1, repeat=40))

    assert seconds(4) < 5 * seconds(2048)


def test_messages():
    x = np.zeros((2, 8), np.float32)
    with pytest.raises(PatternError, match=r"pattern must have 0 < n < m <= 32, got \(4, 4\)"):
        cpu.prune_n_m(x, 4, 4)
    with pytest.raises(ArgumentError, match="rule must be one of"):
        cpu.compress_n_m(x, 2, 4, "best")
    with pytest.raises(ArgumentError, match="rule='scores' needs scores="):
        cpu.compress_n_m(x, 2, 4, "scores")
    values, places, _ = cpu.compress_n_m(x, 2, 4)
    with pytest.raises(ShapeError, match="values must store 8 elements a row for 2:4 and k = 16"):
        cpu.decompress_n_m(values, places, 2, 4, 16)
    with pytest.raises(ShapeError, match="places must have the shape of values"):
        cpu.decompress_n_m(values, places[:1], 2, 4, 8)
