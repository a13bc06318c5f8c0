"""`SparseExperts`: the layer, dense layers that become experts, its masks and its state."""

from __future__ import annotations

import copy
import pickle

import pytest

torch = pytest.importorskip("torch")

from experts_cases import E, K, M, assert_follows, layer_and_input  # noqa: E402
from test_torch_experts import looped, offsets_of  # noqa: E402
from torch_cases import CLOSE, gradients  # noqa: E402

import sparse24 as s24  # noqa: E402
from sparse24 import schedule as S  # noqa: E402
from sparse24 import torch as st  # noqa: E402
from sparse24._errors import ArgumentError, DTypeError, ShapeError, UnsupportedError  # noqa: E402


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("transposable", [False, True])
@pytest.mark.parametrize("given", [False, True])
def test_it_learns_what_the_function_learns(device, given, transposable, bias):
    options = {"gradient": "24dense", "transposable": transposable, "decay": 0.1}
    layer, x, offsets = layer_and_input(device, bias=bias, **options)
    if given:
        layer.set_mask(s24.mask(torch.rand_like(layer.weight), transposable=transposable))
    y = layer(x, offsets)
    want = st.grouped_linear(
        x, layer.weight, layer.bias, offsets=offsets, mask=layer.mask, **options
    )
    assert torch.equal(y, want)
    tensors = x, *layer.parameters()
    for a, b in zip(gradients(y, *tensors), gradients(want, *tensors), strict=True):
        assert torch.equal(a, b)
    assert_follows(layer, x, offsets)
    assert len(list(layer.parameters())) == 1 + bias


def test_it_begins_as_linear_layers_do():
    layer, _, _ = layer_and_input()
    torch.manual_seed(0)
    for i in range(E):
        dense = torch.nn.Linear(K, M)
        torch.testing.assert_close(layer.weight[i], dense.weight)
        torch.testing.assert_close(layer.bias[i], dense.bias)
    words = "SparseExperts(experts=5, in_features=32, out_features=16, bias=True, gradient='ste'"
    assert repr(layer).startswith(words)
    assert "transposable=False, decay=0.1, activation=None" in repr(
        st.SparseExperts(E, K, M, decay=0.1)
    )


@pytest.mark.parametrize("bias", [True, False])
def test_dense_layers_become_experts_and_come_back(device, bias):
    layers = [torch.nn.Linear(K, M, bias, device).double().eval() for _ in range(E)]
    layer = st.SparseExperts.from_dense(torch.nn.ModuleList(layers), transposable=True)
    assert (layer.weight.dtype, layer.training, layer.rule.transposable) == (
        torch.float64, False, True,
    )  # fmt: skip
    _, x, offsets = layer_and_input(device)
    x = x.detach().double()
    y, back = layer(x, offsets), layer.to_dense()
    for dense, old, i, j in zip(back, layers, offsets.tolist(), offsets.tolist()[1:], strict=False):
        torch.testing.assert_close(dense(x[i:j]), y[i:j])
        assert s24.is_24(dense.weight.detach())
        assert not s24.is_24(old.weight.detach())
        assert not dense.training
    with torch.no_grad():
        back[0].weight.zero_()
    assert layer.weight[0].any()


