"""Sparse layers in models: replacing, saving, resuming, many processes."""

from __future__ import annotations

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import data_parallel  # noqa: E402
import processes  # noqa: E402
from data_parallel import model  # noqa: E402
from torch_cases import CLOSE, gradients, layer_and_input  # noqa: E402

import sparse24 as s24  # noqa: E402
from sparse24 import schedule as S  # noqa: E402
from sparse24 import torch as st  # noqa: E402
from sparse24._errors import ArgumentError, DTypeError  # noqa: E402


def test_sparsify_and_back():
    net = model()
    weight = net[0].weight
    st.sparsify(net, {"3": None, "0": {"transposable": True}, "*": {}})
    assert [type(m).__name__ for m in net] == ["SparseLinear", "ReLU", "SparseLinear", "Linear"]
    assert net[0].weight is weight
    x = torch.randn(5, 32)
    want = net(x)
    st.desparsify(net)
    assert type(net[0]) is torch.nn.Linear
    torch.testing.assert_close(net(x), want, **CLOSE)
    assert s24.is_24(net[0].weight.detach())
    with pytest.raises(ArgumentError, match=r"no linear layer is named \['head'\]"):
        st.sparsify(net, {"head": {}})
    with pytest.raises(ArgumentError, match="gradient must be one of"):
        st.sparsify(net, {"0": {"gradient": "dense"}})
    with pytest.raises(ArgumentError, match=r"an option of SparseLinear must.*got 'tiles'"):
        st.sparsify(net, {"0": {}, "2": {"tiles": True}})
    with pytest.raises(ArgumentError, match=r"rules must map names to options.*got \['\*'\]"):
        st.sparsify(net, ["*"])
    with pytest.raises(ArgumentError, match=r"no linear layer is named \['head'\]"):
        st.sparsify(net, {"0": {}, "head": {}})
    assert not st.sparse_layers(net)  # what is refused changes nothing
    with pytest.raises(ArgumentError, match=r"must have a torch.nn.Linear.*got a Conv2d without"):
        st.sparsify(torch.nn.Conv2d(4, 4, 3), {"*": {}})
    with pytest.raises(DTypeError, match=r"got Linear; pass a tensor of it, such as its \.weight"):
        st.to_sparse_semi_structured(net[0])


def test_a_layer_in_two_places_is_one_layer():
    layer, x = layer_and_input(m=32, k=32)
    net = st.sparsify(torch.nn.Sequential(layer, torch.nn.ReLU(), layer), {"0": {}})
    assert net[0] is net[2]
    assert list(st.sparse_layers(net)) == ["0"]
    want = net(x)
    st.desparsify(net)
    assert net[0] is net[2]
    torch.testing.assert_close(net(x), want, **CLOSE)


def test_soft_layers_that_share_a_weight_are_made_dense_once():
    layers = [torch.nn.Linear(32, 32) for _ in range(2)]
    layers[1].weight = layers[0].weight
    net, x = st.sparsify(torch.nn.Sequential(*layers), {"*": {"soft": True}}), torch.randn(5, 32)
    want = net(x)
    torch.testing.assert_close(st.desparsify(net)(x), want, **CLOSE)
    assert net[0].weight is net[1].weight


def test_state_dict_carries_masks():
    net = st.sparsify(model(), {"*": {}})
    net[0].set_mask(s24.mask(torch.rand(64, 32)))
    saved = {key: value.clone() for key, value in net.state_dict().items()}
    fresh = st.sparsify(model(), {"*": {}})
    fresh.load_state_dict(saved)
    assert torch.equal(fresh[0].mask, net[0].mask)
    assert fresh[2].mask is None
    x = torch.randn(5, 32)
    torch.testing.assert_close(fresh(x), net(x), rtol=0, atol=0)
    copied = copy.deepcopy(net)
    torch.testing.assert_close(copied(x), net(x), rtol=0, atol=0)


