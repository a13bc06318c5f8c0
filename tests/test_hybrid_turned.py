"""Operands that lie by columns are turned by a launch of their own before the product."""

from __future__ import annotations

import numpy as np
import pytest
from hybrid_cases import choose

from sparse24._errors import ArgumentError
from sparse24._hybrid.turned import ReadyTurned
from sparse24._to_hybrid import hybrid

pytestmark = [pytest.mark.stem("transpose"), pytest.mark.gpu]
M, K = 300, 520
PATHS = [("scatter", 9), ("scatter", 100), ("panel", 40), ("slots", 130), ("regrouped", 256)]
PLACES = [(0, K), (1, K + 3), (8, K + 8)]  # first element of a token, elements between two


def whole(rng, shape, share=1.0):
    return (rng.integers(-3, 4, shape) * (rng.random(shape) < share)).astype(np.float32)


def is_turned(h):
    return [type(plan) for plan in h._plans.values()] == [ReadyTurned]


@pytest.mark.parametrize(("path", "n"), PATHS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("first", "pitch"), PLACES)
def test_tokens_anywhere(cupy, rng, path, n, dtype, first, pitch):
    weight = whole(rng, (M, K), 0.1)
    h = hybrid(cupy.asarray(weight), dtype=dtype)
    choose(h, n, path)
    kept = []
    for _ in range(3):
        x = whole(rng, (n, pitch))
        tokens = cupy.asarray(x).astype(h.dtype)[:, first : first + K]
        want = x[:, first : first + K] @ weight.T
        kept.append((tokens @ h.T, want))
    assert is_turned(h)
    for got, want in kept:
        np.testing.assert_array_equal(got.astype(np.float32).get(), want)


@pytest.mark.parametrize(("path", "n"), PATHS)
def test_results_that_are_given(cupy, rng, path, n):
    weight, x = whole(rng, (M, K), 0.1), whole(rng, (n, K))
    h, b = hybrid(cupy.asarray(weight), dtype="float16"), cupy.asarray(x).astype(np.float16).T
    out = cupy.full((M, n), cupy.nan, np.float16)
    for _ in range(3):
        h.matmul(b, out=out, algorithm=path)
        np.testing.assert_array_equal(out.get(), weight @ x.T)
        out.fill(cupy.nan)
    assert is_turned(h)


def test_results_over_the_operand_are_refused(cupy, rng):
    h = hybrid(cupy.asarray(whole(rng, (M, K), 0.1)), dtype="float16")
    memory = cupy.zeros(16 * (K + M), np.float16)
    b, out = memory[: 16 * K].reshape(16, K).T, memory[16 * K :].reshape(M, 16)
    for _ in range(2):
        h.matmul(b, out=out, algorithm="scatter")
    assert is_turned(h)
    with pytest.raises(ArgumentError, match="out"):
        h.matmul(b, out=memory[8 * K : 8 * K + 16 * M].reshape(M, 16), algorithm="scatter")


def test_streams_side_by_side(cupy, rng):
    """Each call has scratch memory of its own, which comes back in the order of its stream."""
    weight = whole(rng, (M, K), 0.1)
    h = hybrid(cupy.asarray(weight), dtype="float16")
    choose(h, 24, "scatter")
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(3)]
    xs = [whole(rng, (24, K)) for _ in range(12)]
    tokens = [cupy.asarray(x).astype(np.float16) for x in xs]
    tokens[0] @ h.T
    cupy.cuda.Device().synchronize()
    products = []
    for i, x in enumerate(tokens):
        with streams[i % 3]:
            products.append(x @ h.T)
    for stream in streams:
        stream.synchronize()
    assert is_turned(h)
    for x, got in zip(xs, products, strict=True):
        np.testing.assert_array_equal(got.get(), x @ weight.T)


def test_tensors_in_torchs_memory(cupy, rng):
    torch = pytest.importorskip("torch")
    weight = whole(rng, (M, K), 0.1)
    h = hybrid(cupy.asarray(weight), dtype="bfloat16")
    choose(h, 24, "scatter")
    cupy.cuda.Device().synchronize()
    for _ in range(3):
        x = whole(rng, (2, 12, K))
        with torch.cuda.stream(torch.cuda.Stream()):
            got = torch.from_numpy(x).to("cuda", torch.bfloat16) @ h.T
            np.testing.assert_array_equal(got.float().cpu().numpy(), x @ weight.T)
    assert ReadyTurned in {type(plan) for plan in h._plans.values()}
