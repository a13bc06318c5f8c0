"""matmul on every backend: shapes, types, orders, stacks."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matmul_cases import STEMS, assert_close, logical, operands, put, sample

import sparse24 as s24
from sparse24 import _arrays, _batch_axes, _dtypes
from sparse24._arrays import to_numpy
from sparse24.kernels import reference

SIZES = [(1, 1, 1), (5, 7, 3), (64, 128, 8), (65, 130, 17), (128, 256, 64), (200, 100, 129)]


@pytest.mark.stem(*STEMS)
@pytest.mark.parametrize("name", ["float16", "float32", "int8"])
def test_parts_of_two_batch_axes(xp, name, rng):
    """Their matrices do not lie at one distance, and rows of 10 stored elements are no vectors."""
    a = s24.random((2, 3, 33, 20), dtype=name, rng=rng)
    x = sample((20, 8), name, rng)
    on_device = a if xp is np else a.to_device("cuda")
    for key in (np.s_[:, :2], np.s_[:, ::2], np.s_[:, 1:]):
        got = to_numpy(on_device[key] @ put(x, xp))
        np.testing.assert_allclose(got, a[key] @ x, rtol=1e-2, atol=1e-2)


def test_rows_of_flattened_batch_axes_are_aligned(monkeypatch):
    """As on a GPU, where the stored rows of such a part begin on 16-byte boundaries."""
    on_gpu = SimpleNamespace(empty=np.empty)
    monkeypatch.setattr(_arrays, "namespace", lambda x: on_gpu)
    values = _arrays.empty_rows(on_gpu, (2, 3, 4, 10), np.float16)
    values[...] = np.arange(values.size).reshape(values.shape)
    for key, is_view in ((np.s_[:], True), (np.s_[:1, ::2], True), (np.s_[:, ::2], False)):
        part = values[key]
        flat = _batch_axes._spread(part, part.shape[:2], 2)
        assert flat.strides[-2] == 32  # of 20 bytes
        assert np.shares_memory(flat, values) == is_view
        np.testing.assert_array_equal(flat, part.reshape(-1, 4, 10))


@pytest.mark.stem(*STEMS)
@pytest.mark.parametrize("name", _dtypes.NAMES)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_left_and_right(xp, name, size, rng):
    m, k, n = size
    a, x, exact = operands(name, m, k, n, xp, rng)
    assert_close(logical(s24.matmul(a, x, b_dtype=name), name), exact, name, k)
    turned = xp.ascontiguousarray(x.T)
    assert_close(logical(s24.matmul(turned, a.T, a_dtype=name), name), exact.T, name, k)


@pytest.mark.stem(*STEMS)
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "int8"])
@pytest.mark.parametrize("b_order", ["row", "column", "strided", "misaligned"])
@pytest.mark.parametrize("out_order", ["row", "column", "strided"])
def test_every_order(xp, name, b_order, out_order, rng):
    m, k, n = 96, 160, 40
    a, x, exact = operands(name, m, k, n, xp, rng)
    if b_order == "column":
        x = xp.asfortranarray(x)
    elif b_order == "strided":
        wide = xp.zeros((2 * k, 3 * n), x.dtype)
        wide[::2, ::3] = x
        x = wide[::2, ::3]
    elif b_order == "misaligned":
        wide = xp.zeros((k, n + 1), x.dtype)
        wide[:, 1:] = x
        x = wide[:, 1:]
    result = np.int32 if name == "int8" else x.dtype
    out = xp.full((m, n), 77, result, order="F" if out_order == "column" else "C")
    if out_order == "strided":
        out = xp.full((2 * m, 2 * n), 77, result)[::2, 1::2]
    assert s24.matmul(a, x, out) is out
    assert_close(to_numpy(out), exact, name, k)


@pytest.mark.stem(*STEMS)
@pytest.mark.parametrize("a_batch", [(), (3,), (2, 1), (1,), (1, 1)])
@pytest.mark.parametrize("b_batch", [(), (3,), (2, 3), (1,)])
def test_batches_broadcast(xp, a_batch, b_batch, rng):
    a = s24.random((*a_batch, 33, 64), dtype="float16", rng=rng)
    x = sample((*b_batch, 64, 20), "float16", rng)
    exact = reference.matmul(a.toarray(), x)
    a = a if xp is np else a.to_device("cuda")
    assert_close(to_numpy(a @ put(x, xp)), exact, "float16", 64)
    tokens = np.ascontiguousarray(x.swapaxes(-1, -2))
    turned = to_numpy(put(tokens, xp) @ a.mT)
    assert_close(turned, exact.swapaxes(-1, -2), "float16", 64)


@pytest.mark.stem(*STEMS)
@pytest.mark.parametrize("n", [1, 8, 24, 48, 200])
@pytest.mark.parametrize("order", ["row", "column"])
def test_operands_that_repeat_themselves(xp, order, n, rng):
    """Views in which the batch, a row or a column has a stride of 0."""
    a = s24.random((3, 96, 160), dtype="float16", rng=rng)
    x = sample((160, n), "float16", rng)
    dense, a = a.toarray(), a if xp is np else a.to_device("cuda")
    x = put(x, xp) if order == "row" else xp.asfortranarray(put(x, xp))
    for view in (
        xp.broadcast_to(x, (3, 160, n)), xp.broadcast_to(x[:1], (160, n)),
        xp.broadcast_to(x[:, :1], (160, n)),
    ):  # fmt: skip
        exact = reference.matmul(dense, to_numpy(view))
        for algorithm in ("auto", *able(a, view)):
            got = to_numpy(s24.matmul(a, view, algorithm=algorithm))
            assert_close(got, exact, "float16", 160)


def able(a, x) -> list[str]:
    """The GPU kernels that can multiply these."""
    if isinstance(x, np.ndarray):
        return []
    told = s24.explain(a, x).candidates
    return sorted({c.kernel for c in told if c.refusal is None} & set(STEMS))


@pytest.mark.stem(*STEMS)
@pytest.mark.parametrize("a_batch", [(), (3,), (2, 1)])
@pytest.mark.parametrize("algorithm", ["auto", "dense"])
def test_batches_go_to_an_out_of_any_strides(xp, a_batch, algorithm, rng):
    a = s24.random((*a_batch, 33, 64), dtype="float16", rng=rng)
    x = sample((2, 3, 64, 20), "float16", rng)
    exact = reference.matmul(a.toarray(), x)
    a = a if xp is np else a.to_device("cuda")
    for order in itertools.permutations(range(4)):
        out = xp.full([exact.shape[i] for i in order], 77, np.float16)
        out = out.transpose(np.argsort(order).tolist())
        assert s24.matmul(a, put(x, xp), out, algorithm=algorithm) is out
        assert_close(to_numpy(out), exact, "float16", 64)
        turned = xp.full([exact.shape[i] for i in order], 77, np.float16)
        turned = turned.transpose(np.argsort(order).tolist()).swapaxes(-1, -2)
        s24.matmul(put(x, xp).swapaxes(-1, -2), a.mT, turned, algorithm=algorithm)
        assert_close(to_numpy(turned), exact.swapaxes(-1, -2), "float16", 64)


@pytest.mark.stem(*STEMS)
def test_vectors(xp, rng):
    a, x, exact = operands("float32", 30, 52, 1, xp, rng)
    assert_close(to_numpy(a @ x[:, 0]), exact[:, 0], "float32", 52)
    assert_close(to_numpy(x[:, 0] @ a.T), exact[:, 0], "float32", 52)
    assert (a @ x[:, 0]).shape == (30,)


@pytest.mark.stem(*STEMS)
@pytest.mark.parametrize("shape", [(0, 8, 3), (5, 8, 0), (5, 0, 3)], ids=str)
def test_empty_sizes(xp, shape):
    m, k, n = shape
    a = s24.compress(xp.zeros((m, k), np.float32))
    for batch in ((), (2,), (1, 3)):
        got = to_numpy(a @ xp.ones((*batch, k, n), np.float32))
        np.testing.assert_array_equal(got, np.zeros((*batch, m, n)))


@given(m=st.integers(1, 80), k=st.integers(1, 150), n=st.integers(1, 40), seed=st.integers(0, 9))
@settings(max_examples=30, deadline=None)
def test_any_size_on_the_cpu(m, k, n, seed):
    a, x, exact = operands("float32", m, k, n, np, np.random.default_rng(seed))
    assert_close(a @ x, exact, "float32", k)


@pytest.mark.gpu
@pytest.mark.stem(*STEMS)
@pytest.mark.parametrize("name", ["float16", "bfloat16", "int8"])
def test_any_size_on_the_gpu(name):
    import cupy

    rng = np.random.default_rng(5)
    for _ in range(40):
        m, k, n = (int(v) for v in rng.integers(1, 300, 3))
        a, x, exact = operands(name, m, k, n, cupy, rng)
        assert_close(to_numpy(a @ x), exact, name, k)


@pytest.mark.parametrize("fp8", ["float8_e4m3fn", "float8_e5m2"])
def test_int8_meets_fp8_in_a_type_that_holds_both(fp8):
    dense = np.array([[127, 0, 0, -99]], np.int8)
    x = np.array([[1], [0], [0], [2]]).astype(fp8)
    for array in (s24.compress(dense), s24.compress(dense, pattern=(3, 8)), s24.hybrid(dense)):
        got = array @ x
        assert got.dtype == np.float32
        assert got == 127 - 198
    assert s24.compress(x.T) @ dense.T == 127 - 198


def test_types_meet_without_narrowing(rng):
    a = s24.random((6, 8), dtype="float16", rng=0)
    assert (a @ np.ones((8, 2), np.float32)).dtype == np.float32
    assert (a @ np.ones((8, 2))).dtype == np.float64
    assert s24.matmul(a, np.ones((8, 2), np.float16), dtype="float32").dtype == np.float32
    assert (s24.random((4, 8), dtype="int8", rng=0) @ np.ones((8, 2), np.int8)).dtype == np.int32


def test_infinities_reach_the_result_where_a_value_stands(xp):
    a = s24.compress(xp.asarray(np.array([[1, 2, 0, 0]], np.float32)))
    got = to_numpy(a @ xp.asarray(np.array([[np.inf], [1], [0], [0]], np.float32)))
    assert np.isinf(got).all()
