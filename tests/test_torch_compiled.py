"""When compiled code without gradients packs a layer's weight anew, and when it does not."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

from torch_cases import CLOSE, packings  # noqa: E402

from sparse24 import torch as st  # noqa: E402
from sparse24._torch import kept as torch_kept  # noqa: E402
from sparse24._torch.compiled import kept_product  # noqa: E402

pytestmark = pytest.mark.usefixtures("compiles_anew")
K, M = 32, 16


def compiled(module, backend="aot_eager", **options):
    return torch.compile(module, fullgraph=True, backend=backend, **options)


def layer_and_x(device="cpu", **options):
    return st.SparseLinear(K, M, device=device, **options), torch.randn(5, K, device=device)


def assert_follows(fast, layer, x, packs=None):
    """`fast` multiplies by the weight as it is now, and packs it `packs` times."""
    with torch.no_grad():
        latent = layer._origin().latent()
        keep = layer.current_mask()
        want = torch.nn.functional.linear(x, latent * keep, layer.bias)
        y, count = packings(lambda: fast(x))
    torch.testing.assert_close(y, want, **CLOSE)
    assert packs is None or count == packs


KINDS = {
    "plain": {},
    "without bias": {"bias": False},
    "by tiles": {"transposable": True},
    "soft": {"soft": True},
    "masked": {},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_a_second_call_packs_nothing(device, backend, kind):
    layer, x = layer_and_x(device, **KINDS[kind])
    if kind == "masked":
        layer.set_mask(layer.current_mask())
    fast = compiled(layer, backend)
    assert_follows(fast, layer, x, packs=1)
    assert_follows(fast, layer, 2 * x, packs=0)
    with torch.inference_mode():
        assert packings(lambda: fast(x))[1] == 0


def test_eager_and_compiled_calls_share_a_packed_weight(device):
    layer, x = layer_and_x(device)
    fast = compiled(layer)
    assert_follows(layer, layer, x, packs=1)
    assert_follows(fast, layer, x, packs=0)
    layer.eval()
    assert_follows(fast, layer, x, packs=1)
    assert_follows(layer, layer, x, packs=0)


def other_state(layer):
    return st.SparseLinear(K, M, device=layer.weight.device).state_dict()


WRITES = {
    "the weight": lambda layer: layer.weight.neg_(),
    "a row of the weight": lambda layer: layer.weight[3].copy_(layer.weight[4]),
    "the bias": lambda layer: layer.bias.add_(1),
    "the mask": lambda layer: layer.set_mask(layer.mask.flip(0)),
    "the mask's own memory": lambda layer: layer.mask.copy_(layer.mask.flip(0)),
    "no mask": lambda layer: layer.set_mask(None),
    "another weight": lambda layer: setattr(layer, "weight", torch.nn.Parameter(-layer.weight)),
    "a state": lambda layer: layer.load_state_dict(other_state(layer)),
    "the type and back": lambda layer: layer.half().float(),
    "what eval finds": lambda layer: (layer.weight.data.neg_(), layer.eval()),
    "what train finds": lambda layer: (layer.weight.data.neg_(), layer.train()),
}


@pytest.mark.parametrize("what", WRITES)
def test_what_is_written_is_seen(device, what):
    layer, x = layer_and_x(device)
    layer.set_mask(layer.current_mask())
    fast = compiled(layer)
    for _ in range(2):
        assert_follows(fast, layer, x)
    with torch.no_grad():
        WRITES[what](layer)
    assert_follows(fast, layer, x, packs=1)
    assert_follows(fast, layer, x, packs=0)


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
@pytest.mark.parametrize("by", ["fused", "foreach"])
@pytest.mark.parametrize("steps", ["eager", "aot_eager"])
def test_a_step_of_an_optimizer_is_seen(kind, by, steps):
    layer, x = layer_and_x()
    optimizer = getattr(torch.optim, kind)(layer.parameters(), lr=0.5, **{by: True})
    step = torch.compile(optimizer.step, backend=steps)
    fast = compiled(layer)
    for _ in range(2):
        fast(x).square().sum().backward()
        assert_follows(fast, layer, x)
        step()
        assert_follows(fast, layer, x, packs=1)


def test_eager_training_by_writes_that_are_not_counted_is_seen():
    layer, x = layer_and_x()
    fast = compiled(layer)
    assert_follows(fast, layer, x)
    layer(x).sum().backward()
    layer.weight.data.add_(layer.weight.grad)
    assert_follows(fast, layer, x, packs=1)


def test_autocast_has_its_own_packed_weight(device):
    layer, x = layer_and_x(device)
    fast = compiled(layer)
    with torch.no_grad():
        for _ in range(2):
            with torch.autocast(device, torch.bfloat16):
                for packs in (1, 0):
                    y, count = packings(lambda: fast(x))
                    assert (y.dtype, count) == (torch.bfloat16, packs)
                torch.testing.assert_close(y, layer(x))
            assert_follows(fast, layer, x, packs=1)


def test_any_number_of_tokens_is_one_graph():
    layer = layer_and_x()[0]
    fast = compiled(layer, dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for tokens in (3, 5, 7):
            assert_follows(fast, layer, torch.randn(tokens, K), packs=int(tokens == 3))


def test_layers_of_a_shape_are_one_graph_with_their_own_weights(device):
    layers = [layer_and_x(device)[0] for _ in range(3)]
    x = torch.randn(5, K, device=device)
    for layer in layers:
        layer.compile(fullgraph=True, backend="aot_eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for packs in (1, 0):
            for layer in layers:
                assert_follows(layer, layer, x, packs)


def test_layers_in_a_model_have_their_own_weights(device):
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(K, K, device=device) for _ in range(2)))
    x = torch.randn(5, K, device=device)
    fast = compiled(st.sparsify(model, {"*": {}}))
    with torch.no_grad():
        for packs in (2, 0):
            y, count = packings(lambda: fast(x))
            assert count == packs
            torch.testing.assert_close(y, model(x), **CLOSE)
        model[1].weight.neg_()
        y, count = packings(lambda: fast(x))
        assert count == 1
        torch.testing.assert_close(y, model(x), **CLOSE)


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