def test_layers_that_are_not_alike_make_no_experts():
    linear = torch.nn.Linear
    for others in (linear(8, 2), linear(4, 4), linear(8, 4, bias=False), linear(8, 4).half()):
        with pytest.raises(ArgumentError, match=r"layers must be alike .* 2 kinds among 3; make"):
            st.SparseExperts.from_dense([linear(8, 4), others, linear(8, 4)])
    with pytest.raises(ArgumentError, match=r"layers must hold one torch\.nn\.Linear or more"):
        st.SparseExperts.from_dense([])
    around = torch.nn.ModuleList(torch.nn.Sequential(linear(8, 4)) for _ in range(2))
    for wrong in (around, [torch.nn.ReLU()], linear(8, 4), linear(8, 4).weight):
        words = r"must be torch\.nn\.Linear layers, one for each expert, got .*\[expert\.w1 for"
        with pytest.raises(ArgumentError, match=f"(?s)layers {words}"):
            st.SparseExperts.from_dense(wrong)
        with pytest.raises(ArgumentError, match=f"(?s)gates {words}"):
            st.SparseExperts.from_dense([linear(8, 4)], gates=wrong)
    with pytest.raises(ArgumentError, match=r"an option of SparseExperts must .* got 'soft'"):
        st.SparseExperts.from_dense([linear(8, 4)], soft=True)
    for name, sizes in (("experts", (0, 8, 4)), ("in_features", (2, -1, 4))):
        with pytest.raises(ArgumentError, match=f"{name} must be a whole number from"):
            st.SparseExperts(*sizes)


def test_what_is_frozen_stays_frozen():
    layers = [torch.nn.Linear(8, 4) for _ in range(4)]
    for layer in layers:
        layer.weight.requires_grad_(False)
    experts = st.SparseExperts.from_dense(layers[:2], gates=layers[2:])
    for one in (experts, *experts.to_dense()):
        assert (one.weight.requires_grad, one.bias.requires_grad) == (False, True)
    layers[1].weight.requires_grad_()
    with pytest.raises(ArgumentError, match=r"train their weight or all keep it.* 1 that train"):
        st.SparseExperts.from_dense(layers[:2])
    with pytest.raises(ArgumentError, match="train their weight or all keep it"):
        st.SparseExperts.from_dense(layers[:1], gates=layers[1:2])


@pytest.mark.parametrize("gradient", ["ste", "24dense"])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_any_mask_multiplies_densely(device, gradient, decay):
    layer, x, offsets = layer_and_input(device, gradient=gradient, decay=decay)
    mask = torch.rand_like(layer.weight) < 0.7
    layer.set_mask(mask)
    assert layer.masked
    y = layer(x, offsets)
    kept = (layer.weight * mask).detach().requires_grad_()
    want = looped(x, kept, layer.bias, offsets)
    torch.testing.assert_close(y, want, **CLOSE)
    dx, dw, db = gradients(want, x, kept, layer.bias)
    dw = dw if gradient == "ste" else dw * mask
    wanted = dx, dw + decay * layer.weight.detach() * ~mask, db
    for a, b in zip(gradients(y, x, *layer.parameters()), wanted, strict=True):
        torch.testing.assert_close(a, b, **CLOSE)
    layer.mask.fill_(True)[:, :, ::2] = False  # in place, and 2:4
    assert_follows(layer, x, offsets)
    layer.set_mask(torch.ones_like(mask))
    assert layer._way == "dense"
    assert_follows(layer, x, offsets)
    layer.set_mask(None)
    assert layer._way == "weight"
    with pytest.raises(ShapeError, match=r"mask must have the shape of weight, \(5, 16, 32\)"):
        layer.set_mask(mask[0])
    with pytest.raises(DTypeError, match=r"mask must be a torch\.Tensor, got list"):
        layer.set_mask([True])


