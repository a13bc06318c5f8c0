"""`linear` with a hybrid matrix: what a call like an earlier one prepares anew."""

from __future__ import annotations

import gc
import weakref

import ml_dtypes
import numpy as np
import pytest
from fake_device import Device, array

import sparse24 as s24
from sparse24 import _finish
from sparse24._arrays import to_numpy
from sparse24._errors import ShapeError

M, K = 70, 80


@pytest.fixture
def device(monkeypatch):
    return Device(monkeypatch)


def whole(rng, *shape, dtype=np.float16):
    return rng.integers(-3, 4, shape).astype(dtype)


class Count:
    """How often an epilogue was made without a replay."""

    def __init__(self, monkeypatch):
        self.count, plain = 0, _finish.finished

        def counting(*arguments):
            self.count += 1
            return plain(*arguments)

        monkeypatch.setattr(_finish, "finished", counting)


# The bias of a call as a view of an array (3, 2 * M) that it lies in, and whether calls with it
# are replayed.
BIASES = {
    "of the result's type": (np.float16, lambda x: x[1, :M], True),
    "a matrix of one row": (np.float16, lambda x: x[1:2, :M], True),
    "strided": (np.float16, lambda x: x[1, ::2], True),
    "backwards": (np.float16, lambda x: x[1, M - 1 :: -1], True),
    "float32": (np.float32, lambda x: x[1, :M], True),
    "float32, strided": (np.float32, lambda x: x[1:2, ::2], True),
    "float64": (np.float64, lambda x: x[1, :M], True),
    "bfloat16": (ml_dtypes.bfloat16, lambda x: x[1, :M], True),
    "int8": (np.int8, lambda x: x[1, :M], True),
    "bool": (np.bool_, lambda x: x[1, :M], True),
    "of rows": (np.float32, lambda x: x[:3, :1], False),  # a stride: it is copied
    "of rows, contiguous": (np.float32, lambda x: x.reshape(-1)[:3, None], True),
    "of rows in 16 bits": (np.float16, lambda x: x.reshape(-1)[:3, None], False),
    "a number": (np.float16, lambda x: x[1, :1].reshape(()), False),
}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("path", ["gather", "scatter", "cublas"])
@pytest.mark.parametrize("name", BIASES)
def test_a_bias_of_any_type(rng, device, monkeypatch, name, path, dtype):
    kind, lay, replayed = BIASES[name]
    weight = whole(rng, M, K, dtype=dtype)
    h, device.times[path] = s24.hybrid(weight), 0.5
    count, room = Count(monkeypatch), array(np.zeros((3, 2 * M), kind))
    bias = lay(room)
    for shape in ((3, K), (2, 3, K), (K,)):
        if shape == (K,) and "rows" in name:
            continue
        count.count = 0
        for activation in (None, "relu"):
            for _ in range(4):  # the same address, new contents
                room[...] = rng.integers(0, 4, room.shape)
                x = whole(rng, *shape, dtype=dtype)
                got = s24.linear(array(x), h, bias, activation=activation)
                added = np.asarray(bias) if "rows" in name else np.asarray(bias).reshape(-1)
                want = x.astype(np.float64) @ weight.T + added
                want = np.maximum(want, 0) if activation else want
                np.testing.assert_array_equal(np.asarray(got), want)
                assert got.dtype == dtype
        assert count.count == (2 if replayed else 8)


def test_whole_numbers_take_a_bias(rng, device):
    weight = whole(rng, M, K, dtype=np.int8)
    h, bias = s24.hybrid(weight), array(np.full(M, 2, np.float16))
    for _ in range(3):
        x = whole(rng, 3, K, dtype=np.int8)
        got = s24.linear(array(x), h, bias)
        assert got.dtype == np.int32
        np.testing.assert_array_equal(np.asarray(got), x.astype(int) @ weight.T.astype(int) + 2)


def test_other_biases_are_other_calls(rng, device):
    h, x = s24.hybrid(whole(rng, M, K)), array(whole(rng, 3, K))
    plain = np.asarray(x @ h.T).astype(np.float64)
    for _ in range(2):
        for value, kind in ((1, np.float16), (2, np.float32), (3, np.float16), (4, np.float64)):
            got = s24.linear(x, h, array(np.full(M, value, kind)))
            np.testing.assert_array_equal(np.asarray(got), plain + value)
    for size in (M - 1, 1):
        for _ in range(2):
            with pytest.raises(ShapeError, match=r"bias must have shape \(70,\) or \(1, 70\)"):
                s24.linear(x, h, array(np.ones(size, np.float16)))
    assert len(device.ran) == 1


def test_no_bias_is_kept(rng, device):
    h, x = s24.hybrid(whole(rng, M, K)), array(whole(rng, 3, K))
    for kind in (np.float16, np.float64):
        bias = array(np.ones(M, kind))
        for _ in range(3):
            s24.linear(x, h, bias)
        ends = weakref.ref(bias)
        del bias
        gc.collect()
        assert ends() is None


def test_a_graph_keeps_what_is_made_for_it(rng, device):
    h, x = s24.hybrid(whole(rng, M, K)), array(whole(rng, 3, K))
    for kind in (np.float16, np.float64):
        bias = array(np.ones(M, kind))
        want = [np.asarray(s24.linear(x, h, bias)) for _ in range(3)][-1]
        device.capturing = True
        np.testing.assert_array_equal(np.asarray(s24.linear(x, h, bias)), want)
        device.capturing = False
    assert h._prepared["memory of graphs"].nbytes >= 2 * want.nbytes


