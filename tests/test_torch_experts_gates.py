"""Activations and gates of experts in torch: what learns is what is served."""

from __future__ import annotations

import copy
import itertools

import pytest

torch = pytest.importorskip("torch")

from test_torch_experts import assert_near, gradients_of, looped, offsets_of, operands  # noqa: E402
from torch_cases import CLOSE, packings  # noqa: E402

import sparse24 as s24  # noqa: E402
from sparse24 import torch as st  # noqa: E402

COUNTS = (3, 0, 7, 1, 0)
F = torch.nn.functional
ACTIVATIONS = {
    None: lambda x: x, "relu": F.relu, "relu2": lambda x: F.relu(x) ** 2, "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu,
}  # fmt: skip


def finished(y, activation, gated):
    activate = ACTIVATIONS[activation]
    half = y.shape[1] // 2
    return activate(y[:, :half]) * y[:, half:] if gated else activate(y)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("gated", [False, True])
def test_results_and_gradients_of_every_activation(device, activation, gated):
    x, weight, bias, offsets = operands(device)
    options = {"offsets": offsets, "activation": activation, "gated": gated}
    y = st.grouped_linear(x, weight, bias, **options)
    mask = s24.mask(weight.detach())
    wide = [t.detach().double().requires_grad_() for t in (x, weight, bias)]
    want = finished(looped(wide[0], wide[1] * mask, wide[2], offsets), activation, gated)
    got = (y, *gradients_of(y, x, weight, bias))
    dx, _, db = gradients_of(want, *wide)
    assert_near((got[0], got[1], got[3]), (want, dx, db), 1e-5)
    assert got[2].shape == weight.shape
    assert y.shape == (sum(COUNTS), 8 if gated else 16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [False, True])
def test_a_gated_layer_serves_what_it_learned(device, dtype, bias):
    layer = st.SparseExperts(
        5, 32, 64, bias, device, dtype, activation="silu", gated=True
    )  # fmt: skip
    assert layer.weight.shape == (5, 128, 32)
    assert bias == (layer.bias is not None)
    x, offsets = (
        torch.randn(sum(COUNTS), 32, device=device, dtype=dtype),
        offsets_of(COUNTS, device),
    )
    learned = layer(x, offsets)
    assert learned.requires_grad
    with torch.no_grad():
        served, count = packings(lambda: layer(x, offsets))
        assert count == 1
        again, count = packings(lambda: layer(x, offsets))
        assert count == 0
    assert torch.equal(served, again)
    assert served.shape == (sum(COUNTS), 64)
    within = 1e-5 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(served, learned.detach(), rtol=within, atol=within)


@pytest.mark.parametrize("mode", ["grad", "no_grad"])
def test_compiled_layers_with_a_gate(device, mode):
    layer = st.SparseExperts(5, 32, 16, device=device, activation="gelu_tanh", gated=True)
    x, offsets = torch.randn(sum(COUNTS), 32, device=device), offsets_of(COUNTS, device)
    fast = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.set_grad_enabled(mode == "grad"):
        torch.testing.assert_close(fast(x, offsets), layer(x, offsets), **CLOSE)


@pytest.mark.parametrize("way", ["masked", "dense"])
def test_layers_that_multiply_densely_have_their_gate(device, way):
    layer = st.SparseExperts(5, 32, 16, device=device, activation="silu", gated=True)
    x, offsets = torch.randn(sum(COUNTS), 32, device=device), offsets_of(COUNTS, device)
    mask = torch.ones_like(layer.weight, dtype=torch.bool)
    mask[:, :, ::3] = way == "dense"
    layer.set_mask(mask, way=way)
    want = finished(looped(x, layer.weight * mask, layer.bias, offsets), "silu", True)
    torch.testing.assert_close(layer(x, offsets), want, **CLOSE)
    with torch.no_grad():
        torch.testing.assert_close(layer(x, offsets), want.detach(), **CLOSE)


