"""Masks of schedulers in a model that trains: optimizer states, phases, ramps, delays."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from data_parallel import model  # noqa: E402
from torch_cases import CLOSE, masked_step  # noqa: E402

from sparse24 import schedule as S  # noqa: E402
from sparse24 import torch as st  # noqa: E402

F = torch.nn.functional


@pytest.mark.parametrize("pattern", [S.NM(), S.Transposable24()])
def test_masks_from_a_scheduler_and_the_optimizers_state(pattern):
    transposable = isinstance(pattern, S.Transposable24)
    net = st.sparsify(model(), {"*": {"transposable": transposable}})
    scheduler = S.MaskScheduler(S.Recipe(S.ConstantScheduler(0.5, every=2), pattern=pattern))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    x = torch.randn(16, 32)
    for step in range(4):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        before = net[0].mask.clone() if step else None
        masks = st.update_masks(net, scheduler, optimizer)
        assert torch.equal(net[0].mask, masks["0"])
        if step == 2:
            changed = before ^ net[0].mask
            assert changed.any()
            assert not optimizer.state[net[0].weight]["exp_avg"][changed].any()
        if step == 3:
            assert torch.equal(before, net[0].mask)
        optimizer.step()


def test_what_weights_that_come_back_start_from():
    net = st.sparsify(model(), {"*": {"gradient": "ste"}})
    phases = S.dense_sparse_dense(0.5, start=0, stop=2)
    scheduler = S.MaskScheduler(S.Recipe(phases, pattern=S.NM()))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    x = torch.randn(16, 32)
    for _ in range(2):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        st.update_masks(net, scheduler, optimizer)
        optimizer.step()
    pruned = ~net[0].mask
    assert net[0].weight[pruned].any()  # latent, and learning
    before = net(x)
    st.update_masks(net, scheduler, optimizer)
    assert net[0]._way == "dense"
    assert not net[0].weight[pruned].any()
    torch.testing.assert_close(net(x), before, **CLOSE)  # the model goes on as it was

    rigl = st.sparsify(model(), {"*": {"sparse": "masked"}})
    growing = S.MaskScheduler(S.rigl(0.5, total_steps=100, every=1))
    for _ in range(2):
        rigl.zero_grad()
        rigl(x).square().mean().backward()
        old = None if rigl[0].mask is None else rigl[0].mask.clone()
        st.update_masks(rigl, growing, grown="zero")
    grown = rigl[0].mask & ~old
    assert grown.any()
    assert not rigl[0].weight[grown].any()


def test_masks_from_beside_the_training():
    nets = [st.sparsify(model(), {"*": {"transposable": True}}) for _ in range(2)]
    recipe = S.Recipe(S.ConstantScheduler(0.5, every=2), pattern=S.Transposable24())
    weights = {n: layer.weight for n, layer in st.sparse_layers(nets[0]).items()}
    x = torch.randn(16, 32)
    with (
        S.AsyncScheduler(recipe, weights, delay=1, telemetry=S.Telemetry()) as beside,
        S.AsyncScheduler(recipe, weights, delay=1, background=False) as within,
    ):
        for _ in range(5):
            for net, scheduler in zip(nets, (beside, within), strict=True):
                masked_step(net, x, scheduler)
        assert beside.telemetry.column("step", "0") == [0, 2]
    for a, b in zip(nets[0].state_dict().values(), nets[1].state_dict().values(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("transposable", [False, True])
def test_phases_and_ramps_choose_how_to_multiply(transposable):
    net = st.sparsify(model(), {"*": {"transposable": transposable, "gradient": "24dense"}})
    phases = S.dense_sparse_dense(0.5, start=1, stop=3)
    whole = S.Transposable24() if transposable else S.Elastic((4, 8), least=2)
    ramp = S.LinearScheduler(0.5, stop=2)
    rules = {
        "0": S.Recipe(phases, pattern=S.Transposable24()),
        "2": S.Recipe(phases if transposable else ramp, pattern=whole),
        "*": S.Recipe(ramp),
    }
    scheduler, x, ways = S.MaskScheduler(rules), torch.randn(16, 32), []
    for _ in range(4):
        net.zero_grad()
        masks = st.update_masks(net, scheduler)
        ways.append([layer._way for layer in st.sparse_layers(net).values()])
        y = net(x)
        y.square().sum().backward()
        hidden = F.linear(x, net[0].weight * masks["0"], net[0].bias).relu()
        hidden = F.linear(hidden, net[2].weight * masks["2"], net[2].bias)
        want = F.linear(hidden, net[3].weight * masks["3"], net[3].bias)
        torch.testing.assert_close(y, want, **CLOSE)
        assert not net[2].weight.grad[~masks["2"]].any()
    ramped = ["dense", "masked", "weight", "weight"]
    phased = ["dense", "weight", "weight", "dense"]
    assert [way[0] for way in ways] == phased
    assert [way[1] for way in ways] == (phased if transposable else ramped)
    assert [way[2] for way in ways] == ["dense", "masked", "masked", "masked"]
    fresh = st.sparsify(model(), {"*": {}})
    fresh.load_state_dict(net.state_dict())
    torch.testing.assert_close(fresh(x), net(x), **CLOSE)


def test_unstructured_masks_multiply_densely():
    net = st.sparsify(model(), {"*": {"sparse": "masked", "gradient": "24dense"}})
    scheduler = S.DynamicScheduler(0.3, S.CosineScheduler(0.6, stop=3))
    x = torch.randn(16, 32)
    for _ in range(4):
        net.zero_grad()
        net(x).square().mean().backward()
        masks = st.update_masks(net, scheduler)
    zeros, total = (
        sum(int(f(m)) for m in masks.values()) for f in (lambda m: (~m).sum(), torch.numel)
    )
    assert zeros == int(0.6 * total)
    net.zero_grad()
    net(x).sum().backward()
    assert not net[0].weight.grad[~masks["0"]].any()
