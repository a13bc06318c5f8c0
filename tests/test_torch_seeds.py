"""Seeds of sampled gradients: one for each layer of a model."""

from __future__ import annotations

import copy
import pickle

import pytest

torch = pytest.importorskip("torch")

from sparse24 import torch as st  # noqa: E402
from sparse24._errors import ArgumentError  # noqa: E402

SAMPLED = {"gradient": "ste_sampled"}


def model(layers: int = 3) -> torch.nn.Sequential:
    return torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(layers)])


def seeds(net: torch.nn.Module) -> dict[str, int]:
    return {name: layer.rule.seed for name, layer in st.sparse_layers(net).items()}


@pytest.mark.parametrize("gradient", ["24sparse", "ste_sampled"])
def test_layers_draw_numbers_of_their_own(gradient):
    net = st.sparsify(model(2), {"*": {"gradient": gradient}})
    with torch.no_grad():
        net[1].weight.copy_(net[0].weight)
    x, dy = torch.randn(32, 16), torch.randn(32, 16)
    first, second = (torch.autograd.grad(layer(x), layer.weight, dy)[0] for layer in net)
    assert not torch.equal(first, second)


def test_seeds_stay_from_run_to_run_and_where_layers_are_added():
    rules = {"*": {**SAMPLED, "seed": 7}}
    first, second = (seeds(st.sparsify(model(layers), rules)) for layers in (3, 5))
    assert first.items() <= second.items()
    assert len(set(second.values())) == 5
    assert all(0 <= seed < 2**63 for seed in second.values())
    others = seeds(st.sparsify(model(), {"*": SAMPLED}))
    assert not set(others.values()) & set(first.values())  # the given seed counts
    assert others["0"] == 1572226501982683013  # of every release: runs resume by it


def test_a_seed_given_by_a_full_name_is_the_layers_own():
    net = st.sparsify(model(), {"0": {**SAMPLED, "seed": 5}, "1": {**SAMPLED}, "*": SAMPLED})
    assert seeds(net)["0"] == 5
    assert seeds(net) == {**seeds(st.sparsify(model(), {"*": SAMPLED})), "0": 5}
    # Nothing is drawn with the straight-through gradient, and no seed made.
    assert seeds(st.sparsify(model(), {"*": {"seed": 4}})) == {"0": 4, "1": 4, "2": 4}
    for wrong in (-1, None):
        with pytest.raises(ArgumentError, match="seed must be a whole number from 0 on"):
            st.sparsify(model(), {"*": {**SAMPLED, "seed": wrong}})


def test_a_layer_draws_as_the_function_with_its_seed_and_clock():
    net = st.sparsify(model(1), {"*": SAMPLED})
    x, dy = torch.randn(32, 16), torch.randn(32, 16)
    weight, bias = net[0].weight, net[0].bias
    for clock in range(2):
        got = torch.autograd.grad(net(x), weight, dy)[0]
        options = {**SAMPLED, "seed": seeds(net)["0"], "clock": torch.tensor(clock)}
        want = torch.autograd.grad(st.linear(x, weight, bias, **options), weight, dy)[0]
        assert torch.equal(got, want)


def test_a_model_of_the_same_names_resumes():
    net, other = (st.sparsify(model(layers), {"*": SAMPLED}) for layers in (3, 4))
    x = torch.randn(32, 16)
    net(x).sum().backward()
    state = net.state_dict()
    assert state["0.clock"].shape == ()
    assert state["0.clock"] == 1
    other.load_state_dict(state, strict=False)
    copied = copy.deepcopy(net)
    dy = torch.randn(32, 16)
    draws = [torch.autograd.grad(m[2](x), m[2].weight, dy)[0] for m in (net, other, copied)]
    assert torch.equal(draws[0], draws[1])
    assert torch.equal(draws[0], draws[2])


def test_a_layer_made_on_the_meta_device_samples():
    with torch.device("meta"):
        layer = st.SparseLinear(16, 16, bias=False, seed=3, **SAMPLED)
    layer.to_empty(device="cpu")
    torch.nn.init.normal_(layer.weight)
    alike = st.SparseLinear.from_dense(layer.to_dense(), seed=3, **SAMPLED)
    x, dy = torch.randn(32, 16), torch.randn(32, 16)
    draws = [torch.autograd.grad(one(x), one.weight, dy)[0] for one in (layer, alike)]
    assert torch.equal(*draws)
    assert layer.state_dict()["clock"] == 1


def test_blocks_with_seeds_of_their_own_share_compiled_code():
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    net = st.sparsify(model(4), {"*": SAMPLED})
    plain = copy.deepcopy(net)
    counter = CompileCounterWithBackend("aot_eager")
    for layer in net:
        layer.compile(backend=counter)
    x = torch.randn(32, 16)
    for _ in range(2):
        got, want = (
            torch.autograd.grad(m(x).square().sum(), list(m.parameters())) for m in (net, plain)
        )
        for one, other in zip(got, want, strict=True):
            torch.testing.assert_close(one, other)
    assert counter.frame_count <= 2  # the first layer's input needs no gradient


def test_a_layer_that_was_pickled_with_a_clock_alone_draws_on_by_its_seed():
    layer = st.sparsify(model(1), {"0": {**SAMPLED, "seed": 5}})[0]
    x, dy = torch.randn(32, 16), torch.randn(32, 16)
    layer(x)
    older = copy.deepcopy(layer)
    older._clock = torch.tensor(1)  # as layers had it before it showed the seed
    older = pickle.loads(pickle.dumps(older))
    assert older.state_dict()["clock"] == 1
    want, got = (torch.autograd.grad(one(x), one.weight, dy)[0] for one in (layer, older))
    assert torch.equal(got, want)
    assert older.clock == 2
