"""The torch bridge against dense layers with masked weights, on either device."""

from __future__ import annotations

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from data_parallel import model  # noqa: E402
from torch_cases import CLOSE, gradients, layer_and_input, masked_reference  # noqa: E402

import sparse24 as s24  # noqa: E402
from sparse24 import schedule as S  # noqa: E402
from sparse24 import torch as st  # noqa: E402
from sparse24._errors import ArgumentError, DTypeError, ShapeError  # noqa: E402

F = torch.nn.functional


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


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("shape", [(9, 1), (4, 2), (5, 33), (16, 7)])
def test_gradients_keep_to_the_mask_in_cut_tiles(device, shape, decay):
    """Rows of a tile that the edge cuts may keep fewer than the two places that a code names."""
    layer, x = layer_and_input(device, m=shape[0], k=shape[1])
    options = {"gradient": "24dense", "transposable": True, "decay": decay}
    sparse = st.SparseLinear.from_dense(layer, **options)
    y = sparse(x)
    got = (y, *gradients(y, x, layer.weight, layer.bias))
    reference = masked_reference(layer, x, sparse.current_mask(), "24dense", decay)
    for a, b in zip(got, reference, strict=True):
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
    with pytest.raises(ArgumentError, match="a soft layer takes no mask"):
        st.SparseLinear(8, 8, soft=True).set_mask(torch.ones(8, 8, dtype=torch.bool))


def test_a_layer_shows_how_it_learns():
    layer = st.SparseLinear(8, 8, gradient="24dense", decay=0.1)
    assert repr(layer) == (
        "SparseLinear(in_features=8, out_features=8, bias=True, sparse='weight', "
        "gradient='24dense', transposable=False, decay=0.1, soft=False)"
    )


def test_leading_axes_odd_sizes_and_no_bias():
    sparse = st.SparseLinear(10, 6, bias=False)
    x = torch.randn(2, 3, 10)
    y = sparse(x)
    assert y.shape == (2, 3, 6)
    torch.testing.assert_close(y, F.linear(x, sparse.weight * sparse.current_mask()), **CLOSE)
    with pytest.raises(ShapeError, match=r"x must have shape \(..., k\) and weight \(m, k\)"):
        sparse(torch.randn(2, 8))
    with pytest.raises(DTypeError, match=r"x must be a torch\.Tensor, got ndarray"):
        sparse(np.ones((2, 10), np.float32))


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
def test_compiles_without_graph_breaks(rule, device, compiles_anew):
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


@pytest.mark.parametrize("shape", [(5,), (1,), (), (3, 1), (1, 5), (1, 1, 4)])
def test_a_bias_is_one_number_a_row(shape):
    x, weight, bias = torch.randn(3, 8), torch.randn(4, 8), torch.ones(shape)
    for sparse in ("weight", "masked", "activation"):
        with pytest.raises(ShapeError, match=r"bias must have shape \(4,\) or \(1, 4\)"):
            st.linear(x, weight, bias, sparse=sparse)
    with pytest.raises(ShapeError, match=r"up_bias must have shape \(4,\) or \(1, 4\)"):
        st.feed_forward(x, weight, torch.ones(2, 4), bias)
    with pytest.raises(ShapeError, match=r"down_bias must have shape \(2,\) or \(1, 2\)"):
        st.feed_forward(x, weight, torch.ones(2, 4), None, bias)


@pytest.mark.parametrize("sparse", ["weight", "masked", "activation"])
def test_a_bias_may_be_a_row(sparse):
    layer = st.SparseLinear(8, 4, sparse=sparse)
    row = torch.nn.Parameter(layer.bias.detach()[None].clone())
    x = torch.randn(2, 3, 8)
    want = layer(x)
    y = st.linear(x, layer.weight, row, mask=layer.mask, sparse=sparse)
    assert torch.equal(y, want)
    dy = torch.randn_like(y)
    (got,), (of_vector,) = (
        torch.autograd.grad((out * dy).sum(), b) for out, b in ((y, row), (want, layer.bias))
    )
    assert torch.equal(got, of_vector[None])
    layer.bias = row  # as torch's own layers take it
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(layer(x), want)
    up, down = torch.randn(16, 8), torch.randn(4, 16)
    biases = torch.randn(16), torch.randn(4)
    want = st.feed_forward(x, up, down, *biases)
    assert torch.equal(st.feed_forward(x, up, down, *(b[None] for b in biases)), want)
