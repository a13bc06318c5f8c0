"""Operators of squared relu: packed in one pass, and its gradient in the packed places."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import library  # noqa: E402

from sparse24 import torch as st  # noqa: E402
from sparse24._torch import ops  # noqa: E402
from sparse24._torch import repack as torch_repack  # noqa: E402
from sparse24._torch import replay as torch_replay  # noqa: E402
from sparse24._torch.squared_relu import pack_squared_relu, squared_relu_gradient  # noqa: E402

pytestmark = pytest.mark.stem("transposable", "like")

HALF, BRAIN = torch.float16, torch.bfloat16
SHAPES = [(64, 128), (12, 20), (132, 260), (37, 53), (1, 4), (0, 8), (512, 384)]
LAYOUTS = {
    "rows": lambda x: x,
    "columns": lambda x: x.t().contiguous().t(),
    "part of wider rows": lambda x: torch.cat([x, x], 1)[:, : x.shape[1]],
    "off by an element": lambda x: torch.cat([x[:, :1], x], 1)[:, 1:],
}


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch):
    monkeypatch.setattr(torch_replay, "_known", {})


def draw(shape, dtype, device):
    """Normal numbers with zeros of both signs."""
    x = torch.randn(shape, device=device)
    x[torch.rand(shape, device=device) < 0.1] = 0.0
    x[torch.rand(shape, device=device) < 0.1] = -0.0
    return x.to(dtype)


def bits(x):
    return x.reshape(-1).clone().view(torch.uint8)


def unpacked(parts, m, k):
    return ops.dense(parts[:2], m, k), ops.dense(parts[2:], k, m).t()


@pytest.mark.parametrize("dtype", [HALF, BRAIN, torch.float32, torch.float64])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_what_is_packed_is_the_squared_relu(device, dtype, layout, shape):
    for _ in range(2):  # the second time by what the first one prepared
        x = LAYOUTS[layout](draw(shape, dtype, device))
        want = ops.pack(x.relu().square(), None, True)
        for got, wanted in zip(unpacked(pack_squared_relu(x), *shape), unpacked(want, *shape)):
            assert torch.equal(bits(got), bits(wanted))


@pytest.mark.parametrize("dtype", [HALF, BRAIN])
def test_infinities_and_nan_are_kept(device, dtype):
    x = draw((64, 128), dtype, device)
    x[3, 5], x[9, 17], x[40, 80] = float("inf"), float("nan"), float("-inf")
    x[20:24, 60:64] = float("nan")
    for got in unpacked(pack_squared_relu(x), 64, 128):
        assert torch.isinf(got[3, 5])
        assert torch.isnan(got[9, 17])
        assert got[40, 80] == 0
        assert torch.isnan(got[20:24, 60:64]).sum() == 8


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [HALF, BRAIN])
def test_a_gpu_packs_in_one_pass(dtype):
    x = draw((64, 128), dtype, "cuda")
    pack_squared_relu(x)
    assert torch_replay.find(torch_repack.packing_key(x, None, True, squared=True)) is not None
    assert torch_replay.find(torch_repack.packing_key(x.relu().square(), None, True)) is None


@pytest.mark.parametrize("dtype", [HALF, BRAIN, torch.float32, torch.float64])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_gradient_is_that_of_the_kept_squares(device, dtype, layout, shape):
    parts = pack_squared_relu(draw(shape, dtype, device))
    gradient = LAYOUTS[layout](draw(shape, dtype, device))
    rows, columns = squared_relu_gradient(parts, *shape, gradient)
    for squares, got in zip(
        unpacked(parts, *shape), unpacked([rows, parts[1], columns, parts[3]], *shape)
    ):
        want = gradient.double() * 2 * squares.double().sqrt()
        # Two roundings to this type on the CPU, one on a GPU.
        torch.testing.assert_close(got.double(), want, rtol=4 * torch.finfo(dtype).eps, atol=1e-7)
        assert not torch.signbit(got[got == 0]).any() or device == "cpu"


def test_a_wider_gradient_is_narrowed(device):
    """As torch narrows that of activations of 16 bits."""
    x = draw((12, 20), BRAIN, device)
    up, down = (torch.randn(20, 20, device=device) / 4 for _ in range(2))
    x.requires_grad_()
    y = st.feed_forward(x, up.to(BRAIN), down)
    y.sum().backward()
    narrow = x.detach().clone().requires_grad_()
    st.feed_forward(narrow, up.to(BRAIN), down.to(BRAIN)).float().sum().backward()
    torch.testing.assert_close(x.grad, narrow.grad, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("wide", [torch.float32, torch.float64, HALF])
def test_a_narrower_weight_meets_wider_activations(device, wide):
    x = draw((12, 20), wide, device)
    up = (torch.randn(24, 20, device=device) / 4).to(wide)
    down = torch.randn(8, 24, device=device).to(BRAIN)
    found = []
    for other in (down, down.to(torch.promote_types(wide, BRAIN))):
        given = [operand.clone().requires_grad_() for operand in (x, up, other)]
        st.feed_forward(*given).sum().backward()
        assert all(operand.grad.dtype == operand.dtype for operand in given)
        found.append([operand.grad.double() for operand in given])
    for got, want in zip(*found):
        torch.testing.assert_close(got, want, rtol=0.02, atol=0.02)


def test_tracing_knows_the_shapes(device):
    x = draw((12, 20), BRAIN, device)
    parts = pack_squared_relu(x)
    library.opcheck(pack_squared_relu, (x,))
    library.opcheck(squared_relu_gradient, (parts, 12, 20, x))
