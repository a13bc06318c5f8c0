"""A small layer of experts, and its comparison with dense products."""

from __future__ import annotations

import torch
from test_torch_experts import COUNTS, looped, offsets_of
from torch_cases import CLOSE, packings

from sparse24 import torch as st

E, K, M = len(COUNTS), 32, 16


def layer_and_input(device="cpu", counts=COUNTS, **options):
    torch.manual_seed(0)
    layer = st.SparseExperts(len(counts), K, M, device=device, **options)
    x = torch.randn(sum(counts), K, device=device, requires_grad=True)
    return layer, x, offsets_of(counts, device)


def assert_follows(layer, x, offsets, packs=None):
    """The layer multiplies by its weight as it is now, and packs it `packs` times."""
    with torch.no_grad():
        want = looped(x, layer.weight * layer.current_mask(), layer.bias, offsets)
        y, count = packings(lambda: layer(x, offsets))
    torch.testing.assert_close(y, want, **CLOSE)
    assert packs is None or count == packs
