"""Compiled layers with weights that are shared, exchanged, copied or gone."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

from compiled_cases import K, M, assert_follows, compiled, layer_and_x, other_state  # noqa: E402
from torch_cases import CLOSE  # noqa: E402

from sparse24 import torch as st  # noqa: E402
from sparse24._torch import kept as torch_kept  # noqa: E402
from sparse24._torch.compiled import kept_product  # noqa: E402

pytestmark = pytest.mark.usefixtures("compiles_anew")


def test_layers_with_one_weight_may_have_different_masks():
    layers = [layer_and_x()[0] for _ in range(3)]
    for layer in layers[1:]:
        layer.weight = layers[0].weight
    layers[1].set_mask(layers[0].current_mask().flip(1))
    layers[2].rule = st.SparseLinear(K, M, transposable=True).rule
    fast = [compiled(layer) for layer in layers]
    x = torch.randn(5, K)
    for packs in (1, 0):
        for f, layer in zip(fast, layers, strict=True):
            assert_follows(f, layer, x, packs)
    layers[0].eval()  # drops what is kept of the weight, and so of all three
    for f, layer in zip(fast, layers, strict=True):
        assert_follows(f, layer, x, packs=1)


def test_layers_with_the_same_tensors_may_prune_by_tiles_or_not():
    layer, x = layer_and_x()
    other = st.SparseLinear.from_dense(torch.nn.Linear(K, M), transposable=True)
    other.weight, other.bias = layer.weight, layer.bias
    for _ in range(2):
        assert_follows(compiled(layer), layer, x)
        assert_follows(compiled(other), other, x)


def test_another_tensor_in_the_memory_of_a_weight_is_another_weight():
    layer, x = layer_and_x()
    fast = compiled(layer)
    layer.weight = torch.nn.Parameter(layer.weight.data)  # its version is 0, as that of the next
    assert_follows(fast, layer, x)
    layer.weight.data.neg_()
    layer.weight = torch.nn.Parameter(layer.weight.data)
    assert_follows(fast, layer, x, packs=1)


def test_called_with_other_weights_a_layer_multiplies_by_them():
    layer, x = layer_and_x()
    others = [{"weight": torch.randn(M, K), "bias": torch.randn(M)} for _ in range(2)]
    fast = compiled(lambda weights, x: torch.func.functional_call(layer, weights, (x,)))
    for packs in (1, 0):
        assert_follows(lambda x: fast({}, x), layer, x, packs)
        for other in others:
            twin = st.SparseLinear(K, M)
            twin.load_state_dict(other)
            assert_follows(lambda x, other=other: fast(other, x), twin, x, packs)


def test_copies_pack_their_own_weights():
    layer, x = layer_and_x()
    fast = compiled(layer)
    assert_follows(fast, layer, x, packs=1)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        with torch.no_grad():
            other.weight.neg_()
        assert_follows(compiled(other), other, x, packs=1)
    assert_follows(fast, layer, x, packs=0)
    assert layer.state_dict().keys() == {"weight", "bias"}


def test_what_is_kept_goes_with_its_weight():
    layer, x = layer_and_x()
    gc.collect()  # what other tests have left
    kept = len(torch_kept._of_weights)
    fast = compiled(layer)
    assert_follows(fast, layer, x)
    assert_follows(layer, layer, x)
    packed, weight = weakref.ref(layer._packed), weakref.ref(layer.weight)
    assert len(torch_kept._of_weights) == kept + 1
    del layer, fast
    torch._dynamo.reset()
    gc.collect()
    assert packed() is weight() is None
    assert len(torch_kept._of_weights) == kept


def test_what_is_kept_is_one_for_each_layer_of_a_weight():
    layer, x = layer_and_x()
    fast = compiled(layer)
    for _ in range(3):
        assert_follows(fast, layer, x)
        layer.bias = torch.nn.Parameter(layer.bias.detach().clone())
        with torch.no_grad():
            layer.weight.neg_()
    assert len(torch_kept._of_weights[layer.weight]) == 1


def test_threads_multiply_by_one_weight():
    layer, x = layer_and_x()
    fast = compiled(layer)
    with torch.no_grad():
        want = fast(x)
        layer.weight.neg_()
        want = 2 * layer.bias - want

        def call(_):
            with torch.no_grad():
                return fast(x)

        with ThreadPoolExecutor(4) as pool:
            for y in pool.map(call, range(40)):
                torch.testing.assert_close(y, want, **CLOSE)
    assert len(torch_kept._of_weights[layer.weight]) == 1


def test_weights_that_are_kept_can_be_swapped():
    layer, x = layer_and_x()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        for change in (lambda: layer.load_state_dict(other_state(layer)), lambda: layer.double()):
            with torch.no_grad():
                kept_product(x, *layer._origin(), None)  # compilers may hold weights weakly, too
            assert layer.weight in torch_kept._of_weights
            change()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert_follows(compiled(layer), layer, x.double(), packs=1)


@pytest.mark.parametrize(
    ("kind", "way"),
    [("layer", "weight"), ("layer", "masked"), ("function", "weight"), ("experts", "weight"),
     ("experts", "masked")],
)  # fmt: skip
def test_a_decay_with_symbolic_sizes_is_no_size(device, kind, way):
    make = st.SparseExperts if kind == "experts" else st.SparseLinear
    layer = make(*(3,) * (kind == "experts"), K, M, device=device, decay=0.1)
    if way == "masked":
        layer.set_mask(torch.rand(layer.weight.shape, device=device) > 0.3, way="masked")

    def product(x):
        if kind == "experts":
            return layer(x, [0, 1, 1, len(x)])
        return layer(x) if kind == "layer" else st.linear(x, layer.weight, decay=0.1)

    fast = compiled(product, dynamic=True)
    for tokens in (5, 7):
        x, dy = (torch.randn(tokens, n, device=device) for n in (K, M))
        got, want = (torch.autograd.grad(f(x), layer.weight, dy)[0] for f in (fast, product))
        torch.testing.assert_close(got, want, **CLOSE)
