"""Experts of 8 bits and tokens of 16, from the public functions on."""

from __future__ import annotations

import numpy as np
import pytest
from matmul_cases import sample
from mixed_cases import PAIRS
from narrow_experts import FEW, MANY, Layer, check_gate_bias_and_scale, check_repeats

import sparse24 as s24
from sparse24._dtypes import TABLE, numpy_dtype
from sparse24._grouped import choice as grouped_choice
from sparse24._grouped import dispatch as grouped_dispatch
from sparse24._records import Compressed24


@pytest.fixture(params=["numpy", pytest.param("cupy", marks=pytest.mark.gpu)])
def xp(request):
    return pytest.importorskip(request.param)


def layer_of(rng, xp, counts, stored="int8", dtype="float16", m=128, k=272) -> Layer:
    """4 experts of 8 bits, and tokens of float16 or bfloat16."""
    experts = s24.random((len(counts), m, k), dtype=stored, rng=rng)
    x = sample((sum(counts), k), dtype, rng) / 64
    dense = experts.toarray().astype(np.float64)
    return Layer(xp, experts, dense, x.astype(numpy_dtype(dtype)), dtype, counts)


@pytest.mark.parametrize(("stored", "dtype"), PAIRS)
@pytest.mark.parametrize("counts", [FEW, MANY, (0, 0)], ids=str)
def test_linear_layers(rng, xp, counts, stored, dtype):
    check_repeats(layer_of(rng, xp, counts, stored, dtype))


@pytest.mark.parametrize("counts", [FEW, MANY], ids=str)
@pytest.mark.parametrize("m", [128, 96, 50])
def test_gates_biases_and_scales(rng, xp, counts, m):
    check_gate_bias_and_scale(layer_of(rng, xp, counts, m=m), rng)


@pytest.mark.gpu
def test_what_is_chosen_and_why(rng, cupy, monkeypatch):
    layer = layer_of(rng, cupy, FEW)
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

    cast, converted = _storage.cast, []
    monkeypatch.setattr(_storage, "cast", lambda *of: converted.append(of) or cast(*of))
    for counts in (FEW, MANY):
        layer = layer_of(rng, cupy, counts)
        layer.near(layer.linear())
    assert not converted
    monkeypatch.setitem(grouped_choice.CONVERTING_PAYS, 0, 0)
    layer_of(rng, cupy, FEW).linear()
    assert converted
