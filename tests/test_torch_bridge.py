"""The torch bridge against dense layers with masked weights, on either device."""

from __future__ import annotations

import copy
import queue
import socket

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import data_parallel  # noqa: E402
from data_parallel import model  # noqa: E402

import sparse24 as s24  # noqa: E402
from sparse24 import schedule as S  # noqa: E402
from sparse24 import torch as st  # noqa: E402
from sparse24._errors import (  # noqa: E402
    ArgumentError,
    PatternError,
    ShapeError,
    UnsupportedError,
)

F = torch.nn.functional
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    torch.manual_seed(0)
    return request.param


def layer_and_input(device="cpu", tokens=12, m=16, k=32, dtype=torch.float32):
    layer = torch.nn.Linear(k, m, device=device, dtype=dtype)
    return layer, torch.randn(tokens, k, device=device, dtype=dtype, requires_grad=True)


def gradients(y, *tensors):
    torch.manual_seed(1)
    return torch.autograd.grad((y * torch.randn_like(y)).sum(), tensors)


def masked_reference(layer, x, mask, gradient, decay):
    weight = (layer.weight * mask).detach().requires_grad_()
    y = F.linear(x, weight, layer.bias)
    dx, dw, db = gradients(y, x, weight, layer.bias)
    dw = dw if gradient == "ste" else dw * mask
    return y, dx, dw + decay * layer.weight.detach() * ~mask, db


@pytest.mark.parametrize("transposable", [False, True])
@pytest.mark.parametrize("gradient", ["ste", "24dense"])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("given", [False, True])
def test_gradients_equal_those_of_the_masked_layer(device, transposable, gradient, decay, given):
    layer, x = layer_and_input(device)
    options = {"gradient": gradient, "transposable": transposable, "decay": decay}
    sparse = st.SparseLinear.from_dense(layer, **options)
    if given:
        scores = torch.rand_like(layer.weight)
        sparse.set_mask(s24.mask(scores, transposable=transposable))
    mask = sparse.current_mask()
    assert (mask.reshape(16, 8, 4).sum(-1) == 2).all()
    y = sparse(x)
    got = (y, *gradients(y, x, layer.weight, layer.bias))
    for a, b in zip(got, masked_reference(layer, x, mask, gradient, decay), strict=True):
        torch.testing.assert_close(a, b, **CLOSE)


def test_gradients_pass_finite_differences():
    layer, x = layer_and_input(tokens=3, m=4, k=8, dtype=torch.float64)
    mask = s24.mask(layer.weight.detach(), transposable=True)

    def loss(x, bias):
        return st.linear(x, layer.weight, bias, mask=mask, transposable=True)

    assert torch.autograd.gradcheck(loss, (x, layer.bias))
    kept = layer.weight.detach().clone().requires_grad_()
    y = st.linear(x, kept, mask=mask, gradient="24dense").square().sum()
    (dw,) = torch.autograd.grad(y, kept)
    with torch.no_grad():
        for i, j in [(0, 0), (1, 5), (3, 7)]:
            shift = torch.zeros_like(kept)
            shift[i, j] = 1e-6
            ends = [
                st.linear(x, kept + s * shift, mask=mask).square().sum().item() for s in (1, -1)
            ]
            assert dw[i, j].item() == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=1e-4)


def test_sampled_gradients_are_unbiased():
    layer, x = layer_and_input(tokens=16, m=8, k=8)
    dense = st.SparseLinear.from_dense(layer, gradient="24dense")
    (want,) = gradients(dense(x), layer.weight)
    sparse = st.SparseLinear.from_dense(layer, gradient="24sparse")
    draws = torch.stack([gradients(sparse(x), layer.weight)[0] for _ in range(400)])
    assert not torch.equal(draws[0], draws[1])
    error = draws.std(0) / 20
    assert ((draws.mean(0) - want).abs() <= 5 * error + 1e-5).all()


