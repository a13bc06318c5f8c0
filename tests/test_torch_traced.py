"""Which compiled graphs keep packed weights: not those that may write them, or are exported."""

from __future__ import annotations

import copy
import gc

import pytest

torch = pytest.importorskip("torch")

from torch_cases import CLOSE, packings  # noqa: E402

from sparse24 import torch as st  # noqa: E402
from sparse24._torch import traced as torch_traced  # noqa: E402

pytestmark = pytest.mark.usefixtures("compiles_anew")
K, M = 32, 16


def layer_and_x():
    layer = st.SparseLinear(K, M)
    return layer.eval(), torch.randn(5, K)


def mean_with(weight, x):
    weight.lerp_(x.new_ones(()).expand_as(weight), 0.5)


WRITES = {
    "all": lambda layer, x: layer.weight.neg_(),
    "rows": lambda layer, x: layer.weight[1:3].fill_(3.0),
    "places": lambda layer, x: layer.weight.index_fill_(0, torch.tensor([0, 2]), 3.0),
    "many": lambda layer, x: torch._foreach_mul_(list(layer.parameters()), 0.5),
    "a mean": lambda layer, x: mean_with(layer.weight, x),
    "a view": lambda layer, x: layer.weight.view(-1)[::2].zero_(),
    "the bias": lambda layer, x: layer.bias[1:3].fill_(3.0),
    "the mask": lambda layer, x: layer.mask.logical_not_(),
    "detached": lambda layer, x: layer.weight.detach()[1:3].fill_(3.0),
}


def first(layer, x, write):
    write(layer, x)
    return [layer(x)]


def last(layer, x, write):
    y = layer(x)
    write(layer, x)
    return [y]


def between(layer, x, write):
    y = layer(x)
    write(layer, x)
    z = layer(x)
    write(layer, x)
    return [y, z]


# By inductor each write between products, which has products before it and behind it as well; the
# tracing, which has to see the writes in any order, is the same.
CASES = [
    *(("aot_eager", when, what) for when in (first, last, between) for what in WRITES),
    *(("inductor", when, "all") for when in (first, last)),
    *(("inductor", between, what) for what in WRITES),
]


@pytest.mark.parametrize(("backend", "when", "what"), CASES)
def test_a_graph_may_write_what_it_multiplies_by(backend, when, what):
    layer, x = layer_and_x()
    if what == "the mask":
        layer.set_mask(torch.arange(M * K).view(M, K) % 4 < 2)
    twin = copy.deepcopy(layer)
    fast = torch.compile(when, fullgraph=True, backend=backend)
    only = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        for _ in range(2):
            for _ in range(2):
                for y, want in zip(
                    fast(layer, x, WRITES[what]), when(twin, x, WRITES[what]), strict=True
                ):
                    torch.testing.assert_close(y, want, **CLOSE)
            for call in (only, layer):
                torch.testing.assert_close(call(x), twin(x), **CLOSE)


def test_a_graph_may_write_other_tensors():
    layer, x = layer_and_x()
    cache = torch.zeros(9, K)

    def decode(x, place):
        cache.index_copy_(0, place, x)
        return layer(cache)

    fast = torch.compile(decode, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        for packs in (1, 0, 0):
            place = torch.tensor([4 - packs, 5, 6, 7, 8])
            y, count = packings(lambda place=place: fast(x, place))
            assert count == packs
            torch.testing.assert_close(y, layer(cache), **CLOSE)


def test_a_weight_may_share_memory_that_the_graph_writes():
    layer, x = layer_and_x()
    flat = torch.randn(M * K)
    layer.weight = torch.nn.Parameter(flat.view(M, K), requires_grad=False)

    def step(x):
        y = layer(x)
        flat.mul_(2)
        return y, layer(x)

    fast = torch.compile(step, fullgraph=True, backend="inductor")
    with torch.no_grad():
        for _ in range(3):
            y, z = fast(x)
            torch.testing.assert_close(2 * (y - layer.bias), z - layer.bias, **CLOSE)


def test_layers_in_a_part_of_a_graph_pack_their_weights():
    layer, x = layer_and_x()

    def step(x):
        y = torch.cond(x.sum() > 0, lambda x: layer(x), lambda x: -layer(x), (x,))
        layer.weight[1:3].mul_(2)
        return y

    fast = torch.compile(step, fullgraph=True, backend="inductor")
    with torch.no_grad():
        for _ in range(3):
            want = layer(x) if x.sum() > 0 else -layer(x)
            torch.testing.assert_close(fast(x), want, **CLOSE)
            torch.testing.assert_close(layer(x), copy.deepcopy(layer)(x), **CLOSE)


def test_tracing_leaves_nothing_behind():
    layer, x = layer_and_x()
    fast = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        fast(x)
    assert not any(isinstance(seen, torch.Tensor) for seen in torch_traced._operands.values())
    torch._dynamo.reset()
    gc.collect()
    assert len(torch_traced._operands) == 0


def test_a_teacher_within_a_graph_with_gradients_is_packed_once():
    teacher, x = layer_and_x()
    student = torch.nn.Linear(K, M)

    def loss(x):
        with torch.no_grad():
            want = teacher(x)
        return (student(x) - want).square().mean()

    fast = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for packs in (1, 0):
        y, count = packings(lambda: fast(x))
        assert count == packs
        torch.testing.assert_close(y, loss(x), **CLOSE)
        y.backward()


def test_what_is_exported_packs_its_weight():
    layer, x = layer_and_x()
    for strict in (False, True):
        with torch.no_grad():
            exported = torch.export.export(layer, (x,), strict=strict)
        called = {str(node.target) for node in exported.graph.nodes}
        assert {"sparse24.pack.default", "sparse24.product.default"} <= called
        assert not any("kept" in name or "layer_product" in name for name in called)
        with torch.no_grad():
            torch.testing.assert_close(exported.module()(x), layer(x), **CLOSE)
