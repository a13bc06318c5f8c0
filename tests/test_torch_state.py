"""Sparse layers of torch: what they take from saved states, from other layers and in place."""

from __future__ import annotations

import copy
import warnings

import pytest

torch = pytest.importorskip("torch")

from data_parallel import model  # noqa: E402
from torch.distributed.checkpoint import state_dict as dcp  # noqa: E402
from torch_cases import CLOSE, layer_and_input  # noqa: E402

from sparse24 import schedule as S  # noqa: E402
from sparse24 import torch as st  # noqa: E402
from sparse24._errors import ArgumentError, ShapeError, UnsupportedError  # noqa: E402
from sparse24._torch.sources import Sources  # noqa: E402


def masked_layer(**options):
    layer = st.SparseLinear(8, 8, **options)
    layer.set_mask(layer.current_mask())
    return layer


def test_a_state_of_other_layers_leaves_masks_alone():
    net = st.sparsify(model(), {"*": {"gradient": "24sparse"}})
    net[0].set_mask(net[0].current_mask())
    kept = net[0].mask.clone()
    net.load_state_dict({"3.bias": torch.zeros_like(net[3].bias)}, strict=False)
    assert torch.equal(net[0].mask, kept)
    dense = {key: value for key, value in net.state_dict().items() if not key.startswith("0.m")}
    net.load_state_dict(dense)
    assert net[0].mask is None  # that was the layer's state, without a mask


def test_a_mask_of_another_shape_leaves_the_layer_without_one():
    layer = st.SparseLinear(8, 8)
    state = {**layer.state_dict(), "mask": torch.ones(4, 4, dtype=torch.bool)}
    with pytest.raises(RuntimeError, match="size mismatch for mask"):
        layer.load_state_dict(state)
    assert layer.mask is None


@pytest.mark.parametrize("kept", [True, False])
def test_a_state_that_has_lost_its_mask_says_so(kept):
    layer, state = st.SparseLinear(8, 8), masked_layer().state_dict()
    del state["mask"]
    if kept:
        layer.set_mask(torch.eye(8, dtype=torch.bool))
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "mask"\. '):
        layer.load_state_dict(state)
    assert layer.load_state_dict(state, strict=False).missing_keys == ["mask"]
    assert (layer.mask is not None) is kept


def test_a_mask_of_numbers_becomes_one_of_booleans():
    layer, state = st.SparseLinear(8, 8), masked_layer().state_dict()
    layer.load_state_dict({**state, "mask": state["mask"].float()}, assign=True)
    assert layer.mask.dtype == torch.bool
    assert layer(torch.ones(2, 8)).shape == (2, 8)


@pytest.mark.parametrize("assign", [True, False])
def test_a_soft_layer_is_scaled_to_a_dense_weight(assign):
    with torch.device("meta" if assign else "cpu"):
        layer = st.SparseLinear(8, 8, soft=True)
    dense = torch.nn.Linear(8, 8)
    layer.load_state_dict(dense.state_dict(), assign=assign)
    wanted = st.SparseLinear.from_dense(dense, soft=True)
    assert torch.equal(layer.scale, wanted.scale)
    assert torch.equal(layer(torch.ones(2, 8)), wanted(torch.ones(2, 8)))
    layer.scale.fill_(0.5)
    again = st.SparseLinear(8, 8, soft=True)
    again.load_state_dict(layer.state_dict())
    assert float(again.scale) == 0.5


@pytest.mark.parametrize("assign", [True, False])
def test_packed_weights_are_not_loaded_into_layers_that_learn(assign):
    packed = st.to_sparse_semi_structured(torch.eye(8))
    net = torch.nn.Sequential(st.SparseLinear(8, 8, bias=False))
    with pytest.raises(UnsupportedError, match=r"0\.weight is packed.*load 0\.weight\.to_d"):
        net.load_state_dict({"0.weight": packed}, assign=assign)
    net.load_state_dict({"0.weight": packed.to_dense()}, assign=assign)
    assert torch.equal(net(torch.eye(8)), torch.eye(8))


@pytest.mark.parametrize("options", [{"sparse": "activation"}, {"soft": True}])
def test_layers_that_take_no_mask_load_none(options):
    layer, state = st.SparseLinear(8, 8, **options), masked_layer().state_dict()
    scale = {key: value for key, value in layer.state_dict().items() if key == "scale"}
    with pytest.raises(RuntimeError, match=r'Unexpected key\(s\) in state_dict: "mask"'):
        layer.load_state_dict({**state, **scale})
    layer.load_state_dict({**state, **scale}, strict=False)
    assert layer.mask is None
    assert layer(torch.ones(2, 8)).shape == (2, 8)


