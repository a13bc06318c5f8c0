"""`Sparse24Tensor`, which stands in for the tensors of xformers and of ``torch.sparse``."""

from __future__ import annotations

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch_cases import CLOSE, gradients, layer_and_input, masked_reference  # noqa: E402

import sparse24 as s24  # noqa: E402
from sparse24 import torch as st  # noqa: E402
from sparse24._errors import (  # noqa: E402
    DeviceError,
    DTypeError,
    PatternError,
    ShapeError,
    UnsupportedError,
)

F = torch.nn.functional


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
    with pytest.raises(UnsupportedError, match=r"cannot be multiplied; call .to_dense\(\)"):
        a @ a.t()


TURNS = {
    "as it is": lambda a: a.to_dense(),
    "turned": lambda a: a.t().to_dense().t(),
    "repeated": lambda a: a.expand(3, -1, -1).to_dense().mean(0),
    "turned copy": lambda a: a.mT.clone().to_dense().mT,
    "wider": lambda a: a.double().to_dense().float(),
}


@pytest.mark.parametrize("gradient", ["ste", "24dense", "24sparse"])
@pytest.mark.parametrize("turn", TURNS)
def test_a_pruned_weight_has_its_gradient_through_the_dense_matrix(gradient, turn):
    weight, outer = torch.randn(8, 16, requires_grad=True), torch.randn(8, 16)
    mask = s24.mask(weight.detach(), transposable=True)
    y = TURNS[turn](st.sparsify24(weight, gradient=gradient))
    torch.testing.assert_close(y, weight * mask)
    (got,) = torch.autograd.grad((y * outer).sum(), weight)
    torch.testing.assert_close(got, outer if gradient == "ste" else outer * mask)
    with torch.no_grad():
        assert not TURNS[turn](st.sparsify24(weight)).requires_grad


@pytest.mark.parametrize("gradient", ["ste", "24sparse"])
@pytest.mark.parametrize("use", [*TURNS, "linear", "product"])
def test_code_that_prunes_compiles(gradient, use):
    b = torch.randn(16, 16)
    uses = {**TURNS, "linear": lambda a: F.linear(b, a, b[0, :8]), "product": lambda a: a @ b}
    weight = torch.randn(8, 16, requires_grad=True)

    def run(weight):
        return uses[use](st.sparsify24(weight, gradient=gradient)).square()

    torch._dynamo.reset()  # the same code is compiled for few functions only
    y, got = run(weight), torch.compile(run, fullgraph=True, backend="aot_eager")(weight)
    torch.testing.assert_close(got, y, **CLOSE)
    ours, wanted = (torch.autograd.grad(result.sum(), weight) for result in (got, y))
    torch.testing.assert_close(ours, wanted, **CLOSE)


def test_a_packed_parameter_has_its_gradient_through_the_dense_matrix():
    packed = torch.nn.Parameter(st.to_sparse_semi_structured(torch.eye(8, 16)))
    for to_dense in (
        lambda a: a.to_dense(),
        torch.compile(lambda a: a.to_dense(), fullgraph=True, backend="aot_eager"),
    ):
        packed.grad = None
        (2 * to_dense(packed)).sum().backward()
        assert torch.equal(packed.grad, torch.full((8, 16), 2.0))


def test_to_sparse_semi_structured_as_a_parameter(device):
    layer, x = layer_and_input(device)
    with torch.no_grad():
        layer.weight.copy_(s24.prune(layer.weight.detach()))
    want = layer(x)
    layer.weight = torch.nn.Parameter(st.to_sparse_semi_structured(layer.weight.detach()))
    torch.testing.assert_close(layer(x), want, **CLOSE)
    with pytest.raises(PatternError, match="more than 2 non-zeros"):
        st.to_sparse_semi_structured(torch.ones(4, 8))


def test_it_is_turned_by_every_name_that_torch_has_for_it():
    dense = s24.prune(torch.randn(8, 8))
    a = st.to_sparse_semi_structured(dense)
    turned = [a.t(), a.T, a.mT, a.transpose(0, 1), a.transpose(-1, 0), a.permute(1, 0)]
    assert all(torch.equal(x.to_dense(), dense.t()) for x in turned)
    same = [a.transpose(0, 0), a.transpose(1, -1), a.permute(0, 1)]
    assert all(torch.equal(x.to_dense(), dense) for x in same)
    for axes in ((0, 5), (0, 2), (-3, 0)):
        with pytest.raises(ShapeError, match=r"axes of a Sparse24Tensor .* are -2 to 1, got"):
            a.transpose(*axes)
        with pytest.raises(ShapeError, match=r"axes of a Sparse24Tensor .* are -2 to 1, got"):
            a.permute(axes)
    for axes in ((0, 0), (0,), (0, -2), (0, 1, 1)):
        with pytest.raises(ShapeError, match=r"axes must name each of the 2 axes once, got .*;"):
            a.permute(axes)


