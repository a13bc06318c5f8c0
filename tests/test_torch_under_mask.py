"""Gradients under a mask: by the kernel where tensors lie as it takes them, else by torch."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from sparse24._torch.under_mask import under_mask  # noqa: E402

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
LARGE = (96, 1024)


def operands(device, dtype, shape):
    generator = torch.Generator().manual_seed(sum(shape))
    x = torch.randn(shape, generator=generator).to(device, dtype)
    x.view(-1)[::7] = float("inf")
    x.view(-1)[::5] = float("nan")
    return x, (torch.rand(shape, generator=generator) < 0.5).to(device)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [LARGE, (2, *LARGE), (LARGE[0] + 1, 1023), (5, 3), (0, 4)])
@pytest.mark.stem("like")
def test_elements_elsewhere_become_zero(device, dtype, shape):
    x, mask = operands(device, dtype, shape)
    want = torch.where(mask, x, 0)
    for _ in range(2):  # the second time as it is remembered
        got = under_mask(x, mask)
        assert got.dtype == dtype
        assert got.is_contiguous()
        assert torch.equal(got.nan_to_num(7), want.nan_to_num(7))
        assert not got[~mask].any()


@pytest.mark.stem("like")
def test_any_strides_and_addresses(device):
    x, mask = operands(device, torch.bfloat16, LARGE)
    want = torch.where(mask, x, 0).nan_to_num(7)
    assert torch.equal(under_mask(x.t(), mask.t()).nan_to_num(7), want.t())
    shifted = torch.empty(mask.numel() + 3, dtype=torch.bool, device=device)[3:].view(mask.shape)
    shifted.copy_(mask)
    assert torch.equal(under_mask(x, shifted).nan_to_num(7), want)