def test_gates_of_dense_layers_stand_over_them():
    ups, gates = ([torch.nn.Linear(32, 16) for _ in range(5)] for _ in range(2))
    layer = st.SparseExperts.from_dense(ups, gates=gates, activation="silu")
    assert (layer.experts, layer.in_features, layer.out_features) == (5, 32, 16)
    for i in range(5):
        assert torch.equal(layer.weight[i], torch.cat([gates[i].weight, ups[i].weight]))
        assert torch.equal(layer.bias[i], torch.cat([gates[i].bias, ups[i].bias]))
    x, offsets = torch.randn(sum(COUNTS), 32), offsets_of(COUNTS)
    dense = layer.to_dense()
    parts = [dense[i](x[a:b]) for i, (a, b) in enumerate(itertools.pairwise(offsets))]
    want = finished(torch.cat(parts), "silu", True)
    torch.testing.assert_close(layer(x, offsets), want, **CLOSE)
    assert dense[0].out_features == 32
    assert "activation='silu', gated=True" in repr(layer)
    other = copy.deepcopy(layer)
    torch.testing.assert_close(other(x, offsets), layer(x, offsets), **CLOSE)


def test_options_that_do_not_fit_are_refused():
    x, weight, _, offsets = operands(m=15)
    for options, error, words in (
        ({"activation": "swish"}, s24.ArgumentError, "activation must be one of None, 'relu'"),
        ({"gated": 2}, s24.ArgumentError, "gated must be one of True, False, got 2"),
        ({"gated": True}, s24.ShapeError, r"weight must have an even .* gated=True.*\(5, 15, 32\)"),
    ):
        with pytest.raises(error, match=words):
            st.grouped_linear(x, weight, offsets=offsets, **options)
    with pytest.raises(s24.ArgumentError, match="activation must be one of None, 'relu'"):
        st.SparseExperts(2, 8, 8, activation="swish")
    layers = [torch.nn.Linear(8, 8) for _ in range(3)]
    with pytest.raises(s24.ArgumentError, match=r"gates must be as many as layers.*2 gates for 3"):
        st.SparseExperts.from_dense(layers, gates=layers[:2])
    with pytest.raises(s24.ArgumentError, match="an option of SparseExperts must be one of"):
        st.SparseExperts.from_dense(layers, gated=True)


def test_compiled_code_keeps_the_packed_weight(device, compiles_anew):
    layer = st.SparseExperts(5, 32, 16, device=device, activation="silu", gated=True)
    x, offsets = torch.randn(sum(COUNTS), 32, device=device), offsets_of(COUNTS, device)
    fast = torch.compile(layer, fullgraph=True, backend="aot_eager")

    def assert_follows(module, packs):
        with torch.no_grad():
            y, count = packings(lambda: module(x, offsets))
            mask = layer.current_mask()
            want = finished(looped(x, layer.weight * mask, layer.bias, offsets), "silu", True)
        torch.testing.assert_close(y, want, **CLOSE)
        assert count == packs

    assert_follows(fast, 1)
    assert_follows(fast, 0)
    assert_follows(layer, 0)  # eager calls share it
    for change in (
        lambda: layer.weight.neg_(), lambda: layer.bias.add_(1),
        lambda: layer.set_mask(layer.current_mask().flip(1)), lambda: layer.eval(),
    ):  # fmt: skip
        with torch.no_grad():
            change()
        assert_follows(fast, 1)
        assert_follows(fast, 0)
    with torch.inference_mode():
        assert packings(lambda: fast(x, offsets))[1] == 0


def test_compiled_code_that_writes_the_weight_packs_it_anew(compiles_anew):
    layer = st.SparseExperts(3, 32, 16)
    x, offsets = torch.randn(6, 32), torch.tensor([0, 2, 2, 6])

    @torch.no_grad()
    def step(x):
        before = layer(x, offsets)
        layer.weight.mul_(2)
        return before, layer(x, offsets)

    fast = torch.compile(step, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        want = copy.deepcopy(layer)
        before, after = fast(x)
        with torch.no_grad():
            torch.testing.assert_close(before, want(x, offsets), **CLOSE)
            torch.testing.assert_close(after, layer(x, offsets), **CLOSE)
