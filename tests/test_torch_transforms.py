"""Derivatives that sparse products do not have are refused: of second order, in forward mode, of
torch.func's transforms."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad  # noqa: E402
from torch.func import functional_call, grad, jvp, stack_module_state, vmap  # noqa: E402

import sparse24 as s24  # noqa: E402
from sparse24 import torch as st  # noqa: E402
from sparse24._errors import UnsupportedError  # noqa: E402

NO_TRANSFORMS = r"not by torch\.func's transforms.*use those, or sparse='masked'"
NO_SECOND = "first derivatives only.*use sparse='masked'"
CALLS = {
    "weight": st.SparseLinear(8, 4),
    "activation": st.SparseLinear(8, 4, sparse="activation"),
    "feed_forward": lambda x: st.feed_forward(x, torch.ones(4, 8), torch.ones(4, 4)),
    "sparsify24": lambda x: st.sparsify24(x) @ torch.ones(8, 1),
}
call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


@call
def test_sparse_products_are_refused_within_transforms(call):
    with pytest.raises(UnsupportedError, match=NO_TRANSFORMS):
        grad(lambda x: call(x).sum())(torch.ones(2, 8))


@call
def test_compiled_transforms_are_refused_too(call, compiles_anew):
    """Traced without a look at them, their gradients would be zero."""

    def gradient(x):
        return grad(lambda x: call(x).sum())(x)

    x = torch.ones(2, 8)
    with pytest.raises(UnsupportedError, match=NO_TRANSFORMS):
        torch.compile(gradient, backend="eager")(x)
    with pytest.raises(UnsupportedError, match=NO_TRANSFORMS):
        torch.compile(vmap(call), backend="eager")(x[None])
    if not isinstance(call, torch.nn.Module):
        return
    with torch.no_grad(), pytest.raises(UnsupportedError, match=NO_TRANSFORMS):
        torch.compile(vmap(call), backend="eager")(x[None])


def test_code_that_is_compiled_for_training_is_refused_within_transforms(compiles_anew):
    layer = CALLS["weight"]
    compiled = torch.compile(lambda x: layer(x).sum(), backend="eager")
    compiled(torch.ones(2, 8)).backward()
    with pytest.raises(UnsupportedError, match=NO_TRANSFORMS):
        grad(compiled)(torch.ones(2, 8))


def test_importing_the_bridge_does_not_import_the_compiler():
    code = "import sys, sparse24.torch; print('torch._dynamo' in sys.modules)"
    out = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert out.stdout.strip() == "False", out.stderr


@call
def test_derivatives_in_forward_mode_are_refused(call):
    with forward_ad.dual_level(), pytest.raises(UnsupportedError, match=NO_TRANSFORMS):
        call(forward_ad.make_dual(torch.ones(2, 8), torch.ones(2, 8)))


def test_without_gradients_nothing_that_transforms_follow_is_lost():
    layers = [st.SparseLinear(8, 4) for _ in range(3)]
    x, weights = torch.ones(3, 2, 8), stack_module_state(layers)
    with torch.no_grad():
        with pytest.raises(UnsupportedError, match=NO_TRANSFORMS):
            vmap(layers[0])(x)
        with pytest.raises(UnsupportedError, match=NO_TRANSFORMS):
            vmap(lambda given: functional_call(layers[0], given, (x,)))(weights[0])
        with forward_ad.dual_level(), pytest.raises(UnsupportedError, match=NO_TRANSFORMS):
            layers[0](forward_ad.make_dual(x, x))
        assert layers[0](x).shape == (3, 2, 4)


def test_batched_gradients_are_refused():
    x = torch.ones(2, 8, requires_grad=True)
    y = CALLS["weight"](x)
    with pytest.raises(UnsupportedError, match=NO_TRANSFORMS):
        torch.autograd.grad(y, x, torch.ones(5, 2, 4), is_grads_batched=True)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_masked_layers_are_followed_by_transforms(decay):
    layer, x = st.SparseLinear(8, 4, sparse="masked", decay=decay), torch.randn(3, 8)
    layer.set_mask(s24.mask(layer.weight))

    def loss(given, x):
        return functional_call(layer, given, (x,)).square().sum()

    weights = dict(layer.named_parameters())
    got = vmap(grad(loss), (None, 0))(weights, x)
    for number, row in enumerate(x):
        want = torch.autograd.grad(loss(weights, row), list(weights.values()))
        for name, gradient in zip(weights, want, strict=True):
            torch.testing.assert_close(got[name][number], gradient)


def test_masked_layers_that_decay_are_refused_in_forward_mode_alone():
    layer, x = st.SparseLinear(8, 4, sparse="masked", decay=0.1), torch.randn(3, 8)
    layer.set_mask(s24.mask(layer.weight))
    weight = layer.weight.detach()

    def output(weight, x):
        return functional_call(layer, {"weight": weight}, (x,))

    words = r"decay=0\.1 is added to gradients by backward.* forward mode .*; use decay=0"
    with pytest.raises(UnsupportedError, match=words):
        jvp(lambda weight: output(weight, x), (weight,), (weight,))
    with forward_ad.dual_level(), pytest.raises(UnsupportedError, match=words):
        output(forward_ad.make_dual(weight, weight), x)
    layer.rule = dataclasses.replace(layer.rule, decay=0.0)
    _, tangent = jvp(lambda weight: output(weight, x), (weight,), (weight,))
    torch.testing.assert_close(tangent, x @ weight.T)


@pytest.mark.parametrize("name", ["weight", "activation", "feed_forward"])
def test_a_gradient_of_gradients_is_refused(name):
    call, x = CALLS[name], torch.randn(4, 8, requires_grad=True)
    (gradient,) = torch.autograd.grad(call(x).square().sum(), x, create_graph=True)
    gradient.mul_(2)  # as of dense layers
    with pytest.raises(UnsupportedError, match=NO_SECOND):
        gradient.square().sum().backward()
    with pytest.raises(UnsupportedError, match=NO_SECOND):
        torch.autograd.functional.hessian(lambda x: call(x).square().sum(), x)


def test_a_gradient_that_depends_on_a_weight_alone_is_no_constant():
    """As the penalty of a critic's gradients, whose last layer sees no gradient that learns."""
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), st.SparseLinear(16, 1))
    x = torch.randn(4, 8, requires_grad=True)
    (gradient,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
    with pytest.raises(UnsupportedError, match=NO_SECOND):
        (gradient.norm(dim=1) - 1).square().mean().backward()


def test_second_derivatives_that_pass_a_sparse_layer_by_are_right():
    first, last = torch.nn.Linear(8, 16), st.SparseLinear(16, 4).requires_grad_(False)
    dense = torch.nn.functional.linear
    x, got = torch.randn(4, 8, requires_grad=True), []
    for sparse in (True, False):
        hidden = first(x).tanh()
        y = last(hidden) if sparse else dense(hidden, last.weight * last.current_mask())
        (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        got.append(torch.autograd.grad(gradient.square().sum(), first.weight)[0])
    torch.testing.assert_close(*got)
