"""Repeated products of stacks on the CPU: planned once, right for new contents and layouts."""

from __future__ import annotations

import numpy as np
import pytest

import sparse24 as s24
from sparse24 import _dispatch, _ready_stacks
from sparse24._dtypes import numpy_dtype

SHAPES = [  # of A, and of b
    ((3, 24, 40), (3, 40, 5)),
    ((3, 24, 40), (40, 5)),
    ((2, 3, 24, 40), (2, 3, 40, 1)),
    ((2, 3, 24, 40), (3, 40, 2)),
    ((3, 24, 40), (2, 3, 40, 5)),
    ((3, 24, 40), (2, 1, 40, 5)),
    ((1, 24, 40), (4, 40, 3)),
    ((40, 64, 128), (40, 128, 1)),
]


@pytest.fixture
def planned(monkeypatch):
    """The products of stacks that were planned."""
    found, fill = [], _dispatch.fill
    monkeypatch.setattr(_dispatch, "fill", lambda *args: found.append(args) or fill(*args))
    return found


def drawn(rng, shape, dtype):
    return rng.integers(-4, 5, shape).astype(numpy_dtype(dtype))


def stack(rng, shape, dtype):
    return s24.compress(drawn(rng, shape, dtype), on_excess="prune", dtype=dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int8"])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_products_again(rng, shapes, dtype):
    a = stack(rng, shapes[0], dtype)
    dense = a.toarray().astype(np.float64)
    for _ in range(3):
        b = drawn(rng, shapes[1], dtype)
        x, y = np.ascontiguousarray(b.swapaxes(-1, -2)), a @ b
        exact = (dense @ b.astype(np.float64)).astype(y.dtype)
        np.testing.assert_array_equal(y, exact)
        np.testing.assert_array_equal(x @ a.mT, exact.swapaxes(-1, -2))
        out = np.full(exact.shape, 77, y.dtype)
        assert s24.matmul(a, b, out) is out
        np.testing.assert_array_equal(out, exact)


@pytest.mark.parametrize("bits", [4, 8])
def test_quantised_stacks_again(rng, bits):
    q = s24.quantise(s24.random((3, 32, 256), rng=rng, dtype="float32"), bits=bits)
    dense = q.toarray().astype(np.float64)
    for n in (1, 1, 7, 7):
        b = rng.standard_normal((3, 256, n)).astype(np.float32)
        np.testing.assert_allclose(q @ b, dense @ b, rtol=1e-5, atol=1e-4)


def test_a_layout_is_planned_once(rng, planned):
    a = stack(rng, (3, 24, 40), "float32")
    for _ in range(4):
        a @ drawn(rng, (3, 40, 5), "float32")
    assert len(planned) == 1
    a @ drawn(rng, (3, 5, 40), "float32").swapaxes(-1, -2)  # other strides
    a @ drawn(rng, (3, 40, 6), "float32")
    assert len(planned) == 3


def test_layouts_of_all_kinds(rng):
    a = stack(rng, (3, 24, 40), "float32")
    dense = a.toarray()
    wide = drawn(rng, (3, 80, 14), "float32")
    for b in (
        wide[:, ::2, ::2],
        wide[:, 40:, :7],
        wide[::-1, :40, 6::-1],
        np.asfortranarray(wide)[:, :40],
    ):
        room = np.full((3, 48, 2 * b.shape[-1]), 77, np.float32)
        out = room[:, ::2, ::2]
        for _ in range(2):
            np.testing.assert_array_equal(a @ b, dense @ b)
            s24.matmul(a, b, out)
            np.testing.assert_array_equal(out, dense @ b)
        assert (room[:, 1::2] == 77).all()


def test_results_must_not_lie_in_operands(rng):
    a = stack(rng, (3, 40, 40), "float32")
    b = drawn(rng, (3, 40, 40), "float32")
    s24.matmul(a, b, np.empty_like(b))
    for _ in range(2):
        with pytest.raises(s24.ArgumentError, match="shares memory with an operand"):
            s24.matmul(a, b, b)
    locked = np.empty_like(b)
    locked.flags.writeable = False
    with pytest.raises(s24.ArgumentError, match="read-only"):
        s24.matmul(a, b, locked)


def test_stacks_of_vectors_and_large_ones_are_planned_each_time(rng, planned, monkeypatch):
    monkeypatch.setattr(_ready_stacks, "MOST_PREPARED", 2)
    a = stack(rng, (3, 24, 40), "float32")
    for _ in range(2):
        a @ drawn(rng, (3, 40, 5), "float32")
    assert len(planned) == 2
    v = drawn(rng, 40, "float32")
    for _ in range(2):
        np.testing.assert_array_equal(a @ v, a.toarray() @ v)
    assert len(planned) == 4


def test_the_products_of_all_layouts_are_counted(rng, planned, monkeypatch):
    monkeypatch.setattr(_ready_stacks, "MOST_PREPARED", 6)
    a = stack(rng, (3, 24, 40), "float32")
    for n in (1, 2, 1, 2):
        a @ drawn(rng, (3, 40, n), "float32")
    assert len(planned) == 2
    a @ drawn(rng, (3, 40, 3), "float32")
    a @ drawn(rng, (3, 40, 1), "float32")
    assert len(planned) == 4


def test_threads_share_what_is_prepared(rng):
    from concurrent.futures import ThreadPoolExecutor

    a = stack(rng, (16, 64, 128), "float32")
    several = [drawn(rng, (16, 128, 2), "float32") for _ in range(8)]
    a @ several[0]
    with ThreadPoolExecutor(4) as pool:
        for b, y in zip(several, pool.map(lambda b: a @ b, several), strict=True):
            np.testing.assert_array_equal(y, a.toarray() @ b)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize("shape", [(3, 40, 5), (2, 3, 40, 1), (0, 40, 5), (3, 40, 0), (3, 40, 70)])
def test_a_matrix_by_a_stack(rng, planned, dtype, shape):
    a = stack(rng, (24, 40), dtype)
    for _ in range(3):
        b = drawn(rng, shape, dtype)
        y = a @ b
        exact = a.toarray().astype(np.float64) @ b.astype(np.float64)
        assert y.flags.c_contiguous
        np.testing.assert_array_equal(y, exact.astype(y.dtype))
    if b.size and shape[-1] <= 64:
        assert len(planned) == 1
    with pytest.raises(s24.ShapeError, match="inner dimensions 40 and 41 differ"):
        a @ drawn(rng, (3, 41, 5), dtype)