def test_products_with_vectors_and_sums_that_are_not_read():
    dense = s24.prune(torch.randn(16, 8))
    a, x = st.to_sparse_semi_structured(dense), torch.randn(8)
    torch.testing.assert_close(a @ x, dense @ x, **CLOSE)
    torch.testing.assert_close(a.t() @ torch.ones(16), dense.sum(0), **CLOSE)
    nothing = torch.full((3, 16), torch.nan)
    got = torch.addmm(nothing, torch.ones(3, 8), a.t(), beta=0, alpha=2)
    torch.testing.assert_close(got, 2 * torch.ones(3, 8) @ dense.t(), **CLOSE)


def test_products_are_written_to_a_given_tensor():
    dense, x = s24.prune(torch.randn(16, 8)), torch.randn(3, 8)
    a, out = st.to_sparse_semi_structured(dense), torch.empty(3, 16)
    assert torch.matmul(x, a.t(), out=out) is out
    torch.testing.assert_close(out, x @ dense.t(), **CLOSE)
    with pytest.raises(ShapeError, match=r"out must have the shape of the product"):
        torch.mm(x, a.t(), out=torch.empty(3, 8))
    with pytest.raises(DTypeError, match=r"out must have dtype torch.float32, got torch.float16"):
        torch.mm(x, a.t(), out=torch.empty(3, 16, dtype=torch.float16))


@pytest.mark.parametrize("shape", [(4,), (1,), (), (3, 1), (1, 4)])
def test_sums_are_spread_as_torch_does(shape):
    weight, x, bias = torch.eye(4, 8), torch.randn(3, 8), torch.randn(shape)
    a = st.to_sparse_semi_structured(weight)
    want = torch.addmm(bias, x, weight.t())
    torch.testing.assert_close(torch.addmm(bias, x, a.t()), want)
    torch.testing.assert_close(torch.nn.functional.linear(x, a, bias), want)
    for wrong in ((5,), (2, 3, 4), (1, 3, 4), (3, 2)):
        for beta, alpha in ((1, 1), (1, 2), (0, 1)):
            with pytest.raises(ShapeError, match=r"bias must broadcast .* \(3, 4\), got .*; resh"):
                torch.addmm(torch.ones(wrong), x, a.t(), beta=beta, alpha=alpha)
    with pytest.raises(ShapeError, match=r"bias must broadcast .* \(4, 1\), got shape \(4, 2\)"):
        torch.addmm(torch.ones(4, 2), a, torch.ones(8, 1))


@pytest.mark.parametrize("transposable", [False, True])
def test_a_layer_with_a_packed_parameter_is_a_layer_as_any(transposable):
    layer, x = layer_and_input()
    weight = st.sparsify24(layer.weight) if transposable else None
    with torch.no_grad():
        layer.weight.copy_(weight.to_dense() if transposable else s24.prune(layer.weight))
    want = layer(x)
    packed = weight.detach() if transposable else st.to_sparse_semi_structured(layer.weight)
    layer.weight = torch.nn.Parameter(packed)
    for net in (layer, copy.deepcopy(layer)):
        torch.testing.assert_close(net(x), want, **CLOSE)
    wide = layer.double()
    assert len(wide.weight.parts) == (4 if transposable else 2)
    torch.testing.assert_close(wide(x.double()), want.double(), **CLOSE)
    turned = wide.weight.t().to(torch.float16)
    assert turned.dtype == torch.float16
    assert torch.equal(turned.to_dense(), wide.weight.to_dense().t().half())


def test_a_packed_matrix_belongs_to_no_graph():
    weight = torch.eye(4, 8, requires_grad=True)
    assert not (torch.ones(1, 8) @ st.to_sparse_semi_structured(weight).t()).requires_grad


def test_a_packed_matrix_is_not_read_as_a_dense_one():
    packed = st.to_sparse_semi_structured(torch.eye(4))
    for reads in (
        np.from_dlpack, torch.from_dlpack, np.asarray, lambda x: x.tolist(),
        lambda x: x.apply_(abs), lambda x: x.map_(torch.eye(4), max),
    ):  # fmt: skip
        with pytest.raises(UnsupportedError, match=r"no dense memory .*\.to_dense\(\)"):
            reads(packed)
    ways = r"x must be .* got a Sparse24Tensor.*\.to_dense\(\).*\.to_array\(\)"
    with pytest.raises(DTypeError, match=ways):
        s24.compress(packed)


