"""Calls like an earlier one: prepared once, right for new addresses, contents and streams."""

import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import sparse24 as s24
from sparse24 import _dispatch, _dtypes, _foreign
from sparse24._arrays import to_numpy
from sparse24.kernels.launch import Launch

STEMS = ("sparse_skinny", "sparse_wgmma")
gpu = pytest.mark.gpu
on_gpu = pytest.mark.stem(*STEMS)


def layer(rng, m=256, k=512):
    import cupy

    weight = cupy.asarray(rng.standard_normal((m, k)), np.float16)
    return s24.compress(s24.prune(weight))


def tokens(rng, *shape):
    import cupy

    return cupy.asarray(rng.standard_normal(shape), np.float16)


class Count:
    """How many launches were laid out."""

    def __init__(self, monkeypatch):
        self.count = 0
        plain = Launch.__init__

        def counting(launch, *arguments):
            self.count += 1
            plain(launch, *arguments)

        monkeypatch.setattr(Launch, "__init__", counting)


@gpu
@on_gpu
@pytest.mark.parametrize("n", [1, 16, 600])
def test_the_same_call_again_lays_out_nothing(rng, monkeypatch, n):
    a, x = layer(rng), tokens(rng, 512, n)
    for _ in range(4):
        a @ x  # the result's memory is that of the call before
    laid_out = Count(monkeypatch)
    first = to_numpy(a @ x)
    assert laid_out.count == 0
    np.testing.assert_array_equal(first, to_numpy(s24.matmul(a, x)))


@gpu
@on_gpu
@pytest.mark.parametrize("n", [4, 300])
def test_new_threads(rng, n):
    a, x = layer(rng), tokens(rng, n, 512)
    with ThreadPoolExecutor(1) as pool:  # the first call is of another thread
        first = pool.submit(lambda: to_numpy(x @ a.T)).result()
    for _ in range(2):
        with ThreadPoolExecutor(1) as pool:
            again = pool.submit(lambda: to_numpy(x @ a.T)).result()
        np.testing.assert_array_equal(again, first)
    np.testing.assert_array_equal(to_numpy(x @ a.T), first)


@gpu
@on_gpu
def test_other_addresses_and_contents(rng):
    a = layer(rng)
    for n in (8, 300):
        for _ in range(3):
            x = tokens(rng, n, 512)
            want = to_numpy(x).astype(np.float32) @ to_numpy(a.toarray()).T.astype(np.float32)
            np.testing.assert_allclose(to_numpy(x @ a.T), want, rtol=2e-2, atol=0.2)


@gpu
@on_gpu
@pytest.mark.parametrize("n", [1, 16, 600])
@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_sums_with_the_result_lay_out_nothing_anew(rng, monkeypatch, n, library):
    a, x = layer(rng), tokens(rng, n, 512)
    want = to_numpy(x @ a.T).astype(np.float32) + 1
    ones = np.ones_like(want, to_numpy(x).dtype)
    if library == "torch":
        torch = pytest.importorskip("torch")
        x, place = torch.as_tensor(x, device="cuda"), lambda y: torch.tensor(y, device="cuda")
    else:
        import cupy

        place = cupy.asarray
    outs = [place(ones) for _ in range(5)]  # at several addresses
    for out in outs[:2]:
        s24.matmul(x, a.T, out, c=out, beta=1)
    laid_out = Count(monkeypatch)
    for out in outs[2:]:
        s24.matmul(x, a.T, out, c=out, beta=1)
    assert laid_out.count == 0
    for out in outs:
        np.testing.assert_allclose(to_numpy(out), want, rtol=2e-2, atol=0.2)


@gpu
@on_gpu
def test_out_is_written_and_may_not_overlap(rng):
    import cupy

    a = layer(rng, 512, 512)
    x, out = tokens(rng, 512, 32), cupy.full((512, 32), np.nan, np.float16)
    for _ in range(3):
        out.fill(np.nan)
        assert s24.matmul(a, x, out) is out
        np.testing.assert_array_equal(to_numpy(out), to_numpy(a @ x))
    with pytest.raises(s24.ArgumentError, match="shares memory"):
        s24.matmul(a, x, x)
    strided = cupy.full((512, 64), np.nan, np.float16)[:, ::2]
    s24.matmul(a, x, strided)
    np.testing.assert_array_equal(to_numpy(strided), to_numpy(out))


@gpu
@on_gpu
@pytest.mark.parametrize("library", ["cupy", "torch"])
@pytest.mark.parametrize("shape", [(256,), (4, 256), (300, 256)])
def test_products_across_the_groups_are_planned_once(rng, monkeypatch, shape, library):
    pytest.importorskip(library)
    a = layer(rng)
    dense = to_numpy(a.toarray()).astype(np.float32)
    for i in range(3):
        x = tokens(rng, *shape)
        want = to_numpy(x).astype(np.float32) @ dense
        got = (_foreign.to_torch(x) if library == "torch" else x) @ a
        np.testing.assert_allclose(to_numpy(got), want, rtol=2e-2, atol=0.2)
        if i == 0:
            monkeypatch.setattr(_dispatch, "fill", None)


