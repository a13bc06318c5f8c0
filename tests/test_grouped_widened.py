"""Experts of 8 bits and tokens of 16, from the public functions on."""

from __future__ import annotations

import numpy as np
import pytest
from grouped_cases import offsets_of
from matmul_cases import logical, put, sample
from mixed_cases import PAIRS

import sparse24 as s24
from sparse24._arrays import to_numpy
from sparse24._dtypes import TABLE
from sparse24._grouped import choice as grouped_choice
from sparse24._grouped import dispatch as grouped_dispatch
from sparse24._records import Compressed24
from sparse24.kernels import reference_grouped
from sparse24.kernels.reference_product import activate

FEW, MANY = (3, 0, 7, 1), (300, 0, 900, 10)


@pytest.fixture(params=["numpy", pytest.param("cupy", marks=pytest.mark.gpu)])
def xp(request):
    return pytest.importorskip(request.param)


class Layer:
    """Experts of 4, their tokens in float16 or bfloat16, and exact products (t, m)."""

    def __init__(self, rng, xp, counts, stored="int8", dtype="float16", m=128, k=272):
        self.xp, self.dtype, self.offsets = xp, dtype, offsets_of(counts)
        experts = s24.random((len(counts), m, k), dtype=stored, rng=rng)
        x = sample((int(self.offsets[-1]), k), dtype, rng) / 64
        x = x.astype(sample((1,), dtype, rng).dtype)
        a = experts.toarray().astype(np.float64)
        self.exact = reference_grouped.grouped_matmul(a, x.T, self.offsets).T
        self.experts = experts if xp is np else experts.to_device("cuda")
        self.x = put(x, xp)

    def linear(self, *arguments, **options):
        options.setdefault("offsets", self.xp.asarray(self.offsets))
        options.setdefault("x_dtype", self.dtype)
        return s24.grouped_linear(self.x, self.experts, *arguments, **options)

    def near(self, got, want=None):
        want = self.exact if want is None else want
        got = logical(to_numpy(got), self.dtype).astype(np.float64)
        eps = 2.0 ** -(8 if self.dtype == "bfloat16" else 10)
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=eps, atol=eps * np.abs(want).max(initial=0))


@pytest.mark.parametrize(("stored", "dtype"), PAIRS)
@pytest.mark.parametrize("counts", [FEW, MANY, (0, 0)], ids=str)
def test_linear_layers(rng, xp, counts, stored, dtype):
    layer = Layer(rng, xp, counts, stored, dtype)
    for _ in range(3):  # the first call prepares the others
        layer.near(layer.linear())
    layer.near(layer.linear(offsets=layer.offsets.tolist()))


@pytest.mark.parametrize("counts", [FEW, MANY], ids=str)
@pytest.mark.parametrize("m", [128, 96, 50])
def test_gates_biases_and_scales(rng, xp, counts, m):
    layer = Layer(rng, xp, counts, m=m)
    rows, bias = (rng.standard_normal((4, m)).astype(np.float32) for _ in range(2))
    rows /= np.abs(layer.exact).max() / 4  # so that activations are not all 0 or 1
    of_tokens = np.repeat(np.arange(4), np.diff(layer.offsets))
    y = layer.exact * rows[of_tokens] + bias[of_tokens]
    want = activate(y[:, : m // 2], "silu", 0.0, np.inf) * y[:, m // 2 :]
    options = {"scales": (None, xp.asarray(rows)), "activation": "silu", "gated": True}
    for _ in range(2):
        layer.near(layer.linear(xp.asarray(bias), **options), want)


@pytest.mark.gpu
def test_what_is_chosen_and_why(rng, cupy, monkeypatch):
    layer = Layer(rng, cupy, FEW)
    told = s24.explain(layer.experts, layer.x.T, offsets=layer.offsets)
    assert told.chosen == "grouped_mixed"
    assert "one launch serves all 4 experts, by tiles of 128x32x64" in str(told)
    monkeypatch.setitem(grouped_choice.CONVERTING_PAYS, 0, 0)
    told = s24.explain(layer.experts, layer.x.T, offsets=layer.offsets)
    assert told.chosen == "grouped_wgmma"
    assert "the int8 elements are converted to float16 at each call" in str(told)
    layer.near(layer.linear())


def test_explained_conversions():
    told = lambda stored, dtype: grouped_dispatch._conversion(  # noqa: E731
        Compressed24(None, None, None, (2, 4, 8), TABLE[stored]), TABLE[dtype]
    )
    assert told("bfloat16", "bfloat16") == ""
    assert told("int8", "bfloat16") == "; the int8 elements are converted to bfloat16 at each call"


@pytest.mark.gpu
def test_nothing_is_converted(rng, cupy, monkeypatch):
    from sparse24 import _storage

    monkeypatch.setattr(_storage, "cast", lambda *_: pytest.fail("converted"))
    for counts in (FEW, MANY):
        layer = Layer(rng, cupy, counts)
        layer.near(layer.linear())
