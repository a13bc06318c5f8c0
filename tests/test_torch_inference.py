"""Without gradients a layer keeps its packed weight until that changes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch_cases import CLOSE, layer_and_input  # noqa: E402

import sparse24 as s24  # noqa: E402
from sparse24 import torch as st  # noqa: E402

F = torch.nn.functional


def test_inference_packs_once_until_the_weight_changes(device):
    layer, x = layer_and_input(device)
    sparse = st.SparseLinear.from_dense(layer)
    with torch.no_grad():
        first = sparse(x)
        packed = sparse._packed.weight
        torch.testing.assert_close(sparse(x), first, rtol=0, atol=0)
        assert sparse._packed.weight is packed
        layer.weight.mul_(2)
        want = F.linear(x, layer.weight * sparse.current_mask(), layer.bias)
        torch.testing.assert_close(sparse(x), want, **CLOSE)


def test_inference_under_autocast_packs_what_it_casts(device):
    layer, x = layer_and_input(device)
    sparse = st.SparseLinear.from_dense(layer)
    with torch.no_grad():
        plain = sparse(x)
        with torch.autocast(device, torch.bfloat16):
            first = sparse(x)
            packed = sparse._packed.weight
            torch.testing.assert_close(sparse(x), first, rtol=0, atol=0)
            assert sparse._packed.weight is packed
            assert first.dtype is torch.bfloat16
            mask = s24.mask(layer.weight.bfloat16())
            want = F.linear(x, layer.weight * mask, layer.bias)
            torch.testing.assert_close(first, want, rtol=3e-2, atol=3e-2)
        torch.testing.assert_close(sparse(x), plain, rtol=0, atol=0)


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
