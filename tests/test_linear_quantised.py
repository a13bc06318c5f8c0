"""Linear layers of quantised operands: scales, biases and types of the result."""

from __future__ import annotations

import numpy as np
import pytest

import sparse24 as s24
from sparse24 import _dtypes
from sparse24._arrays import to_numpy

T, K, M = 6, 40, 24
MAKERS = {
    "2:4": lambda w: s24.compress(w),
    "1:4": lambda w: s24.compress(s24.prune(w, pattern=(1, 4)), pattern=(1, 4)),
    "3:8": lambda w: s24.compress(s24.prune(w, pattern=(3, 8)), pattern=(3, 8)),
    "hybrid": lambda w: s24.hybrid(w),
}


def quantised(rng, name):
    w = s24.prune(rng.integers(-20, 21, (M, K)).astype(np.float32))
    x = rng.integers(-20, 21, (2, T // 2, K)).astype(np.float32)
    logical = _dtypes.TABLE[name].logical
    return x.astype(logical), w.astype(logical)


CASES = [
    (kind, name)
    for kind in MAKERS
    for name in ("int8", "bfloat16", "float16" if kind == "hybrid" else "float8_e4m3fn")
]


@pytest.mark.parametrize(("kind", "name"), CASES)
@pytest.mark.parametrize("form", ["number", "row", "token", "column"])
def test_scales_of_tokens_and_rows(rng, kind, name, form):
    x, w = quantised(rng, name)
    A = MAKERS[kind](w)
    of_rows = rng.uniform(0.5, 1.5, M).astype(np.float32)
    of_tokens = rng.uniform(0.5, 1.5, (2, T // 2, 1)).astype(np.float32)
    given = {
        "number": (0.25, of_rows),
        "row": (None, of_rows[None]),
        "token": (of_tokens[..., 0], of_rows),
        "column": (of_tokens, None),
    }[form]
    bias = rng.standard_normal(M).astype(np.float32)
    got = s24.linear(x, A, bias, activation="relu", scales=given, dtype="float32")
    sums = x.astype(np.float64) @ A.toarray().astype(np.float64).T
    first = {"number": 0.25, "row": 1.0}.get(form, of_tokens)
    want = np.maximum(sums * first * (1.0 if form == "column" else of_rows) + bias, 0)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-3)


def test_scales_of_one_row_of_tokens_broadcast_as_in_matmul(rng):
    x, w = quantised(rng, "int8")
    A, scale = s24.compress(w), rng.uniform(1, 2, T // 2).astype(np.float32)
    got = s24.linear(x, A, scales=(scale, 1.0), dtype="float32")
    np.testing.assert_array_equal(got, s24.matmul(x, A.T, scales=(scale, 1.0), dtype="float32"))


@pytest.mark.parametrize("kind", MAKERS)
def test_tokens_of_a_sparse_stack_have_scales_of_their_own(rng, kind):
    x, w = quantised(rng, "int8")
    x = s24.prune(x)
    scales = rng.uniform(0.5, 1.5, x.shape[:-1]).astype(np.float32), None
    got = s24.linear(s24.compress(x), MAKERS[kind](w), scales=scales, dtype="float32")
    np.testing.assert_array_equal(
        got, s24.linear(x, MAKERS[kind](w), scales=scales, dtype="float32")
    )


@pytest.mark.parametrize("weights", [1, 2])
def test_a_stack_of_weights_takes_no_scale_for_each_token(rng, weights):
    x, w = quantised(rng, "int8")
    A = s24.compress(np.stack([w] * weights))
    with pytest.raises(s24.ShapeError, match=r"scales\[0\] must have shape \(3,\) or \(3, 1\)"):
        s24.linear(x, A, scales=(np.ones((2, T // 2)), None))
    got = s24.linear(x, A, scales=(np.full(T // 2, 2.0), None), dtype="float32")
    np.testing.assert_array_equal(got, 2 * s24.linear(x, A, dtype="float32"))


def test_bits_of_fp8_and_types_alone(rng):
    x, w = quantised(rng, "float8_e4m3fn")
    A = s24.compress(w)
    want = s24.linear(x, A)
    got = s24.linear(x.view(np.uint8), A, x_dtype="float8_e4m3fn")
    np.testing.assert_array_equal(got, want)
    assert s24.linear(x, A, dtype="float16").dtype == np.float16


@pytest.mark.parametrize("kind", MAKERS)
def test_lists_are_tokens_and_scales_too(rng, kind):
    x, w = quantised(rng, "bfloat16")
    A, scales = MAKERS[kind](w), (rng.uniform(1, 2, (2, T // 2)), rng.uniform(1, 2, M))
    want = s24.linear(x.astype(np.float64), A, scales=scales)
    listed = [scale.tolist() for scale in scales]
    for tokens, factors in ((x.astype(np.float64).tolist(), scales), (x.tolist(), listed)):
        np.testing.assert_allclose(s24.linear(tokens, A, scales=factors), want, rtol=1e-5)
    listed[0] = scales[0][..., None].tolist()
    np.testing.assert_array_equal(s24.linear(x.astype(np.float64), A, scales=listed), want)


def test_tokens_without_features_have_scales_of_their_own():
    A, x = s24.compress(np.zeros((5, 0), np.float32)), np.ones((2, 3, 0), np.float32)
    scale = np.ones((2, 3), np.float32)
    got = s24.linear(x, A, np.ones(5, np.float32), scales=(scale, None))
    np.testing.assert_array_equal(got, np.ones((2, 3, 5), np.float32))


def test_one_token(rng):
    x, w = quantised(rng, "int8")
    got = s24.linear(x[0, 0], s24.compress(w), scales=(0.5, None), dtype="float32")
    np.testing.assert_array_equal(got, 0.5 * (w.astype(np.float32) @ x[0, 0].astype(np.float32)))


def test_tensors_of_torch(rng):
    torch = pytest.importorskip("torch")
    x, w = quantised(rng, "int8")
    scale = torch.rand(2, T // 2)
    got = s24.linear(torch.from_numpy(x), s24.compress(w), scales=(scale, 2.0), dtype=torch.float32)
    want = torch.from_numpy(x).float() @ torch.from_numpy(w).float().T * scale[..., None] * 2
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize(
    ("scales", "error", "words"),
    [
        (3.0, s24.ArgumentError, "scales must be a pair"),
        ((np.ones(5), 1.0), s24.ShapeError, r"scales\[0\] must have shape \(3,\)"),
        ((1.0, np.ones(5)), s24.ShapeError, r"scales\[1\] must have shape \(24,\)"),
    ],
)
def test_refusals(rng, scales, error, words):
    x, w = quantised(rng, "int8")
    with pytest.raises(error, match=words):
        s24.linear(x, s24.compress(w), scales=scales)


def test_on_a_gpu(xp, rng):
    x, w = quantised(rng, "int8")
    A = s24.compress(xp.asarray(w))
    tokens, rows = rng.uniform(1, 2, (2, T // 2)), rng.uniform(1, 2, M)
    given = tuple(xp.asarray(s.astype(np.float32)) for s in (tokens, rows))
    got = s24.linear(xp.asarray(x), A, scales=given, dtype="float32")
    want = x.astype(np.float64) @ w.astype(np.float64).T * tokens[..., None] * rows
    np.testing.assert_allclose(to_numpy(got), want, rtol=1e-5)