def test_states_of_distributed_checkpoints_are_taken_and_set():
    net, other = (st.sparsify(model(), {"*": {"gradient": "ste_sampled"}}) for _ in range(2))
    layer = net[0]
    layer.set_mask(torch.ones_like(layer.weight, dtype=torch.bool).tril(), way="masked")
    net[2](torch.ones(4, net[2].in_features)).sum().backward()  # draws a sample
    dcp.set_model_state_dict(other, dcp.get_model_state_dict(net))
    assert torch.equal(other[0].mask, layer.mask)
    assert (other[0].masked, other[2].masked) == (True, False)
    assert (int(other[0].clock), int(other[2].clock)) == (0, 1)


def test_states_of_wrapped_models_are_set_in_the_model_itself():
    """As `docs/how_to/several_gpus.rst` says; to wrappers torch passes on no `clock`, `masked`."""
    net, other = (st.sparsify(model(), {"*": {"gradient": "ste_sampled"}}) for _ in range(2))
    net[0].set_mask(torch.ones_like(net[0].weight, dtype=torch.bool).tril(), way="masked")
    net[2](torch.ones(4, net[2].in_features)).sum().backward()  # draws a sample
    wrapped = torch.compile(other)
    state = dcp.get_model_state_dict(torch.compile(net))
    assert state.keys() == net.state_dict().keys()
    dcp.set_model_state_dict(wrapped._orig_mod, state)
    assert (other[0].masked, int(other[2].clock)) == (True, 1)


def test_hooks_run_in_the_layer_that_takes_the_place():
    layer, x = layer_and_input()
    seen = []
    forward = layer.register_forward_hook(lambda *_: seen.append("forward"))
    layer.register_forward_pre_hook(lambda *_: seen.append("before"))
    layer.register_full_backward_hook(lambda *_: seen.append("backward"))
    net = st.sparsify(torch.nn.Sequential(layer), {"*": {}})
    net(x).sum().backward()
    assert seen == ["before", "forward", "backward"]
    forward.remove()
    seen.clear()
    st.desparsify(net)(x).sum().backward()
    assert seen == ["before", "backward"]


def test_what_hooks_use_goes_with_the_layer():
    layer = torch.nn.Linear(8, 8)
    layer.register_parameter("gate", torch.nn.Parameter(torch.full((8,), 2.0)))
    layer.register_buffer("seen", torch.zeros(()), persistent=False)
    layer.add_module("norm", torch.nn.LayerNorm(8))
    layer.register_forward_hook(lambda own, _, y: own.norm(y) * own.gate + own.seen.add_(1))
    names, x = list(layer.state_dict()), torch.randn(4, 8)
    net = st.sparsify(torch.nn.Sequential(layer), {"0": {}})
    net(x).sum().backward()
    assert net[0].gate.grad is not None
    assert list(net[0].state_dict()) == names
    want = net(x) + 1
    dense = st.desparsify(net)[0]
    assert (list(dense.state_dict()), float(dense.seen)) == (names, 2)
    torch.testing.assert_close(dense(x), want)


def test_a_layer_that_computes_something_else_stays():
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    net[1].forward = lambda x: x
    with pytest.raises(ArgumentError, match=r"its forward was replaced.*first: del layer\.forward"):
        st.sparsify(net, {"*": {}})
    assert not st.sparse_layers(net)
    assert list(st.sparse_layers(st.sparsify(net, {"0": {}, "*": None}))) == ["0"]


@pytest.mark.parametrize("trains", [False, True])
def test_a_mask_that_is_copied_in_place_is_looked_at(trains):
    """As averaged models get it: their buffers are copied, and nothing else tells of it."""
    net = st.sparsify(model(), {"*": {}})
    scheduler = S.MaskScheduler(S.Recipe(S.OneShot(0.5, at=1), pattern=S.NM(2, 4)))
    st.update_masks(net, scheduler)
    average = torch.optim.swa_utils.AveragedModel(net)
    st.update_masks(net, scheduler)
    average.update_parameters(net)
    average.train(trains)
    x = torch.randn(5, 32)
    with torch.set_grad_enabled(trains):
        torch.testing.assert_close(average(x), net.train(trains)(x), **CLOSE)


