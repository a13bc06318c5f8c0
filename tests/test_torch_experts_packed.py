"""The packed weight of a layer of experts: when it is kept, and when packed anew."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from experts_cases import assert_follows, layer_and_input  # noqa: E402
from test_torch_experts import COUNTS, looped, offsets_of  # noqa: E402
from torch_cases import CLOSE, gradients, packings  # noqa: E402

import sparse24 as s24  # noqa: E402
from sparse24 import _arrays  # noqa: E402
from sparse24 import torch as st  # noqa: E402

WRITES = {
    "the weight": lambda layer: layer.weight.neg_(),
    "the bias": lambda layer: layer.bias.add_(1),
    "a mask": lambda layer: layer.set_mask(layer.current_mask().flip(1)),
    "another weight": lambda layer: setattr(layer, "weight", torch.nn.Parameter(-layer.weight)),
    "what eval finds": lambda layer: (layer.weight.data.neg_(), layer.eval()),
    "a state": lambda layer: layer.load_state_dict(
        {name: -value for name, value in layer.state_dict().items()}
    ),
}


@pytest.mark.parametrize("what", WRITES)
@pytest.mark.parametrize("transposable", [False, True])
def test_the_packed_weight_is_kept_until_something_changes(device, transposable, what):
    layer, x, offsets = layer_and_input(device, transposable=transposable)
    assert_follows(layer, x, offsets, packs=1)
    for tokens in (x, x.detach().clone(), 2 * x):
        assert_follows(layer, tokens, offsets, packs=0)
    others = offsets_of(COUNTS[::-1])  # on the host
    assert_follows(layer, x, others, packs=0)
    with torch.no_grad():
        WRITES[what](layer)
    assert_follows(layer, x, offsets, packs=1)
    assert_follows(layer, x, offsets, packs=0)


def test_a_step_of_an_optimizer_is_seen(device):
    layer, x, offsets = layer_and_input(device)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1, fused=True)
    for _ in range(3):
        assert_follows(layer, x, offsets, packs=1)
        layer(x, offsets).square().sum().backward()
        optimizer.step()


def test_autocast_has_its_own_packed_weight(device):
    layer, x, offsets = layer_and_input(device)
    with torch.no_grad():
        plain = layer(x, offsets)
        with torch.autocast(device, torch.bfloat16):
            first = layer(x, offsets)
            again, count = packings(lambda: layer(x, offsets))
        assert count == 0
        assert first.dtype is torch.bfloat16
        assert torch.equal(first, again)
        mask = s24.mask(layer.weight.bfloat16())
        want = looped(x, layer.weight * mask, layer.bias, offsets)
        torch.testing.assert_close(first.float(), want, rtol=3e-2, atol=3e-2)
        assert torch.equal(layer(x, offsets), plain)


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("way", ["weight", "masked", "dense"])
def test_it_compiles_without_graph_breaks(device, way, learns, compiles_anew):
    layer, x, offsets = layer_and_input(device)
    if way != "weight":
        layer.set_mask(torch.rand_like(layer.weight) < (0.5 if way == "masked" else 2.0))
    assert layer._way == way
    fast = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        with torch.set_grad_enabled(learns):
            y, want = fast(x, offsets), layer(x, offsets)
        torch.testing.assert_close(y, want, **CLOSE)
        if learns:
            tensors = x, *layer.parameters()
            for a, b in zip(gradients(y, *tensors), gradients(want, *tensors), strict=True):
                torch.testing.assert_close(a, b, **CLOSE)
        with torch.no_grad():
            layer.weight.neg_()


def test_a_graph_packs_at_its_replays_what_is_not_kept(monkeypatch):
    layer, x, offsets = layer_and_input()
    monkeypatch.setattr(_arrays, "captures_work_on", lambda x: True)
    assert_follows(layer, x, offsets, packs=1)
    assert layer._packed is None
    monkeypatch.undo()
    assert_follows(layer, x, offsets, packs=1)
    monkeypatch.setattr(_arrays, "captures_work_on", lambda x: True)
    assert_follows(layer, x, offsets, packs=0)
    assert [memory[0] for memory in layer._captured] == [layer._packed.weight]


@pytest.mark.gpu
@pytest.mark.parametrize("kept", [False, True])
def test_a_captured_graph_of_inference_reads_offsets_anew(kept):
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("one launch for all experts needs Hopper")
    layer = st.SparseExperts(4, 256, 128, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(64, 256, device="cuda", dtype=torch.bfloat16)
    offsets = offsets_of((16, 0, 40, 8), "cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.no_grad(), torch.cuda.stream(side):
        layer(x, offsets)
    torch.cuda.current_stream().wait_stream(side)
    if not kept:
        layer.eval()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        y = layer(x, offsets)
    offsets.copy_(offsets_of((0, 30, 30, 4)))
    graph.replay()
    with torch.no_grad():
        want = looped(x, layer.weight * layer.current_mask(), layer.bias, offsets)
    torch.testing.assert_close(y, want, rtol=2e-2, atol=2e-2)
