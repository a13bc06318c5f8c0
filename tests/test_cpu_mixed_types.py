"""Products on the CPU of operands of different types."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import sparse24 as s24
from sparse24 import _dtypes, _storage
from sparse24.formats import n_m_products

SUMMED_IN_FLOAT32 = [n for n, row in _dtypes.TABLE.items() if row.accumulator == np.float32]


def whole(rng, shape, name):
    """Whole numbers that every type holds."""
    return rng.integers(-4, 5, shape).astype(_dtypes.TABLE[name].logical)


def numbers(x) -> np.ndarray:
    return np.asarray(x).astype(np.float64)


@pytest.mark.parametrize(("of_a", "of_b"), list(itertools.permutations(SUMMED_IN_FLOAT32, 2)))
def test_operands_with_sums_of_one_type_are_not_converted(rng, monkeypatch, of_a, of_b):
    monkeypatch.setattr(_storage, "converted", lambda *_: pytest.fail("converted"))
    bias = np.arange(40, dtype=np.float32)
    for kept in (False, True):
        A = s24.compress(whole(rng, (40, 64), of_a), on_excess="prune", keep_dense=kept)
        matrix = numbers(A.toarray())
        for n in (1, 5, 70):
            b, x = whole(rng, (64, n), of_b), whole(rng, (n, 40), of_b)
            rows = np.ascontiguousarray(b.T)
            for _ in range(2):  # the second call is remembered
                got = s24.matmul(A, b, dtype="float32")
                np.testing.assert_array_equal(numbers(got), matrix @ numbers(b))
                across = s24.matmul(x, A, dtype="float32")
                np.testing.assert_array_equal(numbers(across), numbers(x) @ matrix)
                layer = s24.linear(rows, A, bias, activation="relu", dtype="float32")
                want = np.maximum(numbers(rows) @ matrix.T + bias, 0)
                np.testing.assert_array_equal(numbers(layer), want)
        assert A._plans


@pytest.mark.parametrize("of_b", [name for name in _dtypes.NAMES if name != "int8"])
@pytest.mark.parametrize("k", [64, 203])
def test_an_int8_matrix_is_read_as_it_is_by_floats(rng, monkeypatch, of_b, k):
    """Fractions, which integers would cut off; sums of all sizes of int8."""
    monkeypatch.setattr(_storage, "cast", lambda *_: pytest.fail("converted"))
    bias = np.arange(40, dtype=np.float32)
    for kept in (False, True):
        dense = rng.integers(-128, 128, (40, k)).astype(np.int8)
        A = s24.compress(dense, on_excess="prune", keep_dense=kept)
        matrix = numbers(A.toarray())
        for n in (1, 5, 70):
            b = (rng.integers(-4, 5, (k, n)) / 4).astype(_dtypes.TABLE[of_b].logical)
            for _ in range(2):  # the second call is remembered
                got = s24.matmul(A, b, dtype="float64")
                np.testing.assert_array_equal(got, matrix @ numbers(b))
                rows = np.ascontiguousarray(b.T)
                layer = s24.linear(rows, A, bias, activation="relu", dtype="float64")
                np.testing.assert_array_equal(layer, np.maximum(numbers(rows) @ matrix.T + bias, 0))
            stack = np.stack([b, b + b])
            np.testing.assert_array_equal(
                s24.matmul(A, stack, dtype="float64"), matrix @ numbers(stack)
            )
            for algorithm in ("cpu_sparse", "cpu_dense"):
                got = s24.matmul(A, b, dtype="float64", algorithm=algorithm)
                np.testing.assert_array_equal(got, matrix @ numbers(b))
        assert A._plans


@pytest.mark.parametrize("of_b", [name for name in _dtypes.NAMES if name != "int8"])
@pytest.mark.parametrize("k", [64, 203])
def test_an_int8_matrix_across_its_groups(rng, monkeypatch, of_b, k):
    monkeypatch.setattr(_storage, "cast", lambda *_: pytest.fail("converted"))
    dense = rng.integers(-128, 128, (40, k)).astype(np.int8)
    for A in (
        s24.compress(dense, on_excess="prune"),
        s24.compress(dense, on_excess="prune", keep_dense=True),
        s24.compress(dense[:, :64], on_excess="prune", transposable=True),
        s24.compress(np.stack([dense, dense]), on_excess="prune"),
    ):
        for n in (0, 1, 5, 70):
            x = (rng.integers(-4, 5, (n, 40)) / 4).astype(_dtypes.TABLE[of_b].logical)
            for _ in range(2):
                got = s24.matmul(x, A, dtype="float64")
                np.testing.assert_array_equal(got, numbers(x) @ numbers(A.toarray()))


@pytest.mark.parametrize("of_b", [name for name in _dtypes.NAMES if name != "int8"])
@pytest.mark.parametrize("pattern", [(4, 8), (7, 8), (3, 5)])
def test_an_int8_matrix_of_another_pattern_is_read_as_it_is_by_floats(
    rng, monkeypatch, of_b, pattern
):
    for module, name in ((_storage, "converted"), (n_m_products, "_dense")):
        monkeypatch.setattr(module, name, lambda *_: pytest.fail("converted"))
    dense = rng.integers(-128, 128, (40, 203)).astype(np.int8)
    A = s24.compress(dense, pattern=pattern, on_excess="prune")
    matrix = numbers(A.toarray())
    for n in (1, 5, 70):
        b, x = (
            (rng.integers(-4, 5, s) / 4).astype(_dtypes.TABLE[of_b].logical)
            for s in ((203, n), (n, 40))
        )
        for _ in range(2):  # the second call is remembered
            along, across = (s24.matmul(*of, dtype="float32") for of in ((A, b), (x, A)))
            np.testing.assert_array_equal(along, matrix @ numbers(b))
            np.testing.assert_array_equal(across, numbers(x) @ matrix)
        assert s24.explain(A, b).chosen == "cpu_n_m"
    assert A._plans


@pytest.mark.parametrize(("of_a", "of_b"), list(itertools.permutations(_dtypes.NAMES, 2)))
def test_results_are_of_the_promoted_type(rng, of_a, of_b):
    A = s24.compress(whole(rng, (8, 16), of_a), on_excess="prune")
    b = whole(rng, (16, 3), of_b)
    converted = s24.compress(A.toarray().astype(np.float64), on_excess="raise")
    got = A @ b
    np.testing.assert_array_equal(numbers(got), numbers(converted @ b.astype(np.float64)))
    common = "bfloat16" if of_a[:6] == of_b[:6] == "float8" else None
    if common is None:
        pair = _dtypes.TABLE[of_a], _dtypes.TABLE[of_b]
        common = s24._promotion.promote(*pair)[0].result
    assert got.dtype == _dtypes.numpy_dtype(common)


def test_stacks_of_experts_of_two_types(rng):
    A = s24.compress(whole(rng, (4, 24, 40), "float16"), on_excess="prune")
    x, offsets = whole(rng, (30, 40), "float32"), np.array([0, 5, 5, 20, 30])
    got = s24.grouped_linear(x, A, offsets=offsets)
    parts = [x[a:b] @ m.T for a, b, m in zip(offsets, offsets[1:], numbers(A.toarray()))]
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, np.concatenate(parts))