def test_states_and_copies(device):
    layer, x, offsets = layer_and_input(device, transposable=True)
    assert layer.state_dict().keys() == {"weight", "bias"}
    layer.set_mask(layer.current_mask())
    with torch.no_grad():
        want = layer(x, offsets)
    assert layer.state_dict().keys() == {"weight", "bias", "mask", "masked"}
    twin = layer_and_input(device, transposable=True)[0]
    twin.load_state_dict(layer.state_dict())
    for other in (twin, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        with torch.no_grad():
            assert torch.equal(other(x, offsets), want)
            other.weight.neg_()
        assert_follows(other, x, offsets, packs=1)
    assert_follows(layer, x, offsets, packs=0)
    assert layer.double().weight.dtype == torch.float64
    assert_follows(layer, x.double(), offsets)
    layer.set_mask(layer.current_mask().flip(2) | layer.current_mask())
    again = layer_and_input(device, transposable=True)[0].double()
    again.load_state_dict(layer.state_dict())
    assert again.masked
    again.load_state_dict({k: v for k, v in layer.state_dict().items() if not k.startswith("mask")})
    assert again.mask is None


def test_a_clock_of_other_layers_is_none_of_theirs():
    layer = layer_and_input()[0]
    layer.load_state_dict({**layer.state_dict(), "clock": torch.tensor(3)})
    assert layer.state_dict().keys() == {"weight", "bias"}


def test_without_gradients_nothing_that_transforms_follow_is_lost():
    layer, x, offsets = layer_and_input()
    with torch.no_grad(), pytest.raises(UnsupportedError, match=r"not by torch\.func's transforms"):
        torch.func.vmap(lambda x: layer(x, offsets))(torch.stack([x, x]))


def test_negated_views_and_inference_mode():
    layer, x, offsets = layer_and_input()
    turned = torch.complex(x.detach(), x.detach()).conj().imag
    assert turned.is_neg()
    assert_follows(layer, turned, offsets)
    with torch.inference_mode():
        assert_follows(layer_and_input()[0], x, offsets)


class Mixture(torch.nn.Module):
    def __init__(self, m=M, **options):
        super().__init__()
        self.up, self.down = st.SparseExperts(3, K, m, **options), torch.nn.Linear(m, 4)

    def forward(self, x):
        return self.down(self.up(x, [0, 4, 4, len(x)]).relu())


@pytest.mark.parametrize(
    ("recipe", "ways"),
    [
        (S.Recipe(S.OneShot(0.5), pattern=S.NM()), {"weight"}),
        (S.Recipe(S.OneShot(0.5), pattern=S.Transposable24()), {"weight"}),
        (S.Recipe(S.dense_sparse_dense(0.5, start=0, stop=2), pattern=S.NM()), {"weight", "dense"}),
        (S.rigl(0.7, total_steps=9, every=1), {"masked"}),
    ],
)
def test_schedulers_set_its_masks(recipe, ways):
    net, x, seen = Mixture(), torch.randn(9, K), set()
    assert list(st.sparse_layers(net)) == ["up"]
    scheduler, optimizer = S.MaskScheduler(recipe), torch.optim.Adam(net.parameters())
    for _ in range(4):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        masks = st.update_masks(net, scheduler, optimizer, grown="zero")
        optimizer.step()
        assert torch.equal(masks["up"], net.up.mask)
        assert_follows(net.up, x, offsets_of([4, 0, 5]))
        seen.add(net.up._way)
    assert seen == ways


def test_tiles_that_cross_experts_multiply_densely():
    net, x = Mixture(m=6, transposable=True), torch.randn(9, K)
    net.up = st.SparseExperts(2, K, 6, transposable=True)
    st.update_masks(net, S.MaskScheduler(S.Recipe(S.OneShot(0.5), pattern=S.Transposable24())))
    assert net.up._way == "masked"
    assert_follows(net.up, x, offsets_of([4, 5]))


def test_they_stay_where_models_become_dense():
    net = torch.nn.ModuleList([Mixture(), torch.nn.Linear(8, 8)])
    st.sparsify(net, {"0.down": {}, "1": {}})
    assert list(st.sparse_layers(net)) == ["0.up", "0.down", "1"]
    assert list(st.sparse_layers(st.desparsify(net))) == ["0.up"]


def test_experts_take_a_mask_that_is_lent():
    layer, x = st.SparseExperts(2, 8, 4), torch.randn(3, 8)
    layer.set_mask(torch.ones(2, 4, 8, dtype=torch.bool))
    mask = torch.arange(64).view(2, 4, 8) % 4 < 2
    lent = torch.func.functional_call(layer, {"mask": mask}, (x, [0, 1, 3]))
    layer.set_mask(mask)
    torch.testing.assert_close(lent, layer(x, [0, 1, 3]), **CLOSE)
