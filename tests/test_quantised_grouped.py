"""Products of experts with stacks of quantised matrices, from the public functions on."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from grouped_cases import offsets_of
from matmul_cases import sample
from narrow_experts import FEW, MANY, Layer, check_gate_bias_and_scale, check_repeats
from quantised_cases import problem

import sparse24 as s24
from sparse24._dtypes import TABLE
from sparse24._grouped import choice as grouped_choice
from sparse24.kernels.sparse_decode_plan import WIDENED


@pytest.fixture(params=["numpy", pytest.param("cupy", marks=pytest.mark.gpu)])
def xp(request):
    return pytest.importorskip(request.param)


def layer_of(rng, xp, counts, m=96, k=272, bits=4, dtype="float16") -> Layer:
    dense = rng.standard_normal((len(counts), m, k)).astype(np.float32)
    a = s24.compress(dense.astype(np.float16), on_excess="prune", dtype=dtype)
    experts = s24.quantise(a, bits=bits)
    exact = experts.astype("float64").toarray()
    return Layer(xp, experts, exact, sample((sum(counts), k), dtype, rng), dtype, counts)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("counts", [FEW, MANY, (0, 0)], ids=str)
def test_linear_layers(rng, xp, counts, dtype, bits):
    check_repeats(layer_of(rng, xp, counts, bits=bits, dtype=dtype))


@pytest.mark.parametrize("counts", [FEW, MANY], ids=str)
@pytest.mark.parametrize("m", [96, 64, 50])
def test_gates_biases_and_scales(rng, xp, counts, m):
    check_gate_bias_and_scale(layer_of(rng, xp, counts, m=m), rng)


@pytest.mark.parametrize("order", ["C", "F"])
def test_tokens_as_columns(rng, xp, order):
    layer = layer_of(rng, xp, FEW)
    b = xp.asarray(layer.x.T, order=order)
    out = xp.full((96, 11), np.nan, np.float16)
    assert s24.grouped_matmul(layer.experts, b, out, offsets=layer.offsets) is out
    layer.near(out.T)


@pytest.mark.gpu
def test_what_is_chosen_and_why(rng, cupy, monkeypatch):
    few, many = layer_of(rng, cupy, FEW), layer_of(rng, cupy, MANY)
    told = s24.explain(few.experts, few.x.T, offsets=few.offsets)
    assert told.chosen == "grouped_quantised"
    assert "one launch serves all 4 experts, by tiles of 32x8x1024" in str(told)
    told = s24.explain(many.experts, many.x.T, offsets=many.offsets)
    assert told.chosen == "grouped_mixed"
    assert "one launch serves all 4 experts, by tiles of 128x128x64" in str(told)
    monkeypatch.setitem(grouped_choice.CONVERTING_PAYS, 4, 302)
    told = s24.explain(many.experts, many.x.T, offsets=many.offsets)
    assert told.chosen == "grouped_wgmma"
    assert "the integers are dequantised to float16 at each call" in str(told)
    many.near(many.linear())


def asked(monkeypatch, bits: int, tokens_of_expert: float, dtype="bfloat16") -> list[str]:
    """Kernels in the order in which they are asked, of 4 experts."""
    of = problem(64, round(4 * tokens_of_expert), 3000, bits=0, batch=4)
    monkeypatch.setattr(grouped_choice, "problem_of", lambda *product: of)
    stored = SimpleNamespace(quantised=bits, dtype=TABLE[dtype])
    product = SimpleNamespace(a=SimpleNamespace(stored=stored))
    found = grouped_choice.candidates(product, None)
    for name, as_asked in found:
        direct = name in grouped_choice.DIRECT
        assert as_asked.quantised == (bits if direct else 0)
        assert as_asked.dtype == (dtype if direct else "bfloat16")
    assert [name for name, _ in found[-2:]] == list(grouped_choice.KERNELS)
    return [name for name, _ in found[:-2]]


def test_which_kernels_are_asked(monkeypatch):
    few, many = ["grouped_quantised", "grouped_mixed"], ["grouped_mixed", "grouped_quantised"]
    for bits, pays, most in ((4, 57.5, 3000), (8, 35, 1700)):  # for rows of middle length
        numbers = 0.25, pays - 0.25, pays, most - 1, most
        of_bits = [asked(monkeypatch, bits, n) for n in numbers]
        assert of_bits == [few, few, many, many, []]
    for dtype in WIDENED:
        of_bytes = [asked(monkeypatch, 0, n, dtype) for n in (0.25, 1199, 1200)]
        assert of_bytes == [["grouped_mixed"], ["grouped_mixed"], []]
    assert asked(monkeypatch, 0, 1) == []


@pytest.mark.gpu
def test_a_graph_reads_offsets_anew(rng, cupy):
    layer = layer_of(rng, cupy, FEW)
    offsets = cupy.asarray(layer.offsets)
    out = cupy.empty((96, 11), np.float16, order="F")
    stream = cupy.cuda.Stream(non_blocking=True)
    multiply = lambda: s24.grouped_matmul(layer.experts, layer.x.T, out, offsets=offsets)  # noqa: E731
    multiply()
    with stream:
        stream.begin_capture()
        multiply()
        graph = stream.end_capture()
    offsets[...] = cupy.asarray(offsets_of((1, 2, 4, 4)))
    out.fill(np.nan)
    graph.launch(stream)
    stream.synchronize()
    want = s24.grouped_matmul(layer.experts, layer.x.T, offsets=[0, 1, 3, 7, 11])
    np.testing.assert_array_equal(out.get(), want.get())