def test_a_packed_matrix_is_pinned_with_its_parts(device):
    packed = st.to_sparse_semi_structured(torch.eye(4))
    assert not packed.is_pinned()
    if device == "cuda":
        pinned = packed.pin_memory()
        assert pinned.is_pinned()
        assert torch.equal(pinned.to_dense(), torch.eye(4))


def test_a_layer_with_a_packed_parameter_moves_to_shared_memory():
    layer = torch.nn.Linear(8, 4)
    layer.weight = torch.nn.Parameter(st.to_sparse_semi_structured(s24.prune(layer.weight)))
    with torch.no_grad():
        want = layer(torch.ones(2, 8))
        assert not layer.weight.is_shared()
        assert layer.share_memory().weight.is_shared()
        torch.testing.assert_close(layer(torch.ones(2, 8)), want)


@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_with_a_packed_parameter_compiles(bias):
    layer = torch.nn.Linear(64, 32, bias=bias).requires_grad_(False)
    layer.weight *= s24.mask(layer.weight)
    xs = [torch.randn(*shape) for shape in ((4, 64), (7, 64), (2, 3, 64))]
    want = [layer(x) for x in xs]
    packed = st.to_sparse_semi_structured(layer.weight)
    layer.weight = torch.nn.Parameter(packed, requires_grad=False)
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for x, y in zip(xs, want, strict=True):
        torch.testing.assert_close(layer(x), y, **CLOSE)
        torch.testing.assert_close(compiled(x), y, **CLOSE)


def test_compiled_code_is_kept_by_what_it_depends_on():
    """Torch warns of a tensor without such a key, which must be the same in every process."""
    w = s24.prune(torch.randn(64, 64))
    packed = st.to_sparse_semi_structured(w)
    key = packed._stable_hash_for_caching()
    assert st.to_sparse_semi_structured(s24.prune(-w))._stable_hash_for_caching() == key
    others = [
        packed.t(), packed.double(), st.sparsify24(w), packed.detach().requires_grad_(),
        st.to_sparse_semi_structured(w[:32]),
    ]  # fmt: skip
    keys = {key, *(other._stable_hash_for_caching() for other in others)}
    assert len(keys) == 1 + len(others)


def test_operands_and_biases_of_products_are_looked_at():
    a, x = st.to_sparse_semi_structured(torch.eye(4, 8)), torch.ones(2, 8)
    for apart in (lambda: F.linear(x, a.to("meta")), lambda: a @ x.T.to("meta")):
        with pytest.raises(DeviceError, match="the Sparse24Tensor must be on the device of x"):
            apart()
    with pytest.raises(DeviceError, match="bias must be on the device of x, cpu, got meta"):
        F.linear(x, a, torch.ones(4, device="meta"))
    for wrong in (x.int(), x > 0):
        with pytest.raises(DTypeError, match=r"x must be of one of .* use for example x\.to\("):
            F.linear(wrong, a)
    for dense, bias in ((x.to_sparse(), None), (x, torch.ones(4).to_sparse())):
        with pytest.raises(DTypeError, match=r"must be a dense tensor, got layout .*\.to_dense\("):
            F.linear(dense, a, bias)
    bias = torch.full((4,), 1j)
    for layer in (lambda: F.linear(x, a, bias), lambda: st.linear(x, torch.eye(4, 8), bias)):
        with pytest.raises(DTypeError, match=r"bias must hold real numbers, .* pass .* bias\.real"):
            layer()


def test_a_product_is_scaled_before_it_is_rounded_to_float16():
    w = s24.prune(torch.full((4, 64), 100.0, dtype=torch.float16))
    x, packed = torch.full((2, 64), 100.0, dtype=torch.float16), st.to_sparse_semi_structured(w)
    for bias in (torch.ones(4).half(), torch.ones(2, 4), torch.tensor(1.0)):
        for beta in (0, 1, 2):
            got = torch.addmm(bias, x, packed.t(), alpha=2**-8, beta=beta)
            assert got.dtype == (bias.dtype if beta and bias.ndim else torch.float16)
            assert torch.equal(got.float(), torch.full((2, 4), 1250.0 + beta))
    left = torch.addmm(torch.ones(4, 1).half(), packed, x.t(), alpha=2**-8)
    assert torch.equal(left, torch.full((4, 2), 1251.0, dtype=torch.float16))