@pytest.mark.parametrize("cut", [1, 3, 4, 7])
def test_training_resumes_bit_for_bit(cut):
    """Dense, 2:4 with sampled gradients, dense again; stopped and reloaded in between."""

    def parts():
        rule = {"transposable": True, "gradient": "24sparse", "decay": 1e-3}
        net = st.sparsify(model(), {"*": rule})
        phases = S.dense_sparse_dense(0.5, 1, 6, every=2)
        scheduler = S.MaskScheduler(S.Recipe(phases, pattern=S.Transposable24()), seed=3)
        return net, torch.optim.AdamW(net.parameters(), lr=1e-2), scheduler

    def train(net, optimizer, scheduler, steps):
        for t in steps:
            optimizer.zero_grad()
            batch = torch.randn(16, 32, generator=torch.Generator().manual_seed(t))
            net(batch).square().mean().backward()
            st.update_masks(net, scheduler, optimizer)
            optimizer.step()

    through, first, second = parts(), parts(), parts()
    train(*through, range(8))
    train(*first, range(cut))
    for old, new in zip(first, second, strict=True):
        new.load_state_dict(copy.deepcopy(old.state_dict()))
    train(*second, range(cut, 8))
    ends = [net.state_dict() for net, _, _ in (through, second)]
    assert ends[0]["0.clock"] > 0
    for key, value in ends[0].items():
        assert torch.equal(ends[1][key], value)


def test_layers_that_sample_load_dense_checkpoints():
    net = st.sparsify(model(), {"*": {"gradient": "24sparse"}})
    net.load_state_dict(model().state_dict())
    with pytest.raises(RuntimeError, match=r"Unexpected key.*0\.clock"):
        model().load_state_dict(net.state_dict())


def test_checkpointing_gives_the_same_gradients():
    from torch.utils.checkpoint import checkpoint

    net = st.sparsify(model(), {"*": {"transposable": True, "gradient": "24dense"}})
    x = torch.randn(8, 32, requires_grad=True)
    want = gradients(net(x), x, *net.parameters())
    got = gradients(checkpoint(net, x, use_reentrant=False), x, *net.parameters())
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_two_data_parallel_processes_equal_one(tmp_path):
    processes.run(data_parallel.run, (2, tmp_path), 2)
    states = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    alone = data_parallel.train(0, 1)
    for first, second, single in zip(*states, alone, strict=True):
        for key, value in single.items():
            np.testing.assert_array_equal(first[key], second[key])
            np.testing.assert_allclose(first[key], value, rtol=1e-4, atol=1e-5)


def test_other_kinds_of_linear_layers_are_named():
    attention = torch.nn.MultiheadAttention(16, 2)  # reads the weight of its layer by itself
    with pytest.raises(ArgumentError, match="NonDynamicallyQuantizableLinear stay as they are"):
        st.sparsify(attention, {"*": {}})
    net = st.sparsify(model(), {"*": {}})
    with pytest.raises(ArgumentError, match=r"no linear layer is named.*SparseLinear stay as"):
        st.sparsify(net, {"0": {}})


def test_a_weight_that_a_dense_layer_shares_is_not_pruned():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = torch.nn.Embedding(32, 64), torch.nn.Linear(64, 32)
            self.other = torch.nn.Linear(64, 64)
            self.head.weight = self.embedding.weight

        def forward(self, tokens):
            return self.head(self.other(self.embedding(tokens)))

    model, tokens = st.sparsify(Tied(), {"*": {}}), torch.arange(32)
    assert model.head.weight is model.embedding.weight
    before, want = copy.deepcopy(model.state_dict()), model(tokens)
    with pytest.raises(ArgumentError, match=r"'head' is also 'embedding.weight'.* untie them"):
        st.desparsify(model)
    assert list(st.sparse_layers(model)) == ["head", "other"]
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    model.head.weight = torch.nn.Parameter(model.head.weight.detach().clone())
    torch.testing.assert_close(st.desparsify(model)(tokens), want)
    assert s24.is_24(model.head.weight)
    assert not s24.is_24(model.embedding.weight)
