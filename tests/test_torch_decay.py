"""SR-STE's decay: once in each backward pass by the layer, or once a step by hand."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch_cases import CLOSE  # noqa: E402

from sparse24 import schedule as S  # noqa: E402
from sparse24 import torch as st  # noqa: E402

DECAY = 0.1


def net_and_batch(**options):
    torch.manual_seed(0)
    shared = torch.nn.Linear(16, 16)
    net = torch.nn.Sequential(torch.nn.Linear(16, 16), shared, torch.nn.ReLU(), shared)
    return st.sparsify(net, {"*": options}), torch.randn(8, 16)


def add_decay(net):
    """As the page of training recipes has it."""
    with torch.no_grad():
        for layer in st.sparse_layers(net).values():
            layer.weight.grad = S.masked_decay_gradient(
                layer.weight, layer.weight.grad, layer.current_mask(), decay=DECAY
            )


def weight_gradients(net):
    return [layer.weight.grad for layer in st.sparse_layers(net).values()]


def decayed(**options):
    """The gradients of one whole batch, with the decay of every weight once."""
    net, x = net_and_batch(**options)
    net(x).square().sum().backward()
    layers = st.sparse_layers(net).values()
    return [x.weight.grad + DECAY * x.weight.detach() * ~x.current_mask() for x in layers]


@pytest.mark.parametrize("transposable", [False, True])
@pytest.mark.parametrize("parts", [1, 4])
def test_a_decay_that_is_added_by_hand_counts_once_a_step(parts, transposable):
    net, x = net_and_batch(transposable=transposable)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    for part in x.chunk(parts):
        scaler.scale(net(part).square().sum()).backward()
    scaler.unscale_(optimizer)
    add_decay(net)
    want = decayed(transposable=transposable)
    for got, expected in zip(weight_gradients(net), want, strict=True):
        torch.testing.assert_close(got, expected, **CLOSE)
    before = net[0].weight.detach().clone()
    scaler.step(optimizer)
    torch.testing.assert_close(net[0].weight, before - 0.1 * want[0], **CLOSE)


def test_experts_take_their_decay_by_hand_too():
    experts = [st.SparseExperts(2, 8, 4, decay=decay) for decay in (DECAY, 0.0)]
    experts[1].load_state_dict(experts[0].state_dict())
    for layer in experts:
        layer(torch.ones(3, 8), [0, 1, 3]).sum().backward()
    net = torch.nn.ModuleList(experts[1:])
    add_decay(net)
    torch.testing.assert_close(experts[1].weight.grad, experts[0].weight.grad, **CLOSE)


def test_the_decay_of_a_layer_counts_in_each_backward_pass():
    layer, x = st.SparseLinear(16, 16, decay=DECAY), torch.zeros(4, 16)
    for _ in range(3):
        layer(x).sum().backward()
    want = 3 * DECAY * layer.weight * ~layer.current_mask()
    torch.testing.assert_close(layer.weight.grad, want.detach(), **CLOSE)
