"""What experts refuse: operands, offsets, options and derivatives, each with a way out."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from test_torch_experts import operands  # noqa: E402

import sparse24 as s24  # noqa: E402
from sparse24 import torch as st  # noqa: E402
from sparse24._errors import (  # noqa: E402
    ArgumentError,
    DeviceError,
    DTypeError,
    PatternError,
    ShapeError,
    UnsupportedError,
)


def refused(error, words, x, weight, bias=None, offsets=(0, 2, 2, 5), **options):
    with pytest.raises(error, match=words):
        st.grouped_linear(x, weight, bias, offsets=offsets, **options)


def test_operands_that_do_not_fit_are_refused():
    x, weight = torch.ones(5, 8), torch.ones(3, 4, 8)
    refused(DTypeError, r"x must be a torch\.Tensor, got list", [[1.0]], weight)
    refused(DTypeError, r"weight must be a torch\.Tensor, got Sparse24", x, s24.random((3, 4, 8)))
    words = r"x must have shape \(t, k\) and weight \(e, m, k\), got .*flatten\(0, -2\)"
    for wrong in ((x[None], weight), (x, weight[0]), (x[:, :4], weight)):
        refused(ShapeError, words, *wrong)
    for kind in (torch.int8, torch.int64, torch.complex64, torch.float8_e5m2):
        words = rf"must be of one of the types float16, bfloat16, float32, float64, got {kind};"
        refused(DTypeError, f"x {words} use for example x.to", x.to(kind), weight)
        refused(DTypeError, f"weight {words}", x, weight.to(kind))
    words = r"bias must have shape \(e, m\) = \(3, 4\), a row for each expert, got \(4,\)"
    refused(ShapeError, words, x, weight, torch.ones(4))
    words = r"mask must have the shape of weight, \(3, 4, 8\), got \(4, 8\)"
    refused(ShapeError, words, x, weight, mask=weight[0] > 0)
    refused(DTypeError, r"mask must be boolean, .*; use mask != 0", x, weight, mask=weight)
    words = r"mask\[0, 0, 0:4\] keeps more than 2 elements, the first of 24 such groups"
    refused(PatternError, words, x, weight, mask=weight > 0)
    for name, given in (("weight", weight), ("bias", weight[..., 0]), ("mask", weight > 0)):
        words = f"{name} must be on the device of x, cpu, got meta"
        refused(DeviceError, words, x, **{"weight": weight, name: given.to("meta")})


@pytest.mark.parametrize(
    ("offsets", "error", "words"),
    [
        ([0, 5], ShapeError, r"offsets must have shape \(e \+ 1,\) = \(4,\) for 3 .*\(2,\)"),
        (torch.tensor([[0, 1, 2, 5]]), ShapeError, r"offsets must have shape .*, got \(1, 4\)"),
        (5, ShapeError, r"offsets must have shape .*, got \(\); it begins with 0"),
        (None, DTypeError, r"offsets must be a torch\.Tensor or a list of integers, got None"),
        ([0, 1.5, 2, 5], DTypeError, r"must hold integers, got torch\.float32; .*torch\.int64"),
        ([False] * 4, DTypeError, r"offsets must hold integers, got torch\.bool"),
        ([1, 1, 2, 5], ArgumentError, "offsets must begin with 0, the first token, got 1;"),
        ([0, 1, 2, 4], ArgumentError, "offsets must end with the number of tokens, 5, got 4"),
        ([0, 3, 2, 5], ArgumentError, "must not decrease, got 3 at 1 and 2 at 2; .*cumulative"),
        (torch.zeros(4, device="meta"), DTypeError, r"must hold integers, got torch\.float32"),
        (torch.zeros(4, device="meta").long(), DeviceError, "device of x, cpu, or on .* got meta"),
    ],
)
def test_offsets_that_do_not_split_the_tokens_are_refused(offsets, error, words):
    x, weight = torch.ones(5, 8), torch.ones(3, 4, 8)
    refused(error, words, x, weight, offsets=offsets)
    layer = st.SparseExperts(3, 8, 4)
    layer.set_mask(torch.ones_like(layer.weight, dtype=torch.bool), way="masked")
    with pytest.raises(error, match=words):
        layer(x, offsets)


@pytest.mark.gpu
def test_small_integers_stay_on_the_host():
    x, weight = torch.ones(5, 8, device="cuda"), torch.ones(3, 4, 8, device="cuda")
    offsets = torch.tensor([0, 2, 2, 5], dtype=torch.uint8)
    assert st.grouped_linear(x, weight, offsets=offsets).shape == (5, 4)
    refused(DTypeError, r"on a GPU must be int32 or int64, got torch\.uint8; .*torch\.int32", x,
            weight, offsets=offsets.cuda())  # fmt: skip


def test_options_that_experts_do_not_have_are_refused():
    x, weight = torch.ones(5, 8), torch.ones(3, 4, 8)
    for gradient in ("24sparse", "ste_sampled"):
        words = f"gradient='{gradient}' samples along the tokens, .* use 'ste' or '24dense'"
        refused(UnsupportedError, words, x, weight, gradient=gradient)
        with pytest.raises(UnsupportedError, match=words):
            st.SparseExperts(2, 8, 4, gradient=gradient)
    refused(ArgumentError, "gradient must be one of 'ste', '24dense'", x, weight, gradient="dense")
    refused(ArgumentError, "transposable must be one of True, False", x, weight, transposable=2)
    refused(ArgumentError, "decay must be at least 0 and finite, got -1", x, weight, decay=-1)


def test_other_derivatives_are_refused():
    x, weight, _, offsets = operands()

    def call(x):
        return st.grouped_linear(x, weight, offsets=offsets)

    transforms = r"not by torch\.func's transforms.*use those, or sparse='masked' in linear layers"
    with pytest.raises(UnsupportedError, match=transforms):
        torch.func.grad(lambda x: call(x).sum())(x)
    with torch.autograd.forward_ad.dual_level(), pytest.raises(UnsupportedError, match=transforms):
        call(torch.autograd.forward_ad.make_dual(x.detach(), x.detach()))
    with pytest.raises(UnsupportedError, match=transforms):
        torch.autograd.grad(call(x), x, torch.ones(3, len(x), 16), is_grads_batched=True)
    (gradient,) = torch.autograd.grad(call(x).square().sum(), x, create_graph=True)
    with pytest.raises(UnsupportedError, match="first derivatives only"):
        gradient.square().sum().backward()
