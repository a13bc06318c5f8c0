"""Packed weights of 8 bits beside tokens of other types, also compiled and scaled."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch")

import sparse24 as s24  # noqa: E402
from sparse24 import _dtypes  # noqa: E402
from sparse24 import torch as st  # noqa: E402


@pytest.mark.parametrize(("of_weight", "of_x"), [*itertools.product(_dtypes.NAMES, repeat=2)])
def test_graphs_know_the_types_of_products(of_weight, of_x):
    """Torch itself promotes no fp8."""
    weight = st.to_sparse_semi_structured(s24.random((16, 32), dtype=of_weight, rng=0))
    x = torch.randint(-3, 4, (5, 32)).to(getattr(torch, of_x))
    want = torch.mm(x, weight.t())
    with torch._subclasses.FakeTensorMode() as mode:
        parts = [mode.from_tensor(part) for part in weight.parts]
        fake = torch.ops.sparse24.product(parts, 16, 32, mode.from_tensor(x), None, "x@At")
    assert (fake.dtype, fake.shape) == (want.dtype, want.shape)


@pytest.mark.parametrize("of_weight", ["int8", "float8_e4m3fn", "float8_e5m2"])
def test_a_layer_of_8_bits_compiles(of_weight, compiles_anew):
    layer = torch.nn.Linear(32, 16, dtype=torch.bfloat16)
    weight = st.to_sparse_semi_structured(s24.random((16, 32), dtype=of_weight, rng=0))
    layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    x = torch.randn(5, 32, dtype=torch.bfloat16)
    got = torch.compile(layer, backend="aot_eager", fullgraph=True)(x)
    assert torch.equal(got, layer(x))
    assert got.dtype == torch.bfloat16


@pytest.mark.parametrize("of_x", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("of_weight", ["int8", "float8_e4m3fn", "float8_e5m2"])
def test_scaled_products_of_8_bits(of_weight, of_x):
    weight = st.to_sparse_semi_structured(s24.random((16, 32), dtype=of_weight, rng=0))
    x, bias = (torch.randint(-3, 4, s).to(getattr(torch, of_x)) for s in ((5, 32), (16,)))
    got = torch.addmm(bias, x, weight.t(), alpha=0.5, beta=2)
    want = 0.5 * (x.double() @ weight.to_dense().double().t()) + 2 * bias.double()
    assert got.dtype == x.dtype
    torch.testing.assert_close(got.double(), want, rtol=0, atol=0.01 * float(want.abs().max()))
    with pytest.raises(s24.DTypeError, match=r"x must be of one of the types .*, got torch\.bool"):
        torch.addmm(bias, x.bool(), weight.t(), alpha=0.5)
