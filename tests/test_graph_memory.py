"""What a captured CUDA graph reads and writes stays where it is, whatever is allocated later."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import sparse24 as s24

pytestmark = [pytest.mark.gpu, pytest.mark.stem("sparse_wgmma", "apply_epilogue")]
M, K, N = 256, 512, 96


@pytest.fixture
def cupy():
    return pytest.importorskip("cupy")


def whole(rng, *shape) -> np.ndarray:
    """Small integers, whose products are exact in float16."""
    return rng.integers(-2, 3, shape).astype(np.float16)


def check_replays(cupy, call, out, want, *, warm=True) -> None:
    """Capture ``call()``, which writes to `out`; allocate much, replay, and look at all of it."""
    with cupy.cuda.Stream(non_blocking=True) as stream:
        if warm:
            for _ in range(2):  # the second call is remembered
                call()
        stream.begin_capture()
        call()
        graph = stream.end_capture()
        gc.collect()
        others = [cupy.full(1 << size, 7, np.uint8) for size in range(9, 22) for _ in range(4)]
        for _ in range(2):
            out.fill(cupy.nan)
            graph.launch(stream)
            np.testing.assert_array_equal(out.get(), want)
        assert all(bool((x == 7).all()) for x in others)


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("bias_type", [np.float16, np.float32])
def test_vectors_that_are_converted(cupy, rng, bias_type, warm):
    weight, x, bias = s24.prune(whole(rng, M, K)), whole(rng, N, K), whole(rng, M)
    a, other = (s24.compress(cupy.asarray(w)) for w in (weight, weight))
    tokens, vector = cupy.asarray(x), cupy.asarray(bias.astype(bias_type))
    out = cupy.empty((N, M), np.float16)
    e = s24.Epilogue(bias=vector)
    s24.matmul(tokens, other.T, out, epilogue=e)  # another weight of this shape: a shared plan
    a.packed  # noqa: B018, as kernels take it
    want = x.astype(np.float32) @ weight.T.astype(np.float32) + bias
    check_replays(cupy, lambda: s24.matmul(tokens, a.T, out, epilogue=e), out, want, warm=warm)


@pytest.mark.parametrize("dtype", [np.int16, np.int64])
def test_operands_that_are_converted(cupy, rng, dtype):
    weight, x = s24.prune(whole(rng, M, K)), whole(rng, K, N)
    a, b = s24.compress(cupy.asarray(weight)), cupy.asarray(x.astype(dtype))
    out = cupy.empty_like(a @ b)
    want = weight.astype(np.float32) @ x.astype(np.float32)
    check_replays(cupy, lambda: s24.matmul(a, b, out), out, want)


@pytest.mark.parametrize("bias", [False, True])
def test_products_of_a_hybrid_matrix_that_go_through_memory(cupy, rng, bias):
    weight, x = whole(rng, M, K) * (rng.random((M, K)) < 0.2), whole(rng, K, N)
    h, b, out = s24.hybrid(cupy.asarray(weight)), cupy.asarray(x), cupy.empty((M, N), np.float16)
    h.matmul(b, algorithm="csr")
    e = s24.Epilogue(bias=cupy.ones((M, 1), np.float32) if bias else None)
    options = {"epilogue": e} if bias else {}
    want = weight.astype(np.float32) @ x.astype(np.float32) + bias
    check_replays(cupy, lambda: s24.matmul(h, b, out, **options), out, want)


def test_rows_that_windows_take(cupy, rng):
    dense = s24.prune(whole(rng, M, 960), pattern=(6, 8))
    windows = s24.compress(cupy.asarray(dense), pattern=(6, 8)).windows()
    x = whole(rng, 960, N)
    b, out = cupy.asarray(x), cupy.empty((M, N), np.float16)
    want = dense.astype(np.float32) @ x.astype(np.float32)
    check_replays(cupy, lambda: s24.matmul(windows, b, out), out, want)


def test_memory_order_of_a_plan_that_a_graph_would_have_to_make(cupy, rng):
    """The layout's tables for another memory order would be copied by the graph."""
    weight = whole(rng, M, K) * (rng.random((M, K)) < 0.2)
    h, x = s24.hybrid(cupy.asarray(weight)), cupy.asarray(whole(rng, K, 16))
    turned = cupy.asfortranarray(x)
    want = h.matmul(x, algorithm="stream")
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        with pytest.raises(s24.UnsupportedError, match="in these memory orders"):
            h.matmul(turned, algorithm="stream")
        stream.end_capture()
    np.testing.assert_array_equal(h.matmul(turned, algorithm="stream").get(), want.get())


def test_a_vector_that_lies_in_the_next_result(cupy, rng):
    """It is copied by calls that repeat another one, as by a first one.

    The row in which it lies is written long before the last tiles read it.
    """
    size, k = 4096, 64
    weight, x = s24.prune(whole(rng, size, k)), whole(rng, k, size)
    a, b = s24.compress(cupy.asarray(weight)), cupy.asarray(x)
    want = (a @ b).get().astype(np.float32) + np.arange(size)[:, None]
    first, second = (cupy.zeros((size, size), np.float32) for _ in range(2))
    e = s24.Epilogue(bias=second[0, :, None])
    for out in (first, first, second):
        second[0] = cupy.arange(size)
        s24.matmul(a, b, out, dtype="float32", epilogue=e)
        np.testing.assert_array_equal(out.get(), want)


def test_experts_are_not_written_over(cupy, rng):
    As = s24.compress(cupy.asarray(s24.prune(whole(rng, 2, 64, 64))))
    tokens, offsets = cupy.asarray(whole(rng, 16, 64)), cupy.asarray(np.array([0, 5, 16]))
    out = cupy.empty((16, 64), np.float16).T
    for _ in range(2):
        s24.grouped_matmul(As, tokens.T, out, offsets=offsets)
    inside = As.values.reshape(-1)[: out.size].reshape(16, 64).T
    with pytest.raises(s24.ArgumentError, match="out shares memory"):
        s24.grouped_matmul(As, tokens.T, inside, offsets=offsets)
