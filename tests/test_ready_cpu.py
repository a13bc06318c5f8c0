"""Calls on the CPU like an earlier one: bit for bit what the first one gives, and as careful."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from ready_cases import (
    COLUMNS,
    LAYOUTS,
    WRITABLE,
    K,
    M,
    assert_alike_in_threads,
    assert_same,
    misaligned,
    numbers,
    operands,
    read_only,
)

import sparse24 as s24
from sparse24 import _dtypes, _replay
from sparse24._errors import ArgumentError
from sparse24.kernels import cpu_prepared


@pytest.mark.parametrize("name", _dtypes.NAMES)
@pytest.mark.parametrize("n", COLUMNS)
def test_a_repeated_product_is_that_of_the_first_call(rng, n, name):
    for k in (K, 128):
        a, b = operands(rng, n, name, k)
        first = a @ b
        for _ in range(2):
            again = a @ b
            assert again is not first
            assert_same(again, first)
        x = np.ascontiguousarray(b.T)
        first = x @ a.T
        assert_same(x @ a.T, first)
        out = np.empty_like(first)
        for _ in range(3):
            out.view(np.uint8)[...] = 77
            assert s24.matmul(x, a.T, out=out) is out
            assert_same(out, first)


@pytest.mark.parametrize("dtype", _dtypes.OUTPUT_NAMES)
@pytest.mark.parametrize("name", ["float32", "float64", "bfloat16", "int8"])
def test_types_of_the_result(rng, name, dtype):
    for n in COLUMNS:
        a, b = operands(rng, n, name)
        first = s24.matmul(a, b, dtype=dtype)
        assert first.dtype.name == dtype
        assert_same(s24.matmul(a, b, dtype=dtype), first)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("n", COLUMNS)
def test_layouts_of_the_operand(rng, n, layout, name):
    a, b = operands(rng, n, name)
    want, same = a @ b, LAYOUTS[layout](b)
    for _ in range(3):
        assert_same(a @ same, want)
        assert_same(a @ b, want)


@pytest.mark.parametrize("name", ["float32", "float16", "int8"])
@pytest.mark.parametrize("layout", WRITABLE)
@pytest.mark.parametrize("n", COLUMNS)
def test_layouts_of_the_result(rng, n, layout, name):
    a, b = operands(rng, n, name)
    want = a @ b
    out = LAYOUTS[layout](np.zeros_like(want))
    for _ in range(3):
        out[...] = 7
        assert s24.matmul(a, b, out=out) is out
        assert_same(out, want)


def test_what_is_aligned_may_follow_what_is_not(rng):
    """Their shapes and strides are the same, so one entry serves them."""
    a, b = operands(rng, 1, "float32")
    want, plans = a.copy() @ b, a._plans
    for x in (misaligned(b), b, misaligned(b), read_only(b)):
        assert_same(a @ x, want)
    assert len(plans) == 1
    for out in (np.empty_like(want), misaligned(want), np.empty_like(want)):
        out[...] = 7
        assert_same(s24.matmul(a, b, out=out), want)
    assert len(plans) == 2


@pytest.mark.parametrize("name", _dtypes.NAMES)
@pytest.mark.parametrize("n", COLUMNS)
def test_elements_that_changed_are_read_anew(rng, n, name):
    for k in (K, 128):
        a, b = operands(rng, n, name, k)
        a @ b, a @ b
        values = a._operand.rows.values
        values[...] = values[::-1].copy()
        assert_same(a @ b, a.copy() @ b)
        b[...] = b[::-1].copy()
        assert_same(a @ b, a.copy() @ b)


def test_a_matrix_remembers_so_many_calls_at_the_most(rng, monkeypatch):
    monkeypatch.setattr(_replay, "MOST_SIGNATURES", 4)
    a, _ = operands(rng, None, "float32")
    for n in range(1, 10):
        b = numbers(rng, (K, n), "float32")
        assert_same(a @ b, a.copy() @ b)
        assert 0 < len(a._plans) <= 4


@pytest.mark.parametrize("n", COLUMNS)
def test_no_number_and_the_sign_of_zero(rng, n):
    a, b = operands(rng, n, "float32")
    a @ b
    b[...] = -0.0
    assert_same(a @ b, a.copy() @ b)
    b[3] = np.nan
    b[9] = np.inf
    assert_same(a @ b, a.copy() @ b)


@pytest.mark.parametrize("n", COLUMNS)
def test_a_result_that_overlaps_is_refused_every_time(rng, n):
    a = s24.compress(numbers(rng, (K, K), "float32"), on_excess="prune")
    b = numbers(rng, (K,) if n is None else (K, n), "float32")
    room = np.empty(2 * b.size, np.float32)
    apart = room[b.size :].reshape(b.shape)
    b = room[: b.size].reshape(b.shape)
    for _ in range(3):
        s24.matmul(a, b, out=apart)
        with pytest.raises(ArgumentError, match="out shares memory with an operand; pass another"):
            s24.matmul(a, b, out=b)
        values = a._operand.rows.values.reshape(-1)[: b.size].reshape(b.shape)
        with pytest.raises(ArgumentError, match="out shares memory with an operand; pass another"):
            s24.matmul(a, b, out=values)


@pytest.mark.parametrize("of", ["2:4", "hybrid", "dense"])
def test_a_read_only_result_is_refused_every_time(rng, of):
    dense = numbers(rng, (M, K), "float32")
    if of == "hybrid":
        a = s24.hybrid(dense)
    else:
        a = s24.compress(dense, on_excess="prune", keep_dense=of == "dense")
    b, out = numbers(rng, (K, 2), "float32"), np.empty((M, 2), np.float32)
    multiply = a.matmul if of == "hybrid" else a._multiply
    multiply(b, out)
    out.flags.writeable = False
    with pytest.raises(ArgumentError, match="out is read-only; pass a writable array"):
        multiply(b, out)


def test_subclasses_are_no_earlier_call(rng):
    a, b = operands(rng, 2, "float32")
    want = a @ b
    for x in (b.view(np.matrix), b.tolist()):
        for _ in range(2):
            got = a @ x
            assert type(got) is np.ndarray
            assert_same(got, want if isinstance(x, np.ndarray) else a @ np.array(x))
    with pytest.raises(s24.DTypeError, match="masked"):
        a @ np.ma.masked_array(b, b > 0)


def test_a_kept_dense_matrix(rng):
    dense = s24.prune(numbers(rng, (M, K), "float32"))
    a = s24.compress(dense, keep_dense=True)
    for n in COLUMNS:
        b = numbers(rng, (K,) if n is None else (K, n), "float32")
        first = a @ b
        assert_same(a @ b, first)
        for layout in WRITABLE:
            out = LAYOUTS[layout](np.zeros_like(first))
            for _ in range(2):
                out[...] = 7
                s24.matmul(a, b, out=out)
                np.testing.assert_allclose(out, first, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int8", "float16"])
@pytest.mark.parametrize("n", COLUMNS)
def test_unstructured_matrices(rng, n, name):
    dense = numbers(rng, (M, K), name)
    dense[rng.random((M, K)) < 0.7] = 0
    h, (_, b) = s24.hybrid(dense), operands(rng, n, name)
    first = h @ b
    assert len(h._plans) == 1
    for layout in LAYOUTS.values():
        assert_same(h @ layout(b), first)
    for layout in WRITABLE:
        out = LAYOUTS[layout](np.zeros_like(first))
        for _ in range(2):
            out[...] = 7
            assert h.matmul(b, out) is out
            assert_same(out, first)
    b[...] = b[::-1].copy()
    assert_same(h @ b, s24.hybrid(dense) @ b)


@pytest.mark.parametrize("other", ["float64", "bfloat16", "int8"])
@pytest.mark.parametrize("n", COLUMNS)
def test_an_unstructured_matrix_meets_another_type_every_time(rng, n, other):
    dense = numbers(rng, (M, K), "float32")
    dense[rng.random((M, K)) < 0.7] = 0
    h, b = s24.hybrid(dense), numbers(rng, (K,) if n is None else (K, n), other)
    want = dense @ b.astype(np.float64)
    for product in (lambda: h @ b, lambda: (b.T @ h.T).T):
        first = product()
        assert first.dtype == (np.float64 if other == "float64" else np.float32)
        np.testing.assert_allclose(first, want, rtol=1e-4, atol=1e-4)
        assert_same(product(), first)


@pytest.mark.parametrize("name", ["float32", "float64", "float16", "bfloat16", "int8"])
@pytest.mark.parametrize("n", COLUMNS)
def test_unstructured_matrices_from_the_right(rng, n, name):
    dense = numbers(rng, (M, K), name)
    dense[rng.random((M, K)) < 0.7] = 0
    h, bias = s24.hybrid(dense), rng.standard_normal(M).astype(np.float32)
    for of, k in ((h.T, K), (h, M)):  # x @ h.T and x @ h
        x = numbers(rng, (k,) if n is None else (n, k), name)
        first = x @ of
        assert len(of.T._plans) == 1
        for layout in LAYOUTS.values():
            again = layout(x) @ of
            assert_same(again, first)
            assert again.strides == first.strides
        x[...] = x[::-1].copy()
        assert_same(x @ of, x @ of.copy())
    x = numbers(rng, (3, K), name)
    want = s24.linear(x, s24.hybrid(dense), bias, activation="relu")
    for _ in range(3):
        assert_same(s24.linear(x, h, bias, activation="relu"), want)
        other = s24.linear(x, s24.hybrid(dense), activation="gelu")
        assert_same(s24.linear(x, h, activation="gelu"), other)


def test_an_unstructured_result_that_overlaps_is_refused_every_time(rng):
    h = s24.hybrid(np.eye(K, dtype=np.float32))
    room = np.ones(2 * K, np.float32)
    b, apart = room[:K], room[K:]
    for _ in range(3):
        h.matmul(b, apart)
        with pytest.raises(ArgumentError, match="out shares memory with b; pass another array"):
            h.matmul(b, b)


@pytest.mark.parametrize("n", [None, 2, 16])
def test_threads_at_once(rng, n):
    a, b = operands(rng, n, "float32", 128)
    several = [numbers(rng, b.shape, "float32") for _ in range(4)]
    want = [a.copy() @ x for x in several]
    assert_alike_in_threads(lambda x: a @ x, [(x,) for x in several], want)


def test_no_array_of_a_call_is_kept(rng):
    a, b = operands(rng, 3, "float32")
    h, out = s24.hybrid(a.toarray()), np.empty((M, 3), np.float32)
    for multiply in (a._multiply, h.matmul):
        for _ in range(2):
            multiply(b, out)
    kept = [weakref.ref(b), weakref.ref(out)]
    del b, out
    gc.collect()
    assert [x() for x in kept] == [None, None]


def test_much_room_is_not_kept():
    few, many = (cpu_prepared.ColumnsRoom((k, 1), k, np.dtype(np.float32)) for k in (64, 1 << 16))
    for columns in (few, many):
        columns.give(columns.take())
    assert (len(few._free), len(many._free)) == (1, 0)
