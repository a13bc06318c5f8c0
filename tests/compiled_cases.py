"""Layers in compiled code, and their comparison with eager ones."""

from __future__ import annotations

import torch
from torch_cases import CLOSE, packings

from sparse24 import torch as st

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


def other_state(layer):
    return st.SparseLinear(K, M, device=layer.weight.device).state_dict()
