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
