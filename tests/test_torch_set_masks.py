"""A scheduler's present masks, set before training begins, and what masks leave of weights and
optimizers."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from data_parallel import model  # noqa: E402
from torch.optim.swa_utils import AveragedModel  # noqa: E402

from sparse24 import schedule as S  # noqa: E402
from sparse24 import torch as st  # noqa: E402
from sparse24._errors import ArgumentError  # noqa: E402

RAMP = S.Recipe(S.CubicScheduler(0.5, start=1, stop=9), pattern=S.Elastic((4, 16), least=2))


@pytest.mark.parametrize("recipe", [S.Recipe(S.OneShot(0.5, at=2), pattern=S.NM()), RAMP])
@pytest.mark.parametrize("late", [False, True])
def test_a_recipe_that_begins_densely_is_dense_from_the_first_pass(recipe, late):
    net, x = model(), torch.randn(5, 32)
    dense = copy.deepcopy(net)
    weights = {n: m.weight for n, m in st.sparse_layers(st.sparsify(net, {"*": {}})).items()}
    scheduler = S.AsyncScheduler(recipe, weights) if late else S.MaskScheduler(recipe)
    masks = st.set_masks(net, scheduler)
    assert all(mask.all() for mask in masks.values())
    assert late or scheduler.state is None  # it has made no step
    torch.testing.assert_close(net(x), dense(x))
    st.update_masks(net, scheduler)
    assert scheduler.state.step == 1
    torch.testing.assert_close(net(x), dense(x))


def test_set_masks_sets_those_that_a_scheduler_has():
    net, scheduler = st.sparsify(model(), {"*": {}}), S.MaskScheduler(S.sr_ste())
    masks = st.update_masks(net, scheduler)
    again, later = st.sparsify(model(), {"*": {}}), S.MaskScheduler(S.sr_ste())
    later.load_state_dict(scheduler.state_dict())
    for other in (scheduler, later):  # one that goes on, and one that waits for its layers
        got = st.set_masks(again, other)
        for name, layer in st.sparse_layers(again).items():
            assert torch.equal(layer.mask, masks[name])
            assert torch.equal(got[name], masks[name])
            assert not layer.masked
            layer.set_mask(None)
    assert (later.state, scheduler.state.step) == (None, 1)
    with pytest.raises(ArgumentError, match="scheduler must be a scheduler of sparse24"):
        st.set_masks(again, S.sr_ste())


def test_an_average_of_a_model_with_masks_has_them():
    net, x = st.sparsify(model(), {"*": {}}), torch.randn(5, 32)
    scheduler = S.MaskScheduler(S.rigl(0.5, total_steps=10))
    st.set_masks(net, scheduler)
    average = AveragedModel(net)
    st.update_masks(net, scheduler)
    average.update_parameters(net)
    for name, layer in st.sparse_layers(net).items():
        assert torch.equal(average.module.get_submodule(name).mask, layer.mask)
    with torch.no_grad():
        torch.testing.assert_close(average(x), net(x))


@pytest.mark.parametrize("kept", [2, 3])  # as a sparse product, and densely with the mask
@pytest.mark.parametrize("gradient", ["ste", "24dense"])
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_pruned_elements_are_zeros_whatever_they_were(kept, gradient, bad):
    layer = st.SparseLinear(4, 1, bias=False, gradient=gradient)
    layer.set_mask(torch.arange(4)[None] < kept)
    layer.weight.data = torch.tensor([[1.0, 2, 3, bad]])
    x = torch.ones(1, 4)
    y = layer(x)
    y.sum().backward()
    with torch.no_grad():
        assert y.item() == layer(x).item() == kept * (kept + 1) / 2
    assert layer.weight.grad[:, :kept].tolist() == x[:, :kept].tolist()


def test_a_compiled_step_of_an_optimizer_outlives_a_change_of_masks():
    net, compiled = st.sparsify(model(), {"*": {}}), []
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    scheduler = S.MaskScheduler(S.Recipe(S.ConstantScheduler(0.5, every=1), S.RandomScores()))

    def count(graph, _):
        compiled.append(graph)
        return graph.forward

    step = torch.compile(optimizer.step, backend=count)
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.ones(5, 32)).sum().backward()
        slots = optimizer.state[net[0].weight]
        before, old = dict(slots), net[0].mask
        old = None if old is None else old.clone()
        masks = st.update_masks(net, scheduler, optimizer)
        if old is not None:
            changed = masks["0"] ^ old
            assert changed.any()
            assert not slots["exp_avg"][changed].any()
        assert optimizer.state[net[0].weight] is slots
        assert all(slots[key] is value for key, value in before.items())
        step()
    assert len(compiled) == 1


@pytest.fixture
def alone(tmp_path):
    torch.distributed.init_process_group("gloo", (tmp_path / "a").as_uri(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_the_state_of_an_optimizer_split_among_ranks_follows_the_masks(alone):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    net = st.sparsify(model(), {"*": {}})
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=0.1)
    scheduler = S.MaskScheduler(S.Recipe(S.ConstantScheduler(0.5, every=1), S.RandomScores()))
    net(torch.ones(5, 32)).sum().backward()
    old = st.update_masks(net, scheduler, optimizer)["0"].clone()
    optimizer.step()
    momentum = optimizer.optim.state[net[0].weight]["exp_avg"]
    moved = momentum != 0
    changed = st.update_masks(net, scheduler, optimizer)["0"] ^ old
    assert (changed & moved).any()
    assert (momentum != 0).equal(moved & ~changed)


def test_the_states_of_several_optimizers_follow_the_masks():
    net = st.sparsify(
        torch.nn.Sequential(torch.nn.Linear(32, 16), torch.nn.Linear(16, 32)), {"*": {}}
    )
    optimizers = [torch.optim.Adam(layer.parameters(), lr=0.1) for layer in net]
    scheduler = S.MaskScheduler(S.Recipe(S.ConstantScheduler(0.5, every=1), S.RandomScores()))
    net(torch.randn(5, 32)).sum().backward()
    old = {name: mask.clone() for name, mask in st.update_masks(net, scheduler, optimizers).items()}
    for optimizer in optimizers:
        optimizer.step()
    masks = st.update_masks(net, scheduler, tuple(optimizers))
    for name, layer, optimizer in zip("01", net, optimizers, strict=True):
        changed = masks[name] ^ old[name]
        assert changed.any()
        assert not optimizer.state[layer.weight]["exp_avg"][changed].any()
    with pytest.raises(ArgumentError, match="none; make it anew"):
        st.update_masks(net, scheduler, [torch.optim.SGD(model().parameters(), lr=0.1)])
    with pytest.raises(ArgumentError, match=r"torch\.optim, got 'adam'"):
        st.update_masks(net, scheduler, [*optimizers, "adam"])


@pytest.mark.parametrize("way", ["weight", "masked"])
def test_replicas_multiply_by_copies_of_masks_as_the_layer_does(monkeypatch, way):
    """What torch.nn.DataParallel does in each pass, on devices of which the CPU has one."""
    layer, x = st.SparseLinear(16, 8), torch.randn(3, 16)
    layer.set_mask(layer.current_mask(), way=way)
    monkeypatch.setattr("sparse24._torch.pruned.way_of", pytest.fail)  # which waits for a device
    replica = layer._replicate_for_data_parallel()
    for name in ("weight", "bias", "mask"):
        setattr(replica, name, getattr(layer, name).detach().clone())
    assert replica.masked == (way == "masked")
    assert torch.equal(replica(x), layer(x))
