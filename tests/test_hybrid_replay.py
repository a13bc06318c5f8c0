"""A hybrid product like an earlier one is launched at once, and just as right."""

from __future__ import annotations

import numpy as np
import pytest
from hybrid_cases import choose

import sparse24 as s24
from sparse24._errors import ArgumentError
from sparse24._to_hybrid import hybrid

STEMS = ("csr", "rows", "gather", "panel", "scatter", "stream", "wgmma")
pytestmark = [pytest.mark.stem(*(f"hybrid_{stem}" for stem in STEMS)), pytest.mark.gpu]
PATHS = [
    ("csr", 1), ("csr", 40), ("rows", 2), ("gather", 4), ("scatter", 16), ("stream", 16),
    ("slots", 256), ("regrouped", 256), ("panel", 40),
]  # fmt: skip


def whole(rng, shape, share):
    return (rng.integers(-3, 4, shape) * (rng.random(shape) < share)).astype(np.float16)


@pytest.fixture
def weight(rng):
    return whole(rng, (512, 512), 0.1)


@pytest.mark.parametrize(("path", "n"), PATHS)
def test_other_operands_of_the_same_layout(cupy, rng, weight, path, n):
    h = hybrid(cupy.asarray(weight))
    kept, out = [], cupy.full((512, n), cupy.nan, np.float16)
    for _ in range(3):
        b = whole(rng, (512, n), 0.1)
        right = cupy.asarray(b)
        kept.append((right, h.matmul(right, algorithm=path), weight @ b))
        assert h.matmul(right, out=out, algorithm=path) is out
        np.testing.assert_array_equal(out.get(), weight @ b)
    assert len({product.data.ptr for _, product, _ in kept}) == 3
    for _, product, want in kept:
        np.testing.assert_array_equal(product.get(), want)
    assert len(h._plans) == 2  # with `out` and without


def test_the_automatic_choice_vectors_and_strides(cupy, rng, weight):
    h = hybrid(cupy.asarray(weight))
    wide = whole(rng, (512, 7), 0.1)
    wide_on_gpu = cupy.asarray(wide)
    for b, right in (
        (wide[:, 0], wide_on_gpu[:, 0]), (wide[:, 0], cupy.asarray(wide[:, 0])),
        (wide[:, 1:4], wide_on_gpu[:, 1:4]), (wide[::-1], wide_on_gpu[::-1]),
    ):  # fmt: skip
        for _ in range(3):
            np.testing.assert_array_equal((h @ right).get(), weight @ b)


@pytest.mark.parametrize(("dtype", "path"), [("float32", "panel"), ("float64", "rows")])
def test_other_types(cupy, rng, weight, dtype, path):
    h = hybrid(cupy.asarray(weight.astype(dtype)))
    for _ in range(3):
        b = whole(rng, (512, 3), 0.1).astype(dtype)
        product = h.matmul(cupy.asarray(b), algorithm=path)
        np.testing.assert_array_equal(product.get(), weight @ b)
    assert len(h._plans) == 1


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_the_dense_product(cupy, rng, weight, dtype, order):
    h = hybrid(cupy.asarray(weight.astype(dtype)))
    for _ in range(3):
        b = whole(rng, (512, 100), 0.1).astype(dtype)
        right = cupy.asarray(b, order=order)
        out = cupy.full((512, 100), cupy.nan, dtype, order=order)
        np.testing.assert_array_equal(h.matmul(right, algorithm="cublas").get(), weight @ b)
        h.matmul(right, out=out, algorithm="cublas")
        np.testing.assert_array_equal(out.get(), weight @ b)
    assert len(h._plans) == 2


def test_whole_numbers_multiply_densely(cupy, rng):
    weight = rng.integers(-3, 4, (96, 130)).astype(np.int8)
    b = rng.integers(-3, 4, (130, 9)).astype(np.int8)
    h = hybrid(cupy.asarray(weight))
    for _ in range(2):
        product = h.matmul(cupy.asarray(b), algorithm="cublas")
        np.testing.assert_array_equal(product.get(), weight.astype(np.int32) @ b)


def test_a_graph_takes_another_path_than_a_replayed_dense_product(cupy, rng, weight):
    h = hybrid(cupy.asarray(weight))
    b, out = cupy.asarray(whole(rng, (512, 40), 0.1)), cupy.empty((512, 40), np.float16)
    choose(h, 40, "cublas")
    for _ in range(2):
        h.matmul(b, out=out)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        h.matmul(b, out=out, algorithm="scatter")
        want = out.get()
        out.fill(cupy.nan)
        stream.begin_capture()
        h.matmul(b, out=out)
        graph = stream.end_capture()
        graph.launch(stream)
        stream.synchronize()
    np.testing.assert_array_equal(out.get(), want)


def test_what_overlaps_is_refused_every_time(cupy, rng):
    weight = whole(rng, (256, 256), 0.1)
    h = hybrid(cupy.asarray(weight))
    room = cupy.zeros((256 + 128, 8), np.float16)
    b, apart = room[:256], cupy.empty((256, 8), np.float16)
    h.matmul(b, out=apart, algorithm="gather")
    for _ in range(2):
        with pytest.raises(ArgumentError, match="shares memory"):
            h.matmul(b, out=room[128:], algorithm="gather")


def test_torch_tensors_and_their_stream(cupy, rng, weight):
    torch = pytest.importorskip("torch")
    h = hybrid(cupy.asarray(weight))
    for _ in range(3):
        b = whole(rng, (512, 8), 0.1)
        right = torch.from_numpy(b).cuda()
        with torch.cuda.stream(torch.cuda.Stream()):
            right = right + 0
            product = h @ right
            assert isinstance(product, torch.Tensor)
        torch.cuda.synchronize()
        np.testing.assert_array_equal(product.cpu().numpy(), weight @ b)


