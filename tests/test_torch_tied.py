"""Sparse layers that share a weight or make it anew, and optimizers of other weights."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch.nn.utils import prune  # noqa: E402

import sparse24 as s24  # noqa: E402
from sparse24 import schedule as S  # noqa: E402
from sparse24 import torch as st  # noqa: E402
from sparse24._errors import ArgumentError  # noqa: E402


def tied(first, second):
    net = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 16))
    net[2].weight = net[0].weight
    return st.sparsify(net, {"0": first, "2": second})


@pytest.mark.parametrize("options", [{}, {"transposable": True}, {"soft": True}])
def test_layers_that_prune_a_weight_alike_are_made_dense(options):
    net, x = tied(options, options), torch.randn(4, 16)
    want = net(x)
    torch.testing.assert_close(st.desparsify(net)(x), want)


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ({}, {"transposable": True}, "layers '0' and '2' share a weight and prune it differently"),
        ({}, {"soft": True}, "share a weight and prune it differently"),
        ({"sparse": "masked"}, {}, "share a weight and prune it differently"),
        ({}, {"sparse": "activation"}, r"'0' is also '2\.weight', which would be pruned with it"),
        ({"sparse": "activation"}, {}, r"'2' is also '0\.weight', which would be pruned with it"),
    ],
)
def test_layers_that_prune_it_differently_are_not(first, second, words):
    net = tied(first, second)
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(ArgumentError, match=rf"{words}.*untie them first: model\.\d\.weight = "):
        st.desparsify(net)
    assert list(st.sparse_layers(net)) == ["0", "2"]
    assert all(torch.equal(x, before[name]) for name, x in net.state_dict().items())


def test_masks_and_scales_of_their_own_are_told_apart():
    masked, soft = tied({}, {}), tied({"soft": True}, {"soft": True})
    masked[0].set_mask(torch.from_numpy(s24.mask(-masked[0].weight.detach().numpy()[:, ::-1])))
    soft[0].scale.mul_(2)
    for net in (masked, soft):
        with pytest.raises(ArgumentError, match="share a weight and prune it differently"):
            st.desparsify(net)


def test_an_optimizer_of_other_weights_is_refused():
    net, scheduler = torch.nn.Sequential(st.SparseLinear(16, 16)), S.MaskScheduler(S.sr_ste())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net.load_state_dict(copy.deepcopy(net.state_dict()), assign=True)
    with pytest.raises(ArgumentError, match=r"and has none; make it anew.*\(assign=True\)"):
        st.update_masks(net, scheduler, optimizer)
    assert scheduler.state is None
    optimizer = torch.optim.SGD([net[0].bias, net[0].weight], lr=0.1)
    assert st.update_masks(net, scheduler, optimizer)["0"].any()


def test_weights_that_are_made_before_each_call_are_not_handed_on():
    """A dense layer would have no weight in its state, and one made by hooks no zeros."""
    parametrize = torch.nn.utils.parametrize
    folds = torch.nn.utils.parametrizations.weight_norm, "weight"
    hooks = lambda layer: prune.identity(layer, "weight"), "weight"
    bias = lambda layer: parametrize.register_parametrization(layer, "bias", Same()), "bias"
    for make, part in (folds, hooks, bias):
        net = torch.nn.Sequential(st.SparseLinear(8, 8), st.SparseLinear(8, 8))
        make(net[1])
        before = net[0].weight.detach().clone()
        with pytest.raises(ArgumentError, match=f"the {part} of layer '1' must be a parameter"):
            st.desparsify(net)
        assert torch.equal(net[0].weight, before)
        with pytest.raises(ArgumentError, match=f"the {part} of layer must be a parameter"):
            net[1].to_dense()
    dense = torch.nn.Linear(8, 8)
    parametrize.register_parametrization(dense, "bias", Same())
    with pytest.raises(ArgumentError, match=r"the bias of layer .* fold it first"):
        st.SparseLinear.from_dense(dense)
    parametrize.remove_parametrizations(dense, "bias")
    assert list(st.SparseLinear.from_dense(dense).state_dict()) == ["weight", "bias"]


class Same(torch.nn.Module):
    def forward(self, x):
        return x


class Tied(torch.nn.Module):
    """An output head that shares its weight with an embedding."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(16, 16)
        self.head = torch.nn.Linear(16, 16, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(torch.relu(self.embedding(tokens)))


@pytest.mark.parametrize("lifted", ["zero", "keep"])
def test_a_mask_that_is_lifted_leaves_a_tied_embedding_as_it_is(lifted):
    net, tokens = st.sparsify(Tied(), {"head": {}}), torch.arange(16)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    recipe = S.Recipe(S.dense_sparse_dense(0.5, start=0, stop=2), pattern=S.NM())
    scheduler = S.MaskScheduler(recipe)
    for step in range(3):
        optimizer.zero_grad()
        net(tokens).square().mean().backward()
        optimizer.step()
        before = net.embedding.weight.detach().clone()
        momentum = optimizer.state[net.head.weight]["momentum_buffer"].clone()
        st.update_masks(net, scheduler, optimizer, lifted=lifted)
        assert net.head.mask.all() == (step == 2)
        assert torch.equal(net.embedding.weight, before)
        assert torch.equal(optimizer.state[net.head.weight]["momentum_buffer"], momentum)


@pytest.mark.parametrize("grown", ["zero", "keep"])
def test_only_what_no_layer_used_comes_back_from_zero(grown):
    net = tied({}, {})
    first, second, third = (torch.rand(16, 16) for _ in range(3))
    scores = {"0": first, "2": second}
    recipe = S.Recipe(S.ConstantScheduler(0.5, every=1), S.GivenScores(scores), pattern=S.NM())
    scheduler = S.MaskScheduler(recipe)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    net(torch.randn(4, 16)).square().mean().backward()
    optimizer.step()
    st.update_masks(net, scheduler, optimizer, grown=grown)
    old = net[0].mask | net[2].mask
    optimizer.step()  # so that the weights that nobody uses have a momentum again
    weight = net[0].weight.detach().clone()
    momentum = optimizer.state[net[0].weight]["momentum_buffer"].clone()
    scores |= {"0": second, "2": third}
    st.update_masks(net, scheduler, optimizer, grown=grown)
    new = net[0].mask | net[2].mask
    assert (new & ~old).any()
    assert (old & ~new).any()
    come_back = weight.masked_fill(new & ~old, 0.0) if grown == "zero" else weight
    assert torch.equal(net[0].weight, come_back)
    kept = optimizer.state[net[0].weight]["momentum_buffer"]
    assert torch.equal(kept, momentum.masked_fill(new ^ old, 0.0))
