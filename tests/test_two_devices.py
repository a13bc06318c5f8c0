"""What only a machine with two GPUs shows; no kernel's record depends on it."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import sparse24 as s24
from sparse24 import functional as F
from sparse24._compress import compress
from sparse24._to_hybrid import hybrid

pytestmark = pytest.mark.gpu


@pytest.fixture
def cupy():
    cupy = pytest.importorskip("cupy")
    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two GPUs")
    return cupy


def whole(rng, shape):
    return (rng.integers(-3, 4, shape) * (rng.random(shape) < 0.1)).astype(np.float16)


both_ways = functools.partial(compress, on_excess="prune", transposable=True)


def test_hybrid_matrices_are_made_where_their_elements_are(cupy, rng):
    torch = pytest.importorskip("torch")
    w, b = whole(rng, (512, 256)), whole(rng, (256, 8))
    with cupy.cuda.Device(1):
        of_cupyx = cupy.asarray(w.astype(np.float32))
        of_cupyx = pytest.importorskip("cupyx.scipy.sparse").csr_matrix(of_cupyx)
    for given in (torch.from_numpy(w).to("cuda:1"), of_cupyx):
        h = hybrid(given, dtype="float16")
        assert h.device == "cuda:1"
        right = torch.from_numpy(b).to("cuda:1")
        np.testing.assert_array_equal((h @ right).cpu().numpy(), w @ b)


@pytest.mark.parametrize("make", [hybrid, both_ways])
def test_torch_tensors_of_a_device_that_is_not_the_current_one(cupy, rng, make):
    torch = pytest.importorskip("torch")
    with cupy.cuda.Device(1):
        a = make(cupy.asarray(whole(rng, (512, 512))))
        weight = a.toarray().get()
    for n in (2, 8, 40, 512):
        for _ in range(3):
            b = whole(rng, (512, n))
            right = torch.from_numpy(b).to("cuda:1")
            for got in (a @ right, (right.T.contiguous() @ a.T).T):
                assert got.device == right.device
                np.testing.assert_array_equal(got.cpu().numpy(), weight @ b)
    assert torch.cuda.current_device() == 0


def of_compressed(x, tokens):
    a = compress(x, on_excess="prune")
    return (
        a @ tokens, tokens.T @ a.T, a.toarray(), a.T.toarray(), a.mask(), a.copy().metadata,
        a.astype("float32").values, a.astype("float8_e4m3fn").toarray(), a.packed,
    )  # fmt: skip


def of_transposable(x, tokens):
    a = compress(x, on_excess="prune", transposable=True, keep_dense=True)
    return a @ tokens, a.T @ tokens[: x.shape[0]], a.T.toarray()


def of_hybrid(x, tokens):
    a = hybrid(x)
    return a @ tokens, tokens.T @ a.T, a.toarray(), a.mask(), a.astype("bfloat16").toarray()


def of_other_formats(x, tokens):
    a = compress(x, pattern=(1, 4), on_excess="prune")
    return a @ tokens, a.toarray(), s24.prune(x, pattern=(1, 4))


def of_masks(x, tokens):
    kept = s24.mask(x)
    given = compress(x, mask=kept)
    like = compress(x, like=given)
    return kept, s24.prune(x, transposable=True), given.values, like.values, s24.is_24(x)


def of_experts(x, tokens):
    experts = compress(x.reshape(2, -1, x.shape[1]), on_excess="prune")
    rows, offsets = tokens.T, [0, 3, tokens.shape[1]]
    how = {"activation": "silu", "gated": True}
    return (
        s24.grouped_linear(rows, experts, offsets=offsets),
        s24.grouped_linear(rows, experts, offsets=offsets, **how),
        s24.grouped_matmul(experts, tokens, offsets=offsets),
    )


def of_layers(x, tokens):
    rows = tokens.T
    a, bias = compress(x, on_excess="prune"), x[0]
    y, saved = F.linear(rows, x)
    slopes = F.linear_backward(y, saved, gradient="24dense")
    ready = s24.plan(a, (tokens.shape, "float16"))
    fused = s24.linear(rows, a, bias, activation="gelu")
    return fused, y, *slopes[:2], ready.execute(tokens)


def of_moves(x, tokens):
    a = s24.random(x.shape, dtype="float16", device=f"cuda:{x.device.id}", rng=1)
    return a.toarray(), a.to_device("cpu").toarray(), compress(x, on_excess="prune").values


@pytest.mark.parametrize(
    "function",
    [
        of_compressed, of_transposable, of_hybrid, of_other_formats, of_masks, of_experts,
        of_layers, of_moves,
    ],
)  # fmt: skip
@pytest.mark.parametrize("n", [3, 40, 512])
def test_arrays_of_a_device_that_is_not_the_current_one(cupy, rng, function, n):
    with cupy.cuda.Device(1):
        x, tokens = cupy.asarray(whole(rng, (512, 512))), cupy.asarray(whole(rng, (512, n)))
        expected = function(x, tokens)
    for _ in range(2):
        for got, want in zip(function(x, tokens), expected, strict=True):
            assert getattr(got, "device", None) == getattr(want, "device", None)
            cupy.testing.assert_array_equal(got, want)
    assert cupy.cuda.runtime.getDevice() == 0


def test_operands_of_two_devices_are_refused(cupy, rng):
    with cupy.cuda.Device(1):
        x, bias = cupy.asarray(whole(rng, (512, 40))), cupy.zeros(512, np.float32)
        out = cupy.zeros((512, 40), np.float16)
    here = cupy.asarray(whole(rng, (512, 512)))
    a, tokens = compress(here, on_excess="prune"), here[:, :40]
    for _ in range(2):
        a @ tokens  # is remembered
        for call in (
            lambda: a @ x, lambda: x.T @ a.T, lambda: s24.matmul(a, tokens, out=out),
            lambda: s24.linear(tokens.T, a, bias), lambda: hybrid(here) @ x,
        ):  # fmt: skip
            with pytest.raises(s24.DeviceError, match=r"cuda:[01]"):
                call()
