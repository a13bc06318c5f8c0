"""Masks of schedulers in models: which layers they are for, and what does not go together."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from data_parallel import model  # noqa: E402
from torch.nn.utils import prune  # noqa: E402
from torch_cases import CLOSE, masked_step  # noqa: E402

from sparse24 import functional  # noqa: E402
from sparse24 import schedule as S  # noqa: E402
from sparse24 import torch as st  # noqa: E402
from sparse24._errors import ArgumentError, DTypeError, PatternError, ShapeError  # noqa: E402


def backward(net):
    net.zero_grad()
    net(torch.randn(16, 32)).square().mean().backward()


def test_layers_that_choose_their_places_themselves_are_left_alone():
    rules = {"0": {}, "2": {"sparse": "activation"}, "3": {"soft": True}}
    net = st.sparsify(model(), rules)
    before = [net[i].weight.detach().clone() for i in (2, 3)]
    phases = S.dense_sparse_dense(0.5, start=0, stop=2)
    scheduler = S.MaskScheduler(S.Recipe(phases, pattern=S.NM()))
    for _ in range(4):
        assert list(st.update_masks(net, scheduler)) == ["0"]
    assert torch.equal(net[2].weight, before[0])
    assert torch.equal(net[3].weight, before[1])
    assert net[2].mask is None


def test_a_mask_of_an_activation_layer_is_refused():
    keep = torch.ones(32, 64, dtype=torch.bool)
    layer = st.SparseLinear(64, 32, sparse="activation")
    with pytest.raises(ArgumentError, match=r"mask applies to a sparse weight, .* drop it"):
        layer.set_mask(keep)
    with pytest.raises(ArgumentError, match=r"mask applies to a sparse weight, .* drop it"):
        st.linear(torch.ones(2, 64), layer.weight, mask=keep, sparse="activation")


@pytest.mark.parametrize("gradient", ["ste", "24dense"])
def test_pruned_weights_alone_decay_under_any_mask(gradient):
    weight = torch.randn(8, 12, requires_grad=True)
    x, mask = torch.randn(5, 12), torch.rand(8, 12) < 0.7
    y = st.linear(x, weight, mask=mask, sparse="masked", gradient=gradient, decay=0.1)
    torch.testing.assert_close(y, x @ (weight * mask).T)
    y.sum().backward()
    whole = torch.ones(8, 5) @ x
    want = (whole if gradient == "ste" else whole * mask) + 0.1 * weight * ~mask
    torch.testing.assert_close(weight.grad, want)


@pytest.mark.parametrize(
    "option", [{"decay": 1e-3}, {"gradient": "24sparse"}, {"gradient": "ste_sampled"}]
)
def test_what_only_sparse_weights_have_is_refused(option):
    words = rf"{next(iter(option))}=.* applies to sparse weights, .* use decay=0"
    with pytest.raises(ArgumentError, match=words):
        st.SparseLinear(8, 4, sparse="activation", **option)
    with pytest.raises(ArgumentError, match=words):
        st.linear(torch.ones(2, 8), torch.ones(4, 8), sparse="activation", **option)


@pytest.mark.parametrize("sparse", ["weight", "masked"])
def test_masks_that_do_not_fit_are_refused(sparse):
    x, weight = torch.ones(2, 8), torch.ones(4, 8)
    with pytest.raises(ShapeError, match=r"mask must have the shape of .* \(4, 8\), got \(4, 4\)"):
        st.linear(x, weight, mask=weight[:, :4] > 0, sparse=sparse)
    with pytest.raises(DTypeError, match=r"mask must be boolean, .*; use mask != 0"):
        st.linear(x, weight, mask=weight, sparse=sparse)


@pytest.mark.parametrize("options", [True, "weight", S.Recipe(), ["transposable"]])
def test_options_of_a_layer_are_a_mapping(options):
    net = model()
    with pytest.raises(ArgumentError, match=r"rules\['2'\] must be a mapping of options"):
        st.sparsify(net, {"0": {}, "2": options})
    assert not st.sparse_layers(net)


def test_a_mask_is_a_tensor():
    layer = st.SparseLinear(8, 4)
    with pytest.raises(DTypeError, match=r"mask must be a torch\.Tensor, got ndarray"):
        layer.set_mask(layer.current_mask().numpy())


@pytest.mark.parametrize("transposable", [False, True])
def test_masks_that_are_not_24_are_refused_on_the_cpu(transposable):
    x, weight = torch.randn(6, 8), torch.randn(8, 8)
    keep = torch.ones(8, 8, dtype=torch.bool)
    keep[:, 2::4] = keep[:, 3::4] = False  # 2:4 along rows alone
    if not transposable:
        assert torch.allclose(st.linear(x, weight, mask=keep), x @ (weight * keep).T, atol=1e-5)
        keep[1, 6] = True
    place = r"mask\[0:4, 0\]" if transposable else r"mask\[1, 4:8\]"
    options = {"mask": keep, "transposable": transposable}
    with pytest.raises(PatternError, match=f"{place} keeps more than 2 elements"):
        st.linear(x, weight, **options)
    options["mask"] = keep.numpy()
    with pytest.raises(PatternError, match=f"{place} keeps more than 2 elements"):
        functional.linear(x.numpy(), weight.numpy(), **options)


def test_a_weight_that_is_made_before_each_call_is_refused():
    net = model()
    prune.l1_unstructured(net[2], "weight", 0.3)
    with pytest.raises(ArgumentError, match=r"is made of weight_orig before .*prune\.remove"):
        st.sparsify(net, {"*": {}})
    prune.remove(net[2], "weight")
    assert list(st.sparse_layers(st.sparsify(net, {"*": {}}))) == ["0", "2", "3"]


@pytest.mark.parametrize("way", ["weight_norm", "spectral_norm", "orthogonal"])
def test_a_parametrized_weight_is_refused_with_what_folds_it(way):
    layer = getattr(torch.nn.utils.parametrizations, way)(torch.nn.Linear(8, 8))
    with pytest.raises(ArgumentError, match=r"weight of layer .*remove_parametrizations\(layer"):
        st.SparseLinear.from_dense(layer)
    torch.nn.utils.parametrize.remove_parametrizations(layer, "weight")
    assert st.SparseLinear.from_dense(layer).weight is layer.weight


@pytest.mark.parametrize("rules", [None, {"*": {"soft": True}}])
def test_a_model_without_layers_to_mask_is_refused(rules):
    net = model() if rules is None else st.sparsify(model(), rules)
    with pytest.raises(ArgumentError, match=r"model has no sparse layer .* call sparsify"):
        st.update_masks(net, S.MaskScheduler(S.sr_ste()))


def test_weights_that_are_made_before_each_call_take_no_masks_from_a_scheduler():
    net = torch.nn.Sequential(torch.nn.utils.parametrizations.weight_norm(st.SparseLinear(8, 8)))
    with pytest.raises(ArgumentError, match=r"layers \['0'\] must be parameters.*call set_mask"):
        st.update_masks(net, S.MaskScheduler(S.sr_ste()))
    torch.nn.utils.parametrize.remove_parametrizations(net[0], "weight")
    assert st.update_masks(net, S.MaskScheduler(S.sr_ste()))["0"].sum() == 32


def test_layers_of_another_model_are_named():
    scheduler = S.MaskScheduler(S.sr_ste())
    st.update_masks(st.sparsify(model(), {"*": {}}), scheduler)
    with pytest.raises(ArgumentError, match=r"layers \['3'\] are not sparse layers of the model"):
        st.update_masks(st.sparsify(model(), {"0": {}, "2": {}}), scheduler)


def test_layers_outside_a_recipe_need_no_gradient():
    net = st.sparsify(model(), {"*": {}})
    net[3].weight.requires_grad_(False)
    scheduler = S.MaskScheduler({"3": None, "*": S.rigl(0.5, total_steps=9, every=1)})
    for _ in range(3):
        backward(net)
        masks = st.update_masks(net, scheduler)
    assert list(masks) == ["0", "2"]
    net[2].weight.requires_grad_(False)
    net.zero_grad()
    backward(net)
    with pytest.raises(ArgumentError, match="GradientGrowth needs the gradient of layer '2'"):
        st.update_masks(net, scheduler)


def test_growth_by_gradients_that_do_not_reach_pruned_weights_is_refused():
    net = st.sparsify(model(), {"*": {"gradient": "24dense"}})
    recipe, layers = S.rigl(0.5, total_steps=9, every=1), st.sparse_layers(net)
    weights = {name: layer.weight for name, layer in layers.items()}
    for scheduler in (S.MaskScheduler(recipe), S.AsyncScheduler(recipe, weights)):
        with pytest.raises(ArgumentError, match=r"GradientGrowth .*'24dense' .* gradient='ste'"):
            st.update_masks(net, scheduler)  # the first one already, which needs no gradients
        assert all(layer.mask is None for layer in layers.values())
    random = S.MaskScheduler(S.sparse_evolutionary(0.5, every=1))
    for _ in range(2):
        st.update_masks(net, random)


def test_a_policy_that_is_none_is_refused_before_the_step():
    net, scheduler = st.sparsify(model(), {"*": {}}), S.MaskScheduler(S.sr_ste())
    with pytest.raises(ArgumentError, match=r"policy must be one of 'keep', .* got 'clear'"):
        st.update_masks(net, scheduler, policy="clear")
    assert scheduler.state is None
    with pytest.raises(ArgumentError, match=r"policy must be one of 'keep', .* got 'clear'"):
        S.mask_slots({}, torch.ones(1), torch.ones(1), policy="clear")


@pytest.mark.parametrize("cut", [5, 6, 7])
def test_masks_under_way_reach_the_layers_after_a_resume(cut):
    recipe = S.Recipe(S.ConstantScheduler(0.5, every=5), pattern=S.NM())

    def start():
        net = st.sparsify(model(), {"*": {}})
        weights = {n: layer.weight for n, layer in st.sparse_layers(net).items()}
        return net, S.AsyncScheduler(recipe, weights, delay=2, background=False)

    runs, x = [start()], torch.randn(16, 32)
    for step in range(9):
        if step == cut:
            runs.append(start())
            for old, new in zip(*runs, strict=True):
                new.load_state_dict(copy.deepcopy(old.state_dict()))
        for net, scheduler in runs:
            masked_step(net, x, scheduler)
    states = [net.state_dict() for net, _ in runs]
    for a, b in zip(*(state.values() for state in states), strict=True):
        assert torch.equal(a, b)


def test_a_mask_that_is_24_by_chance_multiplies_as_before_after_a_resume():
    nets = [st.sparsify(model(), {"*": {}}) for _ in range(2)]
    few = S.Recipe(S.OneShot(0.98))
    st.update_masks(nets[0], S.MaskScheduler(few))
    nets[1].load_state_dict(copy.deepcopy(nets[0].state_dict()))
    assert [layer._way for layer in st.sparse_layers(nets[1]).values()] == ["masked"] * 3
    x = torch.randn(16, 32)
    assert torch.equal(nets[0](x), nets[1](x))
    st.update_masks(nets[0], S.MaskScheduler(S.sr_ste()))
    older = {k: v for k, v in nets[0].state_dict().items() if not k.endswith("masked")}
    nets[1].load_state_dict(older)
    assert [layer._way for layer in st.sparse_layers(nets[1]).values()] == ["weight"] * 3


def test_weights_that_are_exchanged_unseen_are_packed_anew():
    net, x = st.sparsify(model(), {"*": {}}).eval(), torch.randn(4, 32)
    with torch.no_grad():
        before = net(x)
        for p in net.parameters():
            p.data.mul_(2)  # as averages of weights are often put in
        twice = net.eval()(x)
    assert not torch.equal(twice, before)
    assert torch.allclose(twice, net.train()(x), atol=1e-5)


def test_other_weights_at_the_address_of_earlier_ones_are_packed_anew():
    layer, x = st.SparseLinear(8, 4, bias=False).eval(), torch.ones(1, 8)
    memory = np.ones((4, 8), np.float32)  # stands for a block that an allocator hands out again
    sums = []
    for factor in (1, 2):
        memory[:] = factor
        with torch.no_grad():
            weight = {"weight": torch.from_numpy(memory)}
            sums.append(torch.func.functional_call(layer, weight, (x,))[0, 0].item())
    assert sums == [4.0, 8.0]


def test_a_copy_of_a_layer_packs_its_own_weight():
    layer, x = st.SparseLinear(8, 4).eval(), torch.ones(1, 8)
    with torch.no_grad():
        want = layer(x)
        for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            assert torch.equal(other(x), want)
            other.weight.zero_()
            assert torch.equal(other(x)[0], other.bias)
        assert torch.equal(layer(x), want)


def test_a_model_that_is_made_in_inference_mode_works():
    x = torch.randn(4, 32)
    with torch.inference_mode():
        net = st.sparsify(model(), {"*": {}})
        first = net(x)
        net[3].bias.add_(1)
        assert torch.allclose(net(x), first + 1, atol=1e-6)


def test_layers_are_dense_until_the_first_masks_come():
    """An asynchronous scheduler's masks are all true until then, so the layers' are."""
    net, x = st.sparsify(model(), {"*": {}}), torch.randn(5, 32)
    weights = {name: layer.weight for name, layer in st.sparse_layers(net).items()}
    with S.AsyncScheduler(S.sr_ste(), weights, delay=2) as scheduler:
        for step in range(3):
            masks = st.update_masks(net, scheduler)
            assert masks["0"].all() == (step < 2)
            want = torch.nn.functional.linear(x, net[0].weight * masks["0"], net[0].bias)
            torch.testing.assert_close(net[0](x), want, **CLOSE)


def test_masks_of_a_loaded_state_reach_layers_without_one():
    """As of a model whose weights alone were saved."""
    net, scheduler = st.sparsify(model(), {"*": {}}), S.MaskScheduler(S.rigl(0.5, total_steps=10))
    masks = st.update_masks(net, scheduler)
    again, later = st.sparsify(model(), {"*": {}}), S.MaskScheduler(S.rigl(0.5, total_steps=10))
    later.load_state_dict(scheduler.state_dict())
    st.update_masks(again, later)
    layers = st.sparse_layers(again)
    assert layers.keys() == masks.keys() != set()
    for name, layer in layers.items():
        assert torch.equal(layer.mask, masks[name])


@pytest.mark.parametrize("frozen", [True, False])
def test_a_gradient_that_is_missing_is_asked_for(frozen):
    net = st.sparsify(model(), {"*": {}})
    if frozen:
        net[0].weight.requires_grad_(False)
        net(torch.ones(4, 32)).sum().backward()
    scheduler = S.MaskScheduler(S.Recipe(S.ConstantScheduler(0.5), criterion=S.Taylor()))
    with pytest.raises(ArgumentError) as error:
        st.update_masks(net, scheduler)
    text = str(error.value)
    assert "Taylor needs the gradient of layer '0'; pass step(gradients=...), or call " in text
    assert "update_masks after backward() and before zero_grad(); a layer that gets none" in text
    assert text.endswith("as a frozen one, needs another recipe, or None in the rules")
    assert scheduler.state is None
