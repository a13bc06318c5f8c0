"""Repeated float32 products in pieces: two launches, scratch memory, and pieces that settle."""

from __future__ import annotations

import numpy as np
import pytest

import sparse24 as s24
from sparse24 import _shared_plans
from sparse24._arrays import to_numpy
from sparse24._errors import ArgumentError
from sparse24._ready_pieces import ReadyInPieces
from sparse24.kernels import pieces

pytestmark = [pytest.mark.gpu, pytest.mark.stem("sparse_split")]
M, K, N = 256, 384, 40


def stored(rng, **how):
    import cupy

    w = rng.integers(-4, 5, (M, K)).astype(np.float32)
    return s24.compress(cupy.asarray(w), on_excess="prune", **how)


def columns(rng, n=N, order="F"):
    import cupy

    return cupy.asarray(rng.integers(-9, 10, (K, n)).astype(np.float32), order=order)


def multiply(a, b, out=None, **more):
    return s24.matmul(a, b, out, algorithm="sparse_split", **more)


def settle(a, b):
    """Multiply until the product is remembered; the plans of the array."""
    import cupy

    for _ in range(2):
        multiply(a, b)
        cupy.cuda.Device().synchronize()
    (plan,) = a._plans.values()
    assert isinstance(plan, ReadyInPieces)
    return plan


def test_a_product_is_remembered_once_its_pieces_are_settled(rng):
    import cupy

    a, b = stored(rng), columns(rng)
    plan, dense = settle(a, b), to_numpy(a.toarray())
    assert pieces.settled(a._operand.rows) is not None
    room = cupy.empty((K * N + 9,), np.float32)
    for shift in (0, 1, 4, 0):  # aligned, and not
        x = room[shift : shift + K * N].reshape(N, K).T
        x[...] = columns(rng)
        out = cupy.full((M, N), np.nan, np.float32)
        assert multiply(a, x, out) is out
        np.testing.assert_array_equal(out.get(), dense @ x.get())
    assert plan in a._plans.values()


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("n", [1, 33, 200])
def test_repeated_products_are_exact(rng, n, order):
    a = stored(rng)
    dense = to_numpy(a.toarray())
    for _ in range(5):
        b = columns(rng, n, order)
        np.testing.assert_array_equal(multiply(a, b).get(), dense @ b.get())


def test_repeated_epilogues_belong_to_the_product_alone(rng):
    import cupy

    a = stored(rng)
    dense = to_numpy(a.toarray())
    bias = cupy.asarray(rng.integers(-9, 10, M).astype(np.float32))
    for _ in range(4):
        x = cupy.ascontiguousarray(columns(rng).T)
        epilogue = s24.Epilogue(bias=bias, activation="relu")
        got = s24.matmul(x, a.mT, epilogue=epilogue, algorithm="sparse_split")
        cupy.cuda.Device().synchronize()
        np.testing.assert_array_equal(got.get(), np.maximum(x.get() @ dense.T + bias.get(), 0))
    assert any(isinstance(plan, ReadyInPieces) for plan in a.mT._plans.values())


def test_scratch_memory_is_given_back(rng):
    import cupy

    a, b = stored(rng), columns(rng)
    settle(a, b)
    out, pool = cupy.empty((M, N), np.float32), cupy.get_default_memory_pool()
    before = pool.used_bytes()
    for _ in range(3):
        multiply(a, b, out)
    assert pool.used_bytes() == before


def test_other_streams_and_threads(rng):
    from concurrent.futures import ThreadPoolExecutor

    import cupy

    a, b = stored(rng), columns(rng)
    settle(a, b)
    want = to_numpy(a.toarray()) @ b.get()
    cupy.cuda.Device().synchronize()

    def run(_):
        with cupy.cuda.Stream(non_blocking=True) as stream:
            got = [multiply(a, b) for _ in range(20)]
            stream.synchronize()
            return all((x.get() == want).all() for x in got)

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(run, range(8)))


def test_results_on_operands_are_refused(rng):
    import cupy

    a, b = stored(rng), columns(rng, M // 4)
    for _ in range(3):
        multiply(a, b, cupy.empty((M, M // 4), np.float32))
        cupy.cuda.Device().synchronize()
    assert any(isinstance(plan, ReadyInPieces) for plan in a._plans.values())
    for memory in (a._operand.rows.values, b.T):
        out = memory.reshape(-1)[: M * M // 4].reshape(M, M // 4)
        with pytest.raises(ArgumentError, match="shares memory"):
            multiply(a, b, out)


def test_a_captured_graph_has_its_own_memory(rng):
    import cupy

    a, b = stored(rng), columns(rng)
    settle(a, b)
    want, out = to_numpy(a.toarray()) @ b.get(), cupy.zeros((M, N), np.float32)
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        multiply(a, b, out)
        graph = stream.end_capture()
        others = [cupy.full((3 * K, N), 9, np.uint16) for _ in range(4)]
        graph.launch()
        stream.synchronize()
    np.testing.assert_array_equal(out.get(), want)
    assert all((other == 9).all() for other in others)


def test_arrays_alike_share_a_plan(rng):
    a, other, b = stored(rng), stored(rng), columns(rng)
    settle(a, b)
    plan = settle(other, b)
    assert plan.layout in [shared.layout for shared in _shared_plans._known.values()]
    np.testing.assert_array_equal(multiply(other, b).get(), to_numpy(other.toarray()) @ b.get())


def test_tensors_of_torch(rng):
    torch = pytest.importorskip("torch")

    a = stored(rng)
    dense = to_numpy(a.toarray())
    for _ in range(4):
        x = torch.randint(-9, 10, (N, K), device="cuda").float()
        y = s24.matmul(x, a.mT, algorithm="sparse_split")
        assert isinstance(y, torch.Tensor)
        np.testing.assert_array_equal(y.cpu().numpy(), x.cpu().numpy() @ dense.T)


def test_sums_with_the_result_are_remembered_wherever_it_lies(rng):
    import cupy

    a, b = stored(rng), columns(rng)
    settle(a, b)
    product = to_numpy(a.toarray()) @ b.get()
    outs = [cupy.asarray(rng.integers(-9, 10, (M, N)).astype(np.float32)) for _ in range(6)]
    for out in (*outs, *outs[::-1]):
        want = product + 2 * out.get()
        assert multiply(a, b, out, c=out, beta=2) is out
        np.testing.assert_array_equal(out.get(), want)
    assert len(a._plans) == 2
    other = outs[0].copy()
    multiply(a, b, outs[1], c=other, beta=1)
    np.testing.assert_array_equal(outs[1].get(), product + other.get())
    assert len(a._plans) == 3
