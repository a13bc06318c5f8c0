"""When compiled code without gradients packs a layer's weight anew, and when it does not."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from compiled_cases import K, assert_follows, compiled, layer_and_x, other_state  # noqa: E402
from torch_cases import CLOSE, packings  # noqa: E402

from sparse24 import torch as st  # noqa: E402

pytestmark = pytest.mark.usefixtures("compiles_anew")

KINDS = {
    "plain": {},
    "without bias": {"bias": False},
    "by tiles": {"transposable": True},
    "soft": {"soft": True},
    "masked": {},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_a_second_call_packs_nothing(device, backend, kind):
    layer, x = layer_and_x(device, **KINDS[kind])
    if kind == "masked":
        layer.set_mask(layer.current_mask())
    fast = compiled(layer, backend)
    assert_follows(fast, layer, x, packs=1)
    assert_follows(fast, layer, 2 * x, packs=0)
    with torch.inference_mode():
        assert packings(lambda: fast(x))[1] == 0


def test_eager_and_compiled_calls_share_a_packed_weight(device):
    layer, x = layer_and_x(device)
    fast = compiled(layer)
    assert_follows(layer, layer, x, packs=1)
    assert_follows(fast, layer, x, packs=0)
    layer.eval()
    assert_follows(fast, layer, x, packs=1)
    assert_follows(layer, layer, x, packs=0)


WRITES = {
    "the weight": lambda layer: layer.weight.neg_(),
    "a row of the weight": lambda layer: layer.weight[3].copy_(layer.weight[4]),
    "the bias": lambda layer: layer.bias.add_(1),
    "the mask": lambda layer: layer.set_mask(layer.mask.flip(0)),
    "the mask's own memory": lambda layer: layer.mask.copy_(layer.mask.flip(0)),
    "no mask": lambda layer: layer.set_mask(None),
    "another weight": lambda layer: setattr(layer, "weight", torch.nn.Parameter(-layer.weight)),
    "a state": lambda layer: layer.load_state_dict(other_state(layer)),
    "the type and back": lambda layer: layer.half().float(),
    "what eval finds": lambda layer: (layer.weight.data.neg_(), layer.eval()),
    "what train finds": lambda layer: (layer.weight.data.neg_(), layer.train()),
}


@pytest.mark.parametrize("what", WRITES)
def test_what_is_written_is_seen(device, what):
    layer, x = layer_and_x(device)
    layer.set_mask(layer.current_mask())
    fast = compiled(layer)
    for _ in range(2):
        assert_follows(fast, layer, x)
    with torch.no_grad():
        WRITES[what](layer)
    assert_follows(fast, layer, x, packs=1)
    assert_follows(fast, layer, x, packs=0)


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
@pytest.mark.parametrize("by", ["fused", "foreach"])
@pytest.mark.parametrize("steps", ["eager", "aot_eager"])
def test_a_step_of_an_optimizer_is_seen(kind, by, steps):
    layer, x = layer_and_x()
    optimizer = getattr(torch.optim, kind)(layer.parameters(), lr=0.5, **{by: True})
    step = torch.compile(optimizer.step, backend=steps)
    fast = compiled(layer)
    for _ in range(2):
        fast(x).square().sum().backward()
        assert_follows(fast, layer, x)
        step()
        assert_follows(fast, layer, x, packs=1)


def test_eager_training_by_writes_that_are_not_counted_is_seen():
    layer, x = layer_and_x()
    fast = compiled(layer)
    assert_follows(fast, layer, x)
    layer(x).sum().backward()
    layer.weight.data.add_(layer.weight.grad)
    assert_follows(fast, layer, x, packs=1)


def test_autocast_has_its_own_packed_weight(device):
    layer, x = layer_and_x(device)
    fast = compiled(layer)
    with torch.no_grad():
        for _ in range(2):
            with torch.autocast(device, torch.bfloat16):
                for packs in (1, 0):
                    y, count = packings(lambda: fast(x))
                    assert (y.dtype, count) == (torch.bfloat16, packs)
                torch.testing.assert_close(y, layer(x))
            assert_follows(fast, layer, x, packs=1)


def test_any_number_of_tokens_is_one_graph():
    layer = layer_and_x()[0]
    fast = compiled(layer, dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for tokens in (3, 5, 7):
            assert_follows(fast, layer, torch.randn(tokens, K), packs=int(tokens == 3))


def test_layers_of_a_shape_are_one_graph_with_their_own_weights(device):
    layers = [layer_and_x(device)[0] for _ in range(3)]
    x = torch.randn(5, K, device=device)
    for layer in layers:
        layer.compile(fullgraph=True, backend="aot_eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for packs in (1, 0):
            for layer in layers:
                assert_follows(layer, layer, x, packs)


def test_layers_in_a_model_have_their_own_weights(device):
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(K, K, device=device) for _ in range(2)))
    x = torch.randn(5, K, device=device)
    fast = compiled(st.sparsify(model, {"*": {}}))
    with torch.no_grad():
        for packs in (2, 0):
            y, count = packings(lambda: fast(x))
            assert count == packs
            torch.testing.assert_close(y, model(x), **CLOSE)
        model[1].weight.neg_()
        y, count = packings(lambda: fast(x))
        assert count == 1
        torch.testing.assert_close(y, model(x), **CLOSE)