@pytest.mark.parametrize("k", [32, 30])
def test_a_soft_layer_projects_its_weight(device, k):
    layer, x = layer_and_input(tokens=16, m=16, k=k)
    layer, x = layer.to(device), x.detach().to(device).requires_grad_()
    soft = st.SparseLinear.from_dense(layer, soft=True)
    latent = layer.weight.detach()
    projected = S.soft_threshold_scale(latent) * S.soft_threshold_24(latent)
    want = F.linear(x, layer.weight + (projected - latent), layer.bias)
    y = soft(x)
    torch.testing.assert_close(y, want, **CLOSE)
    inputs = (x, layer.weight, layer.bias)
    for a, b in zip(gradients(y, *inputs), gradients(want, *inputs), strict=True):
        torch.testing.assert_close(a, b, **CLOSE)
    with torch.no_grad():
        torch.testing.assert_close(soft(x), want, **CLOSE)
        twin = st.SparseLinear(k, 16, soft=True).to(device)
        twin.load_state_dict(soft.state_dict())
        torch.testing.assert_close(twin(x), want, **CLOSE)
        torch.testing.assert_close(soft.to_dense()(x), want, **CLOSE)
    assert s24.is_24(soft.weight.detach())  # to_dense shares the parameter


def test_sampled_gradients_reach_all_weights_of_a_soft_layer():
    layer, x = layer_and_input(tokens=16, m=8, k=8)
    (want,) = gradients(st.SparseLinear.from_dense(layer, soft=True)(x), layer.weight)
    soft = st.SparseLinear.from_dense(layer, soft=True, gradient="ste_sampled")
    draws = torch.stack([gradients(soft(x), layer.weight)[0] for _ in range(400)])
    assert (draws.std(0) > 0).all()  # pruned weights learn too
    assert ((draws.mean(0) - want).abs() <= 5 * draws.std(0) / 20 + 1e-5).all()


def test_soft_layers_refuse_what_does_not_go_with_them():
    for options in ({"transposable": True}, {"gradient": "24dense"}, {"decay": 0.1}):
        with pytest.raises(ArgumentError, match="soft=True needs sparse='weight'"):
            st.SparseLinear(8, 8, soft=True, **options)
    with pytest.raises(ArgumentError, match="a soft layer chooses its places itself"):
        st.SparseLinear(8, 8, soft=True).set_mask(torch.ones(8, 8, dtype=torch.bool))


@pytest.mark.parametrize("transposable", [False, True])
def test_sparse_activations(device, transposable):
    layer, x = layer_and_input(device)
    sparse = st.SparseLinear.from_dense(
        layer, sparse="activation", gradient="24dense", transposable=transposable
    )
    mask = s24.mask(x.detach(), transposable=transposable)
    y = sparse(x)
    pruned = (x * mask).detach().requires_grad_()
    want = F.linear(pruned, layer.weight, layer.bias)
    torch.testing.assert_close(y, want, **CLOSE)
    got = gradients(y, x, layer.weight, layer.bias)
    dx, dw, db = gradients(want, pruned, layer.weight, layer.bias)
    for a, b in zip(got, (dx * mask, dw, db), strict=True):
        torch.testing.assert_close(a, b, **CLOSE)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("tokens", [(16,), (2, 7)])
def test_feed_forward_with_sparse_activations(device, tokens, bias):
    up, x = layer_and_input(device, tokens=16, m=20, k=8)
    down, x = torch.nn.Linear(20, 12, device=device), torch.randn(*tokens, 8, device=device)
    x.requires_grad_()
    biases = (up.bias, down.bias) if bias else (None, None)
    y = st.feed_forward(x, up.weight, down.weight, *biases)
    hidden = F.linear(x, up.weight, biases[0]).relu().square().reshape(-1, 20)
    mask = s24.mask(hidden.detach(), transposable=True)
    want = F.linear(hidden * mask, down.weight, biases[1]).reshape(y.shape)
    torch.testing.assert_close(y, want, **CLOSE)
    inputs = (x, up.weight, down.weight, *(b for b in biases if b is not None))
    for a, b in zip(gradients(y, *inputs), gradients(want, *inputs), strict=True):
        torch.testing.assert_close(a, b, **CLOSE)