def test_a_bias_on_the_cpu(rng):
    weight, x = whole(rng, M, K), whole(rng, 3, K)
    h, bias = s24.hybrid(weight), np.full(M, 2, np.float16)
    got = s24.linear(x, h, bias, activation="relu")
    np.testing.assert_array_equal(got, np.maximum(x.astype(np.float32) @ weight.T + 2, 0))


# On the GPU.

on_gpu = pytest.mark.stem("apply_epilogue")
TYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}
SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 6e-8, -1e-40, 6e4, 1.0)


def assert_same_bits(got, want):
    """Equal, zeros by their sign as well; NaNs are NaNs."""
    got, want = (to_numpy(x).astype(np.float64) for x in (got, want))
    np.testing.assert_array_equal(got, want)
    numbers = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got)[numbers], np.signbit(want)[numbers])


def normal(rng, cupy, name, *shape):
    return cupy.asarray(rng.standard_normal(shape).astype(TYPES[name]))


def refill(room, rng):
    """Write other numbers to where an array on the GPU lies."""
    values = rng.standard_normal(room.shape)
    values.flat[: len(SPECIAL)] = SPECIAL
    with np.errstate(over="ignore", under="ignore"):
        values = values.astype(room.dtype)
    room.data.copy_from_host(values.ctypes.data, values.nbytes)


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("activation", [None, "relu", "gelu", "silu"])
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_a_bias_of_16_bits_is_added_like_one_of_32(rng, name, activation):
    cupy = pytest.importorskip("cupy")
    h = s24.hybrid(normal(rng, cupy, name, 96, 128))
    half = cupy.empty(96, TYPES[name])
    for shape in ((5, 128), (2, 3, 128), (128,), (300, 128)):
        for _ in range(3):
            refill(half, rng)
            x = normal(rng, cupy, name, *shape)
            wide = cupy.asarray(to_numpy(half).astype(np.float32))
            want = s24.linear(x, h, wide, activation=activation)
            got = s24.linear(x, h, half, activation=activation)
            assert got.dtype == x.dtype
            assert_same_bits(got, want)


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("of_bias", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("name", TYPES)
def test_a_bias_is_converted_at_each_call(rng, name, of_bias):
    cupy = pytest.importorskip("cupy")
    h = s24.hybrid(normal(rng, cupy, name, 96, 128))
    room = cupy.empty((2, 192), (TYPES | {"float64": np.float64})[of_bias])
    for lay in (lambda x: x[1, :96], lambda x: x[1:, :96], lambda x: x[0, ::2]):
        bias = lay(room)
        for _ in range(3):
            refill(room, rng)
            x = normal(rng, cupy, name, 5, 128)
            wide = cupy.asarray(lay(to_numpy(room)).astype(np.float32).reshape(-1))
            assert_same_bits(s24.linear(x, h, bias), s24.linear(x, h, wide))


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("of_bias", ["float16", "float32", "float64"])
def test_a_graph_reads_the_bias_when_it_runs(rng, of_bias):
    cupy = pytest.importorskip("cupy")
    h, x = s24.hybrid(normal(rng, cupy, "float16", 96, 128)), normal(rng, cupy, "float16", 5, 128)
    h.matmul(x.T, algorithm="gather")
    bias, stream = cupy.zeros(96, of_bias), cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        for _ in range(3):
            s24.linear(x, h, bias)
        stream.begin_capture()
        y = s24.linear(x, h, bias)
        graph = stream.end_capture()
        for value in (1.0, -2.0):
            bias.fill(value)
            others = [cupy.full(96, 7, kind) for kind in (np.float32, np.float16) for _ in range(8)]
            graph.launch(stream)
            stream.synchronize()
            assert all((other == 7).all() for other in others)
            np.testing.assert_allclose(
                to_numpy(y).astype(np.float32),
                to_numpy(x @ h.T).astype(np.float32) + value, rtol=2e-3, atol=2e-3,
            )  # fmt: skip


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("of_bias", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_a_layer_of_torch(rng, name, of_bias):
    """On torch's stream, whether it is CuPy's current one or not; a parameter is a bias, too."""
    pytest.importorskip("cupy")
    torch = pytest.importorskip("torch")
    kinds = getattr(torch, name), getattr(torch, of_bias)
    weight = whole(rng, 96, 128, dtype=np.float32)
    h = s24.hybrid(torch.from_numpy(weight).cuda().to(kinds[0]))
    vector = torch.nn.Parameter(torch.zeros(96, dtype=kinds[1], device="cuda"))
    torch.cuda.synchronize()
    for stream in (torch.cuda.default_stream(), torch.cuda.Stream()):
        for value in (1, 2, -3):
            x = np.sign(whole(rng, 5, 128, dtype=np.float32))
            x[:, 32:] = 0  # sums that every type holds
            with torch.cuda.stream(stream), torch.no_grad():
                vector.fill_(value)
                tokens = torch.from_numpy(x).cuda().to(kinds[0])
                got = s24.linear(tokens, h, vector, activation="relu") + 0
            torch.cuda.synchronize()
            assert got.dtype == kinds[0]
            want = np.maximum(x @ weight.T + value, 0)
            np.testing.assert_array_equal(got.float().cpu().numpy(), want)
