"""Products of settled matrices on a GPU: what they read early, and what they wait for."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import sparse24 as s24
from sparse24 import _settled
from sparse24._records import MAKING

M, K = 4096, 4096


def gpu_test(function):
    return pytest.mark.gpu(pytest.mark.stem("sparse_decode")(function))


def whole(rng, *shape) -> np.ndarray:
    """Small integers, whose products are exact in float16."""
    return rng.integers(-2, 3, shape).astype(np.float16)


def is_settled(A) -> bool:
    return _settled.is_settled(A._operand.rows)


@gpu_test
def test_the_second_product_is_planned_for_a_settled_matrix(rng):
    cupy = pytest.importorskip("cupy")
    A = s24.compress(cupy.asarray(s24.prune(whole(rng, M, K))))
    b = cupy.asarray(whole(rng, 8, K)).T
    results = []
    for known in (0, 1, 1):
        results.append(s24.matmul(A, b, algorithm="sparse_decode"))
        assert len(A._plans) == known
        cupy.cuda.Device().synchronize()
    assert is_settled(A)
    assert all(plan.settled for plan in A._plans.values())
    other = s24.compress(A.toarray())
    other._operand.rows.derived[MAKING] = _settled.Making(None)
    want = s24.matmul(other, b, algorithm="sparse_decode")
    assert not next(iter(other._plans.values())).settled
    assert all((got == want).all() for got in results)


@gpu_test
@pytest.mark.parametrize("shape", [(4096, 4096), (1000, 144), (16, 8192), (50, 32)])
@pytest.mark.parametrize(("n", "order"), [
    (1, "F"), (7, "F"), (8, "F"), (16, "F"), (17, "F"), (40, "F"), (48, "F"),
    (16, "C"),
])  # fmt: skip
@pytest.mark.parametrize("dtype", [np.float16, np.int8])
def test_b_is_read_only_once_it_is_written(rng, shape, n, order, dtype):
    """Each b comes from a kernel just before, and then is overwritten."""
    cupy = pytest.importorskip("cupy")
    w, x = s24.prune(whole(rng, *shape)).astype(dtype), whole(rng, shape[1], n).astype(dtype)
    A, given = s24.compress(cupy.asarray(w)), cupy.asarray(x, order=order)
    for _ in range(2):
        s24.matmul(A, given, algorithm="sparse_decode")
        cupy.cuda.Device().synchronize()
    b, out = cupy.zeros_like(given), []
    for _ in range(20):
        b[...] = given
        out.append(s24.matmul(A, b, algorithm="sparse_decode"))
        b[...] = 0
    assert is_settled(A)
    want = w.astype(np.float64) @ x.astype(np.float64)
    for got in out:
        np.testing.assert_array_equal(got.get().astype(np.float64), want)


@gpu_test
def test_a_new_matrix_in_the_memory_of_a_settled_one(rng):
    """Compressed just before the product, at the addresses of one that was settled."""
    cupy = pytest.importorskip("cupy")
    b = cupy.asarray(whole(rng, 8, K)).T
    weights = [cupy.asarray(s24.prune(whole(rng, M, K))) for _ in range(3)]
    want = [w.astype(np.float32) @ b.astype(np.float32) for w in weights]
    places = set()
    for turn in range(30):
        A = s24.compress(weights[turn % 3], on_excess="prune")  # which does not wait
        places.add(A.values.data.ptr)
        for _ in range(1 + turn % 2 * 2):  # once, or until it is settled
            got = s24.matmul(A, b, algorithm="sparse_decode")
            if turn % 2:
                cupy.cuda.Device().synchronize()
        assert (got == want[turn % 3]).all()
        assert len(A._plans) == turn % 2  # planned for a settled matrix, or to be planned again
        del A
    assert len(places) < 30


@gpu_test
def test_a_matrix_that_a_graph_makes(rng):
    cupy = pytest.importorskip("cupy")
    dense, b = cupy.zeros((M, K), np.float16), cupy.asarray(whole(rng, 8, K)).T
    out = cupy.empty((M, 8), np.float16)
    weights = [cupy.asarray(s24.prune(whole(rng, M, K))) for _ in range(2)]

    def step():
        A = s24.compress(dense, on_excess="prune")
        s24.matmul(A, b, out, algorithm="sparse_decode")

    with cupy.cuda.Stream(non_blocking=True) as stream:
        for _ in range(2):
            step()
        stream.begin_capture()
        step()
        graph = stream.end_capture()
        for turn in range(10):
            dense[...] = weights[turn % 2]
            graph.launch(stream)
            want = weights[turn % 2].astype(np.float32) @ b.astype(np.float32)
            assert (out == want).all()


@gpu_test
def test_a_settled_matrix_in_a_graph(rng):
    """Products of one graph, each with what the one before it has written."""
    cupy = pytest.importorskip("cupy")
    w = np.zeros((K, K), np.float16)
    w[np.arange(K), np.roll(np.arange(K), 1)] = 1  # moves rows by one
    A = s24.compress(cupy.asarray(w))
    first = cupy.asarray(whole(rng, 8, K))
    xs = [cupy.zeros_like(first) for _ in range(9)]
    with cupy.cuda.Stream(non_blocking=True) as stream:
        for _ in range(2):
            s24.matmul(first, A.T, xs[1], algorithm="sparse_decode")
            stream.synchronize()
        stream.begin_capture()
        for x, y in itertools.pairwise(xs):
            s24.matmul(x, A.T, y, algorithm="sparse_decode")
        graph = stream.end_capture()
        assert is_settled(A)
        for shift in range(5):
            xs[0][...] = cupy.roll(first, shift, axis=1)
            for x in xs[1:]:
                x.fill(cupy.nan)
            graph.launch(stream)
            want = cupy.roll(first, shift + len(xs) - 1, axis=1)
            np.testing.assert_array_equal(xs[-1].get(), want.get())
