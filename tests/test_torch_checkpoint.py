"""Which sample a pass draws, also where `torch.utils.checkpoint` computes it anew."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from data_parallel import model  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch_cases import CLOSE  # noqa: E402

from sparse24 import torch as st  # noqa: E402

RULES = {"gradient": "ste_sampled", "seed": 3}


def drawn(layer, x, dy, clock):
    """The weight's gradient by one sample."""
    weight = layer.weight.detach().requires_grad_()
    y = st.linear(x, weight, layer.bias, clock=torch.tensor(clock), **RULES)
    return torch.autograd.grad(y, weight, dy)[0]


@pytest.mark.parametrize(("reentrant", "used", "count"), [(False, (3, 2), 4), (True, (1, 0), 2)])
def test_a_recomputed_pass_draws_a_sample_of_its_own(reentrant, used, count):
    """Forward draws nothing, and each backward reads the sample of the pass it belongs to."""
    layer = st.SparseLinear(32, 16, **RULES)
    batches = [torch.randn(12, 32, requires_grad=True) for _ in range(2)]
    dy = torch.randn(12, 16)
    passes = [checkpoint(layer, x, use_reentrant=reentrant) for x in batches]
    for y, x, clock in reversed(list(zip(passes, batches, used, strict=True))):
        torch.testing.assert_close(y, st.linear(x, layer.weight, layer.bias), **CLOSE)
        layer.zero_grad()
        y.backward(dy)
        assert torch.equal(layer.weight.grad, drawn(layer, x, dy, clock))
    assert layer.state_dict()["clock"] == count


def test_a_layer_that_learns_after_eval_draws_new_samples():
    """One sample for all steps would be a bias that no number of steps averages out."""
    layer = st.SparseLinear(32, 16, **RULES).eval()
    x, dy = torch.randn(12, 32), torch.randn(12, 16)
    for clock in range(3):
        layer.zero_grad()
        layer(x).backward(dy)
        assert torch.equal(layer.weight.grad, drawn(layer, x, dy, clock))
    assert layer.clock == 3


@pytest.mark.parametrize("trains", [True, False])
def test_exported_code_draws_none(trains):
    layer, x = st.SparseLinear(32, 16, **RULES).train(trains), torch.randn(12, 32)
    exported = torch.export.export(layer, (x,)).module()
    torch.testing.assert_close(exported(x), layer(x), **CLOSE)
    assert layer.clock == 1  # that of its own pass


@pytest.mark.parametrize("reentrant", [False, True])
def test_training_that_recomputes_resumes_bit_for_bit(reentrant):
    def parts():
        net = st.sparsify(model(), {"*": RULES | {"transposable": True}})
        return net, torch.optim.AdamW(net.parameters(), lr=1e-2)

    def train(net, optimizer, steps):
        for t in steps:
            optimizer.zero_grad()
            generator = torch.Generator().manual_seed(t)
            batch = torch.randn(16, 32, generator=generator, requires_grad=True)
            checkpoint(net, batch, use_reentrant=reentrant).square().mean().backward()
            optimizer.step()

    through, first, second = parts(), parts(), parts()
    train(*through, range(6))
    train(*first, range(3))
    for old, new in zip(first, second, strict=True):
        new.load_state_dict(copy.deepcopy(old.state_dict()))
    train(*second, range(3, 6))
    ends = [net.state_dict() for net, _ in (through, second)]
    assert all(torch.equal(ends[1][key], value) for key, value in ends[0].items())