def test_feed_forward_compiles_and_refuses():
    up, down, x = (torch.randn(shape, requires_grad=True) for shape in ((16, 8), (4, 16), (12, 8)))
    fast = torch.compile(st.feed_forward, fullgraph=True, backend="aot_eager")
    got, want = fast(x, up, down), st.feed_forward(x, up, down)
    torch.testing.assert_close(got, want, **CLOSE)
    for a, b in zip(gradients(got, x, up, down), gradients(want, x, up, down), strict=True):
        torch.testing.assert_close(a, b, **CLOSE)
    with pytest.raises(ShapeError, match=r"x must have shape \(\.\.\., d\) and up \(k, d\)"):
        st.feed_forward(x, up.T, down)
    with pytest.raises(ShapeError, match=r"up must have shape \(k, d\) and down \(m, k\)"):
        st.feed_forward(x, up, down.T)


def test_inference_packs_once_until_the_weight_changes(device):
    layer, x = layer_and_input(device)
    sparse = st.SparseLinear.from_dense(layer)
    with torch.no_grad():
        first = sparse(x)
        packed = sparse._packed[1]
        torch.testing.assert_close(sparse(x), first, rtol=0, atol=0)
        assert sparse._packed[1] is packed
        layer.weight.mul_(2)
        want = F.linear(x, layer.weight * sparse.current_mask(), layer.bias)
        torch.testing.assert_close(sparse(x), want, **CLOSE)


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("transposable", [False, True])
def test_inference_keeps_what_training_keeps(device, transposable, given):
    layer, x = layer_and_input(device)
    sparse = st.SparseLinear.from_dense(layer, transposable=transposable)
    if given:
        sparse.set_mask(s24.mask(torch.rand_like(layer.weight), transposable=transposable))
    want = sparse(x)
    compiled = torch.compile(sparse, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(sparse(x), want, **CLOSE)
        torch.testing.assert_close(compiled(x), want, **CLOSE)
    torch.testing.assert_close(sparse.to_dense()(x), want, **CLOSE)


def test_leading_axes_odd_sizes_and_no_bias():
    sparse = st.SparseLinear(10, 6, bias=False)
    x = torch.randn(2, 3, 10)
    y = sparse(x)
    assert y.shape == (2, 3, 6)
    torch.testing.assert_close(y, F.linear(x, sparse.weight * sparse.current_mask()), **CLOSE)
    with pytest.raises(ShapeError, match=r"x must have shape \(..., k\) and weight \(m, k\)"):
        sparse(torch.randn(2, 8))


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


def test_torchs_encoder_layers_use_their_sparse_layers_in_evaluation():
    layers = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layers, 2)
    st.sparsify(encoder, {"*.linear?": {}})
    x = torch.randn(2, 5, 32)
    want = encoder.eval()(x)
    with torch.no_grad():
        torch.testing.assert_close(encoder(x), want, **CLOSE)
    st.desparsify(encoder)
    with torch.no_grad():
        torch.testing.assert_close(encoder(x), want, **CLOSE)


def test_a_layer_in_two_places_is_one_layer():
    layer, x = layer_and_input(m=32, k=32)
    net = st.sparsify(torch.nn.Sequential(layer, torch.nn.ReLU(), layer), {"0": {}})
    assert net[0] is net[2]
    assert list(st.sparse_layers(net)) == ["0"]
    want = net(x)
    st.desparsify(net)
    assert net[0] is net[2]
    torch.testing.assert_close(net(x), want, **CLOSE)


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


