"""Stacks by which a hybrid matrix is multiplied densely: one launch, where they lie evenly."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from fake_device import Device, array, matrix
from hybrid_cases import choose

import sparse24 as s24
from sparse24._errors import ArgumentError, UnsupportedError
from sparse24._hybrid import dense as hybrid_dense
from sparse24.kernels import dense
from sparse24.kernels.cublas import DATA_TYPE

M, K, N = 70, 80, 64


@pytest.fixture
def device(monkeypatch):
    device = Device(monkeypatch)
    device.times["cublas"] = 0.5
    return device


def whole(rng, *shape, dtype=np.float16):
    return rng.integers(-3, 4, shape).astype(dtype)


# A stack (..., k, n) within a longer one, and whether its matrices lie at one distance.
LAYOUTS = {
    "contiguous": ((3,), lambda x: x, True),
    "two axes": ((2, 3), lambda x: x, True),
    "one matrix": ((1, 1), lambda x: x, True),
    "every other": ((6,), lambda x: x[::2], True),
    "every other of two axes": ((2, 6), lambda x: x[:, ::2], True),
    "a part of two axes": ((2, 4), lambda x: x[:, :3], False),
    "columns": ((3,), lambda x: x[:, :, 8:], True),
    "by columns": ((3,), lambda x: x.reshape(3, -1, K).swapaxes(1, 2), True),
    "interleaved": ((3,), lambda x: x.reshape(K, 3, -1).swapaxes(0, 1), True),
    "one many times": ((1,), lambda x: np.broadcast_to(x, (3, *x.shape[1:]), subok=True), True),
    "backwards": ((3,), lambda x: x[::-1], False),
    "axes exchanged": ((2, 3), lambda x: x.swapaxes(0, 1), False),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_stack_is_one_launch_where_it_lies_evenly(rng, device, name):
    batch, lay, even = LAYOUTS[name]
    weight = whole(rng, M, K)
    h, kept = s24.hybrid(weight), []
    for _ in range(3):
        stack = lay(array(whole(rng, *batch, K, N + 8)))
        kept.append((h @ stack, weight @ np.asarray(stack)))
        products = np.prod(stack.shape[:-2])
        assert len(device.ran) == (1 if even else products)
    for got, want in kept:
        np.testing.assert_array_equal(np.asarray(got), want)
        assert got.flags.c_contiguous
    assert len(h._plans) == 1


RESULTS = {
    "contiguous": (lambda: (3, M, N), lambda x: x, True),
    "columns": (lambda: (3, M, N + 8), lambda x: x[:, :, :N], True),
    "by columns": (lambda: (3, N, M), lambda x: x.swapaxes(1, 2), True),
    "interleaved": (lambda: (M, 3, N), lambda x: x.swapaxes(0, 1), False),
    "backwards": (lambda: (3, M, N), lambda x: x[::-1], False),
}


@pytest.mark.parametrize("name", RESULTS)
def test_out_may_lie_in_any_way(rng, device, name):
    shape, lay, even = RESULTS[name]
    weight = whole(rng, M, K)
    h = s24.hybrid(weight)
    for _ in range(3):
        stack, room = array(whole(rng, 3, K, N)), array(np.full(shape(), 9, np.float16))
        out = lay(room)
        assert h.matmul(stack, out=out) is out
        np.testing.assert_array_equal(np.asarray(out), weight @ np.asarray(stack))
        assert (np.asarray(room) == 9).sum() == (np.asarray(out) == 9).sum() + room.size - out.size
        assert len(device.ran) == (1 if even else 3)


def test_out_that_overlaps_is_refused_every_time(rng, device):
    h, memory = s24.hybrid(whole(rng, M, K)), array(np.zeros(4 * K * N, np.float16))
    stack, out = memory[: 3 * K * N].reshape(3, K, N), memory[K * N :][: 3 * M * N]
    h.matmul(stack, out=array(np.zeros((3, M, N), np.float16)))
    for _ in range(2):
        with pytest.raises(ArgumentError, match="shares memory"):
            h.matmul(stack, out=out.reshape(3, M, N))


def test_empty_stacks_launch_nothing(rng, device):
    h = s24.hybrid(whole(rng, M, K))
    for _ in range(2):
        for shape in ((0, K, N), (2, 0, K, N), (3, K, 0)):
            assert (h @ array(whole(rng, *shape))).shape == (*shape[:-2], M, shape[-1])
    assert not device.ran


def test_a_graph_takes_another_path(rng, device):
    weight, stack = whole(rng, M, K), whole(rng, 3, K, N)
    h = s24.hybrid(weight)
    for _ in range(2):
        h @ array(stack)
    device.capturing = True
    with pytest.raises(UnsupportedError, match=r"algorithm='gather'.* once before the capture"):
        h @ array(stack)
    device.capturing = False
    h.matmul(array(stack), algorithm="gather")
    device.capturing = True
    np.testing.assert_array_equal(np.asarray(h @ array(stack)), weight @ stack)
    assert {product.path for product in device.ran[-3:]} == {"gather"}


@pytest.mark.parametrize("path", ["gather", "scatter"])
def test_other_paths_multiply_in_turn(rng, device, path):
    """Of a stack whose matrices do not all begin on 16 bytes as well."""
    device.times[path] = 0.1
    weight = whole(rng, M, K)
    h = s24.hybrid(weight)
    for batch, n in (((3,), N), ((2, 2), N + 1)):
        for _ in range(3):
            stack = whole(rng, *batch, K, n)
            np.testing.assert_array_equal(np.asarray(h @ array(stack)), weight @ stack)
    assert len(device.ran) == 3 + 4


def blas(ta, tb, m, n, k, alpha, a, type_a, lda, of_a, b, type_b, ldb, of_b, beta, c, type_c, ldc,
         of_c, batch, compute, algorithm):  # fmt: skip
    """cublasGemmStridedBatchedEx of the arguments, whose matrices lie by columns."""
    dtype = np.dtype(next(name for name, number in DATA_TYPE.items() if number == type_c))
    assert type_a == type_b == type_c
    size = dtype.itemsize
    for i in range(batch):
        left = matrix(a + i * of_a * size, dtype, (k, m) if ta else (m, k), (1, lda))
        right = matrix(b + i * of_b * size, dtype, (n, k) if tb else (k, n), (1, ldb))
        left, right = left.T if ta else left, right.T if tb else right
        matrix(c + i * of_c * size, dtype, (m, n), (1, ldc))[...] = left @ right


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", [name for name, (*_, even) in LAYOUTS.items() if even])
def test_the_arguments_of_cublas(rng, device, name, dtype):
    batch, lay, _ = LAYOUTS[name]
    weight = whole(rng, M, K, dtype=dtype)
    product = hybrid_dense.DenseStack(dense.BoundDense(array(weight)))
    for of_out in ("contiguous", "columns", "by columns"):
        stack = lay(array(whole(rng, *batch, K, N + 8, dtype=dtype)))
        lead, n = stack.shape[:-2], stack.shape[-1]
        room = {"columns": (*lead, M, n + 8), "by columns": (*lead, n, M)}
        out = array(np.zeros(room.get(of_out, (*lead, M, n)), dtype))
        out = out.swapaxes(-1, -2) if of_out == "by columns" else out[..., :n]
        b, result = hybrid_dense.flat_views(stack, out)
        assert b.shape[0] == result.shape[0] == np.prod(lead)
        blas(*product.bind(stack, out, 7)._arguments)
        np.testing.assert_array_equal(np.asarray(out), weight @ np.asarray(stack))


def test_cublas_is_launched_on_the_stream_of_the_call(rng, device, monkeypatch):
    ran = []

    @contextlib.contextmanager
    def external(stream):
        before, device.stream = device.stream, stream
        yield
        device.stream = before

    monkeypatch.setattr(dense._arrays, "cupy_stream", external)
    monkeypatch.setattr(dense, "current_stream", lambda: device.stream)
    launch = (lambda *a: ran.append((device.stream, *a)), lambda: 5)
    monkeypatch.setattr(dense.cublas, "gemm", lambda: launch)
    product = dense.BoundDense(array(whole(rng, M, K)))
    b, out = array(whole(rng, K, N)), array(np.zeros((M, N), np.float16))
    gemm = product.bind(b, out, 7)
    gemm(7)
    gemm(8)
    assert ran == [(stream, 5, *gemm._arguments) for stream in (7, 8)]
    assert device.stream == 7


# On the GPU; no kernel's record depends on cuBLAS.


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_dense_stacks(rng, name, dtype):
    cupy = pytest.importorskip("cupy")
    batch, lay, _ = LAYOUTS[name]
    weight, kept = whole(rng, M, K, dtype=dtype), []
    h = s24.hybrid(cupy.asarray(weight))
    for width in (N + 8, 512):
        for _ in range(3):
            stack = whole(rng, *batch, K, width, dtype=dtype)
            if name == "one many times":
                right = cupy.broadcast_to(cupy.asarray(stack), (3, *stack.shape[1:]))
                wanted = weight @ np.broadcast_to(stack, right.shape)
            else:
                right, wanted = lay(cupy.asarray(stack)), weight @ lay(stack)
            choose(h, right.shape[-1], "cublas")
            kept.append((h @ right, wanted))
            out = cupy.full(wanted.shape, cupy.nan, dtype)
            assert h.matmul(right, out=out) is out
            kept.append((out, wanted))
    for got, wanted in kept:
        np.testing.assert_array_equal(got.get(), wanted)
    assert len(h._plans) == 4


@pytest.mark.gpu
@pytest.mark.parametrize("name", RESULTS)
def test_dense_stacks_in_other_places(rng, name):
    cupy = pytest.importorskip("cupy")
    shape, lay, _ = RESULTS[name]
    weight = whole(rng, M, K)
    h = s24.hybrid(cupy.asarray(weight))
    choose(h, N, "cublas")
    for _ in range(3):
        stack, room = whole(rng, 3, K, N), cupy.full(shape(), 999, np.float16)
        out = lay(room)
        assert h.matmul(cupy.asarray(stack), out=out) is out
        np.testing.assert_array_equal(out.get(), weight @ stack)
        assert int((room == 999).sum()) == room.size - out.size


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(512, 512), (8, 512, 512), (2, 3, 512, 100)])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_dense_products_of_torch_tensors(rng, shape, dtype):
    """On torch's stream, whether it is CuPy's current one or not."""
    cupy, torch = pytest.importorskip("cupy"), pytest.importorskip("torch")
    kind = getattr(torch, dtype)
    values = whole(rng, 512, 512, dtype=np.float32) * (rng.random((512, 512)) < 0.1)
    weight = torch.from_numpy(values.astype(np.float32)).cuda().to(kind)
    h = s24.hybrid(weight)
    choose(h, shape[-1], "cublas")
    for _ in range(4):
        b = np.sign(whole(rng, *shape, dtype=np.float32))
        for stream in (torch.cuda.default_stream(), torch.cuda.Stream()):
            with torch.cuda.stream(stream):
                right = torch.from_numpy(b).cuda().to(kind)
                right = right + 0
                product = h @ right
                same = product + 0  # on the same stream: ordered after the product
            torch.cuda.synchronize()
            assert product.dtype == kind
            np.testing.assert_array_equal(same.float().cpu().numpy(), values @ b)
    assert cupy.cuda.get_current_stream().ptr == 0
