"""Layers whose activations are pruned to 2:4, and feed-forward blocks of them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch_cases import CLOSE, gradients, layer_and_input  # noqa: E402

import sparse24 as s24  # noqa: E402
from sparse24 import torch as st  # noqa: E402
from sparse24._errors import ShapeError  # noqa: E402

F = torch.nn.functional


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