def test_autocast(device):
    layer, x = layer_and_input(device)
    sparse = st.SparseLinear.from_dense(layer, transposable=True)
    with torch.autocast(device, torch.bfloat16):
        y = sparse(x)
    assert y.dtype == torch.bfloat16
    dx, dw = gradients(y, x, layer.weight)
    assert dx.dtype == dw.dtype == torch.float32
    mask = s24.mask(layer.weight.detach().bfloat16(), transposable=True)
    want = F.linear(x, layer.weight * mask, layer.bias)
    torch.testing.assert_close(y.float(), want, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize(
    "rule",
    [
        {"transposable": True, "gradient": "24dense"},
        {"transposable": True, "gradient": "24sparse"},
        {"soft": True},
        {"soft": True, "gradient": "ste_sampled"},
        {"sparse": "masked"},
        {"sparse": "masked", "decay": 1e-3},
        {"sparse": "activation"},
    ],
)
def test_compiles_without_graph_breaks(rule, device):
    net = st.sparsify(model().to(device), {"*": rule})
    if rule.get("sparse") == "masked":
        for layer in st.sparse_layers(net).values():
            layer.set_mask(torch.rand_like(layer.weight) < 0.5)
    twin = copy.deepcopy(net)  # draws the same samples
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    x = torch.randn(8, 32, device=device, requires_grad=True)
    for _ in range(2):
        y, want = compiled(x), twin(x)
        torch.testing.assert_close(y, want, **CLOSE)
        got, wanted = gradients(y, x, *net.parameters()), gradients(want, x, *twin.parameters())
        for a, b in zip(got, wanted, strict=True):
            torch.testing.assert_close(a, b, **CLOSE)


@pytest.mark.gpu
def test_a_cuda_graph_captures_forward_and_backward():
    torch.manual_seed(0)
    layer = st.SparseLinear(256, 128, device="cuda", dtype=torch.bfloat16, transposable=True)
    x = torch.randn(512, 256, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    dy = torch.randn(512, 128, device="cuda", dtype=torch.bfloat16)

    def step():
        y = layer(x)
        y.backward(dy)
        return y

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # compile, choose, fill caches
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    x.grad = layer.weight.grad = layer.bias.grad = None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = step()
    with torch.no_grad():
        x.copy_(torch.randn_like(x))
    for tensor in (x.grad, layer.weight.grad, layer.bias.grad):
        tensor.zero_()  # a captured backward adds to or overwrites these
    graph.replay()
    got = [t.clone() for t in (y, x.grad, layer.weight.grad)]
    x.grad = layer.weight.grad = layer.bias.grad = None
    want = step()
    for a, b in zip(got, (want, x.grad, layer.weight.grad), strict=True):
        torch.testing.assert_close(a, b)


def test_operators_pass_torchs_own_checks():
    x = torch.randn(8, 16)
    ops = torch.ops.sparse24
    tests = ("test_schema", "test_faketensor")
    for args in ((x, None, False), (x, s24.mask(x), False), (x, None, True)):
        torch.library.opcheck(ops.pack.default, args, test_utils=tests)
    parts = ops.pack(x, None, True)
    for form, b in (("x@At", (3, 16)), ("x@A", (3, 8)), ("A@b", (16, 3)), ("At@b", (8, 3))):
        args = (parts, 8, 16, torch.randn(b), None, form)
        torch.library.opcheck(ops.product.default, args, test_utils=tests)
    torch.library.opcheck(ops.keep.default, (x, True), test_utils=tests)
    torch.library.opcheck(ops.dense.default, (parts, 8, 16), test_utils=tests)
    args = (parts, 8, 16, torch.randn(8, 16), torch.randn(8, 16), 0.1)
    torch.library.opcheck(ops.masked_gradient.default, args, test_utils=tests)
    torch.library.opcheck(ops.like.default, (parts, 8, 16, torch.randn(8, 16)), test_utils=tests)
    clock = torch.tensor(3)
    torch.library.opcheck(ops.tick.default, (clock.clone(),), test_utils=tests)
    torch.library.opcheck(ops.pack_sample.default, (x, 0, clock), test_utils=tests)


@pytest.mark.parametrize("pattern", [S.NM(), S.Transposable24()])
def test_masks_from_a_scheduler_and_the_optimizers_state(pattern):
    transposable = isinstance(pattern, S.Transposable24)
    net = st.sparsify(model(), {"*": {"transposable": transposable}})
    scheduler = S.MaskScheduler(S.Recipe(S.ConstantScheduler(0.5, every=2), pattern=pattern))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    x = torch.randn(16, 32)
    for step in range(4):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        before = net[0].mask.clone() if step else None
        masks = st.update_masks(net, scheduler, optimizer)
        assert torch.equal(net[0].mask, masks["0"])
        if step == 2:
            changed = before ^ net[0].mask
            assert changed.any()
            assert not optimizer.state[net[0].weight]["exp_avg"][changed].any()
        if step == 3:
            assert torch.equal(before, net[0].mask)
        optimizer.step()


def test_what_weights_that_come_back_start_from():
    net = st.sparsify(model(), {"*": {"gradient": "ste"}})
    phases = S.dense_sparse_dense(0.5, start=0, stop=2)
    scheduler = S.MaskScheduler(S.Recipe(phases, pattern=S.NM()))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    x = torch.randn(16, 32)
    for _ in range(2):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        st.update_masks(net, scheduler, optimizer)
        optimizer.step()
    pruned = ~net[0].mask
    assert net[0].weight[pruned].any()  # latent, and learning
    before = net(x)
    st.update_masks(net, scheduler, optimizer)
    assert net[0]._way == "dense"
    assert not net[0].weight[pruned].any()
    torch.testing.assert_close(net(x), before, **CLOSE)  # the model goes on as it was

    rigl = st.sparsify(model(), {"*": {"sparse": "masked"}})
    growing = S.MaskScheduler(S.rigl(0.5, total_steps=100, every=1))
    for _ in range(2):
        rigl.zero_grad()
        rigl(x).square().mean().backward()
        old = None if rigl[0].mask is None else rigl[0].mask.clone()
        st.update_masks(rigl, growing, grown="zero")
    grown = rigl[0].mask & ~old
    assert grown.any()
    assert not rigl[0].weight[grown].any()


def test_masks_from_beside_the_training():
    nets = [st.sparsify(model(), {"*": {"transposable": True}}) for _ in range(2)]
    recipe = S.Recipe(S.ConstantScheduler(0.5, every=2), pattern=S.Transposable24())
    weights = {n: layer.weight for n, layer in st.sparse_layers(nets[0]).items()}
    x = torch.randn(16, 32)
    with (
        S.AsyncScheduler(recipe, weights, delay=1, telemetry=S.Telemetry()) as beside,
        S.AsyncScheduler(recipe, weights, delay=1, background=False) as within,
    ):
        for _ in range(5):
            for net, scheduler in zip(nets, (beside, within), strict=True):
                net.zero_grad()
                net(x).square().mean().backward()
                st.update_masks(net, scheduler)
                with torch.no_grad():
                    for p in net.parameters():
                        p -= 0.1 * p.grad
        assert beside.telemetry.column("step", "0") == [0, 2]
    for a, b in zip(nets[0].state_dict().values(), nets[1].state_dict().values(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("transposable", [False, True])
def test_phases_and_ramps_choose_how_to_multiply(transposable):
    net = st.sparsify(model(), {"*": {"transposable": transposable, "gradient": "24dense"}})
    phases = S.dense_sparse_dense(0.5, start=1, stop=3)
    whole = S.Transposable24() if transposable else S.Elastic((4, 8), least=2)
    ramp = S.LinearScheduler(0.5, stop=2)
    rules = {
        "0": S.Recipe(phases, pattern=S.Transposable24()),
        "2": S.Recipe(phases if transposable else ramp, pattern=whole),
        "*": S.Recipe(ramp),
    }
    scheduler, x, ways = S.MaskScheduler(rules), torch.randn(16, 32), []
    for _ in range(4):
        net.zero_grad()
        masks = st.update_masks(net, scheduler)
        ways.append([layer._way for layer in st.sparse_layers(net).values()])
        y = net(x)
        y.square().sum().backward()
        hidden = F.linear(x, net[0].weight * masks["0"], net[0].bias).relu()
        hidden = F.linear(hidden, net[2].weight * masks["2"], net[2].bias)
        want = F.linear(hidden, net[3].weight * masks["3"], net[3].bias)
        torch.testing.assert_close(y, want, **CLOSE)
        assert not net[2].weight.grad[~masks["2"]].any()
    ramped = ["dense", "masked", "weight", "weight"]
    phased = ["dense", "weight", "weight", "dense"]
    assert [way[0] for way in ways] == phased
    assert [way[1] for way in ways] == (phased if transposable else ramped)
    assert [way[2] for way in ways] == ["dense", "masked", "masked", "masked"]
    fresh = st.sparsify(model(), {"*": {}})
    fresh.load_state_dict(net.state_dict())
    torch.testing.assert_close(fresh(x), net(x), **CLOSE)


def test_unstructured_masks_multiply_densely():
    net = st.sparsify(model(), {"*": {"sparse": "masked", "gradient": "24dense"}})
    scheduler = S.DynamicScheduler(0.3, S.CosineScheduler(0.6, stop=3))
    x = torch.randn(16, 32)
    for _ in range(4):
        net.zero_grad()
        net(x).square().mean().backward()
        masks = st.update_masks(net, scheduler)
    zeros, total = (
        sum(int(f(m)) for m in masks.values()) for f in (lambda m: (~m).sum(), torch.numel)
    )
    assert zeros == int(0.6 * total)
    net.zero_grad()
    net(x).sum().backward()
    assert not net[0].weight.grad[~masks["0"]].any()


@pytest.mark.parametrize("gradient", ["ste", "24dense", "24sparse"])
def test_sparsify24_stands_in_for_xformers(device, gradient):
    layer, x = layer_and_input(device)
    a = st.sparsify24(layer.weight, gradient=gradient)
    mask = s24.mask(layer.weight.detach(), transposable=True)
    torch.testing.assert_close(a.to_dense(), layer.weight * mask)
    torch.testing.assert_close(a.t().to_dense(), (layer.weight * mask).t())
    y = F.linear(x, a, layer.bias)
    got = (y, *gradients(y, x, layer.weight, layer.bias))
    for p, q in zip(got, masked_reference(layer, x, mask, gradient, 0.0), strict=True):
        torch.testing.assert_close(p, q, **CLOSE)
    torch.testing.assert_close(a @ x.t(), (layer.weight * mask) @ x.t(), **CLOSE)
    assert F.linear(x.reshape(2, 6, 32), a).shape == (2, 6, 16)
    with pytest.raises(UnsupportedError, match=r"call .to_dense\(\) first"):
        a + 1


def test_to_sparse_semi_structured_as_a_parameter(device):
    layer, x = layer_and_input(device)
    with torch.no_grad():
        layer.weight.copy_(s24.prune(layer.weight.detach()))
    want = layer(x)
    layer.weight = torch.nn.Parameter(st.to_sparse_semi_structured(layer.weight.detach()))
    torch.testing.assert_close(layer(x), want, **CLOSE)
    with pytest.raises(PatternError, match="more than 2 non-zeros"):
        st.to_sparse_semi_structured(torch.ones(4, 8))


def test_two_data_parallel_processes_equal_one():
    context = torch.multiprocessing.get_context("spawn")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    results = context.Queue()
    ranks = [
        context.Process(target=data_parallel.train, args=(r, 2, port, results)) for r in range(2)
    ]
    for process in ranks:
        process.start()
    states = dict(results.get(timeout=60) for _ in ranks)
    for process in ranks:
        process.join(30)
    alone = queue.Queue()
    data_parallel.train(0, 1, port, alone)
    _, want = alone.get()
    for first, second, single in zip(states[0], states[1], want, strict=True):
        for key, value in single.items():
            np.testing.assert_array_equal(first[key], second[key])
            np.testing.assert_allclose(first[key], value, rtol=1e-4, atol=1e-5)