def test_any_mask_may_be_written_in_place_where_no_gradient_is_wanted():
    layer, x = masked_layer(), torch.randn(3, 8)
    with torch.no_grad():
        layer(x)
        layer.mask.fill_(True)[:, 0] = False
        want = torch.nn.functional.linear(x, layer.weight * layer.mask, layer.bias)
        torch.testing.assert_close(layer(x), want, **CLOSE)


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("old", ["none", "dense", "half", "any"])
@pytest.mark.parametrize("new", ["dense", "half", "any"])
def test_another_mask_is_looked_at(old, new, learns):
    """One that is lent for a call, and one that is assigned; the layer's own is not forgotten."""
    masks = {
        "none": None,
        "dense": torch.ones(8, 8, dtype=torch.bool),
        "half": torch.tensor([True, False, True, False]).repeat(8, 2),
        "any": torch.arange(64).remainder(7).view(8, 8) > 1,
    }
    layer, x = st.SparseLinear(8, 8), torch.randn(3, 8)
    layer.set_mask(masks[old])
    with torch.set_grad_enabled(learns):
        before, way = layer(x), layer.masked
        want = torch.nn.functional.linear(x, layer.weight * masks[new], layer.bias)
        lent = (
            torch.func.functional_call(layer, {"mask": masks[new]}, (x,)) if old != "none" else want
        )
        torch.testing.assert_close(lent, want, **CLOSE)
        assert torch.equal(layer(x), before)
        assert layer.masked == way
        layer.mask = masks[new].clone()
        wide = copy.deepcopy(layer).double()(x.double())
        torch.testing.assert_close(wide, want.double(), **CLOSE)
        torch.testing.assert_close(layer(x), want, **CLOSE)
        assert layer.masked == (new == "any")
        layer.mask = None
        assert not layer.masked
    with pytest.raises(ShapeError, match="mask must have the shape of weight"):
        layer.mask = masks["half"][:4]


def test_a_soft_layer_is_made_dense_once():
    layer, x = st.SparseLinear(32, 16, soft=True), torch.randn(5, 32)
    want = layer(x)
    for dense in (layer.to_dense(), layer, layer.to_dense()):
        torch.testing.assert_close(dense(x), want, **CLOSE)


@pytest.mark.parametrize("loads", [False, True])
@pytest.mark.parametrize("obeys", [False, True])
def test_layers_on_the_meta_device_take_masks(loads, obeys):
    layer = masked_layer()
    if not obeys:
        layer.set_mask(torch.ones_like(layer.weight, dtype=torch.bool).tril())
    x, state = torch.randn(3, 8), layer.state_dict()
    late = st.SparseLinear(8, 8, device="meta")
    if loads:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, that the values go nowhere
            late.load_state_dict(state)
    else:
        late.set_mask(layer.mask)
    assert late.masked != obeys
    late.set_mask(late.mask.clone())
    assert late.masked  # nothing is known of the mask
    late.to_empty(device="cpu").load_state_dict(state)
    assert late.masked != obeys
    torch.testing.assert_close(late(x), layer(x))
    late = st.SparseLinear(8, 8, device="meta")
    late.load_state_dict(state, assign=True)
    torch.testing.assert_close(late(x), layer(x))


@pytest.mark.parametrize("given", ["mask", "state"])
def test_masks_that_are_set_in_inference_mode_can_be_trained_with(given):
    layer, other = masked_layer(gradient="24dense"), st.SparseLinear(8, 8, gradient="24dense")
    with torch.inference_mode():
        if given == "mask":
            other.set_mask(layer.mask.clone())
        else:
            other.load_state_dict(layer.state_dict())
    other(torch.ones(3, 8)).sum().backward()
    assert torch.equal(other.weight.grad != 0, other.mask)


@pytest.mark.parametrize("options", [{"soft": True}, {"gradient": "ste_sampled"}])
def test_layers_that_are_made_sparse_in_inference_mode_can_learn(options):
    net = model()
    with torch.inference_mode():
        net = st.sparsify(net, {"*": options})
    net(torch.randn(4, 32)).sum().backward()
    assert all(bool(p.grad.any()) for p in net.parameters())


def test_soft_layers_without_memory_are_scaled_when_they_get_it():
    layer = st.SparseLinear(32, 16, soft=True, device="meta").to_empty(device="cpu")
    layer.reset_parameters()
    assert layer.scale == S.soft_threshold_scale(layer.weight)


@pytest.mark.parametrize("masked", ["x", 3, torch.tensor([1, 0])], ids=str)
def test_a_state_says_yes_or_no_to_masked(masked):
    model = torch.nn.Sequential(masked_layer())
    state = model.state_dict()
    with pytest.raises(ArgumentError, match=r"^0\.masked must be one of True, False, got"):
        model.load_state_dict({**state, "0.masked": masked})
    for yes in (True, torch.tensor([True]), torch.tensor(1.0)):
        model.load_state_dict({**state, "0.masked": yes})
        assert model[0]._way == "masked"


def test_the_way_of_a_mask_is_checked():
    layer = st.SparseLinear(8, 8)
    with pytest.raises(ArgumentError, match="way must be one of None, 'weight', 'masked', 'dense'"):
        layer.set_mask(layer.current_mask(), way="sparse")


def test_a_packed_weight_that_another_thread_drops_is_used_to_the_end(monkeypatch):
    layer, x = masked_layer().eval(), torch.randn(3, 8)
    with torch.no_grad():
        want = layer(x)
        monkeypatch.setattr(Sources, "are", lambda *_: bool(layer.eval()))  # as if meanwhile
        assert torch.equal(layer(x), want)
