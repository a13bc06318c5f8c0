"""Layers, inputs and gradients for the tests of the torch bridge."""

from __future__ import annotations

from unittest.mock import patch

import torch

from sparse24 import torch as st
from sparse24._torch import repack as torch_repack

CLOSE = {"rtol": 1e-4, "atol": 1e-4}
WAYS = {  # in which a matrix that allows it is packed
    "along rows": st.to_sparse_semi_structured,
    "along columns": lambda w: st.to_sparse_semi_structured(w.t().contiguous()).t(),
    "both ways": lambda w: st.sparsify24(w),
    "both ways, turned": lambda w: st.sparsify24(w.t().contiguous()).t(),
}


def layer_and_input(device="cpu", tokens=12, m=16, k=32, dtype=torch.float32):
    layer = torch.nn.Linear(k, m, device=device, dtype=dtype)
    return layer, torch.randn(tokens, k, device=device, dtype=dtype, requires_grad=True)


def gradients(y, *tensors):
    torch.manual_seed(1)
    return torch.autograd.grad((y * torch.randn_like(y)).sum(), tensors)


def masked_reference(layer, x, mask, gradient, decay):
    weight = (layer.weight * mask).detach().requires_grad_()
    y = torch.nn.functional.linear(x, weight, layer.bias)
    dx, dw, db = gradients(y, x, weight, layer.bias)
    dw = dw if gradient == "ste" else dw * mask
    return y, dx, dw + decay * layer.weight.detach() * ~mask, db


def masked_step(net, x, scheduler):
    """A step of gradient descent, with an update of the masks before it."""
    net.zero_grad()
    net(x).square().mean().backward()
    st.update_masks(net, scheduler)
    with torch.no_grad():
        for p in net.parameters():
            p -= 0.1 * p.grad


def packings(call):
    """The result of a call, and how often a matrix is packed in it, by whatever code."""
    with patch.object(torch_repack, "packing_key", wraps=torch_repack.packing_key) as asked:
        result = call()
    return result, asked.call_count