@pytest.mark.parametrize(("path", "n"), PATHS)
def test_a_graph_holds_what_is_replayed(cupy, rng, weight, path, n):
    h = hybrid(cupy.asarray(weight))
    b = cupy.asarray(whole(rng, (512, n), 0.1))
    out = cupy.full((512, n), cupy.nan, np.float16)
    for _ in range(2):
        h.matmul(b, out=out, algorithm=path)
    want = out.get()
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        h.matmul(b, out=out, algorithm=path)
        stream.begin_capture()
        h.matmul(b, out=out, algorithm=path)
        graph = stream.end_capture()
        out.fill(cupy.nan)
        graph.launch(stream)
        stream.synchronize()
    np.testing.assert_array_equal(out.get(), want)


CHOICES = [*PATHS, ("cublas", 40), ("two_four", 100), ("tiles", 5)]


@pytest.mark.parametrize(("path", "n"), CHOICES)
def test_tokens_are_rows(cupy, rng, weight, path, n):
    """``x @ H.T`` and ``linear``; results are stored by rows, and the matrix is not turned."""
    h, bias = hybrid(cupy.asarray(weight)), cupy.zeros(512, np.float32)
    choose(h, n, path)
    kept = []
    for value in (1, 2, -1):
        x = whole(rng, (n, 512), 0.1)
        right, want = cupy.asarray(x), x.astype(np.float32) @ weight.T
        bias.fill(value)
        kept.append((right @ h.T, want))
        kept.append((s24.linear(right, h), want))
        kept.append((s24.linear(right.reshape(1, n, 512), h, bias), (want + value)[None]))
        kept.append((s24.linear(right, h, bias, activation="relu"), np.maximum(want + value, 0)))
    for product, want in kept:
        assert product.flags.c_contiguous
        np.testing.assert_array_equal(product.get(), want)
    assert len({product.data.ptr for product, _ in kept}) == len(kept)
    assert h.T.nbytes == 0


@pytest.mark.parametrize("path", ["slots", "regrouped"])
def test_tokens_by_strips_of_sorted_rows(cupy, rng, path):
    """Their rows are stored by number, so the result is made by rows of H and turned."""
    share = np.where(rng.random((512, 1)) < 0.1, 0.9, 0.02)
    weight = whole(rng, (512, 512), share)
    h = hybrid(cupy.asarray(weight))
    choose(h, 256, path)
    for n in (256, 250):
        for _ in range(3):
            x = whole(rng, (n, 512), 0.1)
            product = cupy.asarray(x) @ h.T
            assert product.flags.c_contiguous
            np.testing.assert_array_equal(product.get(), x.astype(np.float32) @ weight.T)


@pytest.mark.parametrize("shape", [(3, 512, 5), (2, 2, 512, 16), (2, 512, 100), (2, 512, 7)])
@pytest.mark.parametrize("balance", [True, False])
def test_stacks(cupy, rng, weight, shape, balance):
    h = hybrid(cupy.asarray(weight))
    out = cupy.full(shape, cupy.nan, np.float16)  # the matrix is square
    for _ in range(3):
        b = whole(rng, shape, 0.1)
        want = weight.astype(np.float32) @ b
        product = h.matmul(cupy.asarray(b), balance=balance)
        np.testing.assert_array_equal(product.get(), want)
        assert h.matmul(cupy.asarray(b), out=out, balance=balance) is out
        np.testing.assert_array_equal(out.get(), want)
    assert len(h._plans) == 2


@pytest.mark.parametrize(("path", "n"), [*PATHS, ("cublas", 40)])
def test_torch_tensors_as_rows(cupy, rng, weight, path, n):
    torch = pytest.importorskip("torch")
    h, bias = hybrid(cupy.asarray(weight)), torch.ones(512, device="cuda")
    half = torch.nn.Parameter(bias.half())
    choose(h, n, path)
    torch.cuda.synchronize()
    for _ in range(3):
        x = whole(rng, (n, 512), 0.1)
        want = x.astype(np.float32) @ weight.T
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
            tokens = torch.from_numpy(x).cuda() + 0
            for got, wanted in (
                (tokens @ h.T, want), (s24.linear(tokens, h), want),
                (torch.nn.functional.linear(tokens, h), want),
                (s24.linear(tokens, h, bias, activation="relu"), np.maximum(want + 1, 0)),
                (s24.linear(tokens, h, half), want + 1),
            ):  # fmt: skip
                assert isinstance(got, torch.Tensor)
                assert got.is_contiguous()
                np.testing.assert_array_equal(got.cpu().numpy(), wanted)


@pytest.mark.parametrize(("path", "n"), PATHS)
@pytest.mark.parametrize("bias", [None, "float32", "float16", "float64"])
def test_a_graph_keeps_the_copies_that_it_reads(cupy, rng, weight, path, n, bias):
    h = hybrid(cupy.asarray(weight))
    choose(h, n, path)
    x = cupy.asarray(whole(rng, (n, 512), 0.1))
    vector = cupy.ones(512, bias) if bias else None
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        for _ in range(2):
            want = s24.linear(x, h, vector)
        want = want.get()
        stream.begin_capture()
        y = s24.linear(x, h, vector)
        graph = stream.end_capture()
        sizes = (x.nbytes, 2 * y.nbytes, y.nbytes, 512, 4096)
        others = [cupy.full(size // 2, 7, np.int16) for size in sizes for _ in range(8)]
        y.fill(cupy.nan)
        graph.launch(stream)
        stream.synchronize()
        np.testing.assert_array_equal(y.get(), want)
        assert all((other == 7).all() for other in others)