@gpu
@on_gpu
@pytest.mark.parametrize("n", [4, 256])
def test_epilogues_follow_their_vectors(rng, n):
    import cupy

    a, x = layer(rng), tokens(rng, n, 512)
    plain = to_numpy(x @ a.T).astype(np.float32)
    bias = cupy.zeros(256, np.float32)
    for value in (1.0, 2.0, -3.0):
        bias.fill(value)  # the same address, new contents
        got = to_numpy(s24.linear(x, a, bias)).astype(np.float32)
        np.testing.assert_allclose(got, plain + value, atol=0.1)
    for value in (4.0, 5.0):
        other = cupy.full(256, value, np.float32)  # another address
        got = to_numpy(s24.linear(x, a, other)).astype(np.float32)
        np.testing.assert_allclose(got, plain + value, atol=0.1)
    half = bias.astype(np.float16)  # converted at each call
    for value in (6.0, 7.0):
        half.fill(value)
        got = to_numpy(s24.linear(x, a, half)).astype(np.float32)
        np.testing.assert_allclose(got, plain + value, atol=0.1)
    for alpha in (2.0, 0.5):
        got = to_numpy(s24.matmul(x, a.T, alpha=alpha)).astype(np.float32)
        np.testing.assert_allclose(got, alpha * plain, rtol=1e-2, atol=0.1)


@gpu
@on_gpu
@pytest.mark.parametrize("shape", [(512,), (3, 512), (2, 3, 512), (2, 5, 300, 512)])
def test_vectors_and_token_axes(rng, shape):
    a = layer(rng)
    dense = to_numpy(a.toarray()).astype(np.float32)
    for _ in range(3):
        x = tokens(rng, *shape)
        want = to_numpy(x).astype(np.float32) @ dense.T
        np.testing.assert_allclose(to_numpy(x @ a.T), want, rtol=2e-2, atol=0.2)


@gpu
@on_gpu
def test_row_scales_are_not_folded_into_tokens(rng):
    import cupy

    a, x = layer(rng), tokens(rng, 2, 5, 512)
    scale = cupy.arange(1, 6, dtype=np.float32)[:, None]
    got = to_numpy(s24.matmul(x, a.T, scales=(scale, 1.0))).astype(np.float32)
    want = to_numpy(x @ a.T).astype(np.float32) * to_numpy(scale)
    np.testing.assert_allclose(got, want, rtol=2e-2, atol=0.1)


@gpu
@on_gpu
@pytest.mark.parametrize("n", [4, 512])
def test_torch_tensors(rng, n):
    import torch

    a = layer(rng)
    x = torch.from_dlpack(tokens(rng, n, 512))
    want = to_numpy(x @ a.T)
    side = torch.cuda.Stream()
    for _ in range(3):
        got = x @ a.T
        assert isinstance(got, torch.Tensor)
        assert got.is_cuda
        np.testing.assert_array_equal(to_numpy(got), want)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            np.testing.assert_array_equal(to_numpy(x @ a.T), want)
    other = layer(rng)
    first = weakref.ref(x @ other.T)
    assert first() is None  # what the array remembers keeps no result alive


@gpu
@on_gpu
def test_a_kept_dense_matrix_multiplies_again(rng):
    import cupy

    weight = cupy.asarray(rng.standard_normal((64, 64)), np.float16)
    a = s24.compress(s24.prune(weight), keep_dense=True)
    x = tokens(rng, 64, 64)
    want = to_numpy(a.toarray()).astype(np.float32) @ to_numpy(x).astype(np.float32)
    for _ in range(3):
        for got in (s24.matmul(a, x, algorithm="dense"), (x.T @ a.T).T):
            np.testing.assert_allclose(to_numpy(got), want, rtol=1e-2, atol=0.1)


@gpu
@on_gpu
@pytest.mark.parametrize("library", ["torch", "cupy"])
@pytest.mark.parametrize("out_dtype", ["bfloat16", "float8_e4m3fn"])
def test_products_of_fp8(rng, library, out_dtype):
    """Of bits, and of tensors of torch, which CuPy sees as bits, in torch's own type."""
    cupy, torch, name = pytest.importorskip("cupy"), pytest.importorskip("torch"), "float8_e4m3fn"
    own, wanted = (_dtypes.TABLE[kind].logical for kind in (name, out_dtype))
    w = s24.prune(rng.integers(-2, 3, (96, 256)).astype(np.float32))
    a = s24.compress(cupy.asarray(w.astype(own).view(np.uint8)), dtype=name)
    for _ in range(5):
        x = rng.integers(-1, 2, (8, 256)).astype(np.float32)
        bits = cupy.asarray(x.astype(own).view(np.uint8))
        if library == "torch":
            given = torch.as_tensor(bits).view(torch.float8_e4m3fn)
            got = s24.matmul(a, given.T, dtype=out_dtype)
            assert got.dtype == getattr(torch, out_dtype)
            got = got.cpu().float().numpy()
        else:
            got = to_numpy(s24.matmul(a, bits.T, dtype=out_dtype, b_dtype=name))
            got = got.view(wanted).astype(np.float32)
        np.testing.assert_array_equal(got, (w @ x.T).astype(wanted).astype(np.float32))
        cupy.cuda.Device().synchronize()
    assert len(a._plans) == 1
