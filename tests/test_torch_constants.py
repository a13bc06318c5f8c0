"""Products with arrays of sparse24 while torch traces, which would become constants."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import sparse24 as s24  # noqa: E402
from sparse24 import torch as st  # noqa: E402
from sparse24._errors import UnsupportedError  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch, that tracing is old

A = s24.random((8, 16), rng=0)
EXPERTS = s24.random((2, 8, 16), rng=1)
PRODUCTS = {
    "linear": lambda x: s24.linear(x, A),
    "operator": lambda x: x @ A.T,
    "matmul": lambda x: s24.matmul(A, x.T),
    "torch's": lambda x: torch.matmul(x, A.T),
    "grouped": lambda x: s24.grouped_linear(x, EXPERTS, offsets=[0, 1, 4]),
}


class Model(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


WAYS = {
    "trace": torch.jit.trace,
    "make_fx": lambda model, x: make_fx(model)(x),
    "export": lambda model, x: torch.export.export(model, (x,), strict=False),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_that_would_become_a_constant_is_refused(name, way):
    model, x = Model(PRODUCTS[name]), torch.randn(4, 16)
    model(x)  # which is known from now on
    with pytest.raises(UnsupportedError, match=r"must not be traced.*to_sparse_semi_struc"):
        WAYS[way](model, x)


def test_the_way_out_is_one():
    x, other = torch.randn(2, 4, 16)
    layer = torch.nn.Linear(16, 8, bias=False)
    layer.weight = torch.nn.Parameter(st.to_sparse_semi_structured(A), requires_grad=False)
    for way in (torch.jit.trace, lambda layer, x: torch.export.export(layer, (x,)).module()):
        torch.testing.assert_close(way(layer, x)(other), PRODUCTS["operator"](other))


@pytest.mark.parametrize("name", PRODUCTS)
def test_modes_that_only_look_on_are_no_tracing(name):
    x = torch.randn(4, 16)
    with FlopCounterMode(display=False):
        found = PRODUCTS[name](x)
    torch.testing.assert_close(found, PRODUCTS[name](x))


@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13),
    reason="torch 2.11 loads a tensor without storage",
)
@pytest.mark.filterwarnings("ignore:.*deprecated")
@pytest.mark.parametrize("way", [torch.jit.script, lambda m: torch.jit.trace(m, torch.ones(1, 16))])
def test_torchscript_does_not_read_a_packed_weight_as_zeros(tmp_path, way):
    layer = torch.nn.Linear(16, 8).requires_grad_(False)
    layer.weight = torch.nn.Parameter(st.to_sparse_semi_structured(A), requires_grad=False)
    way(layer).save(tmp_path / "layer.ts")
    with pytest.raises(RuntimeError, match="storage"):
        torch.jit.load(tmp_path / "layer.ts")
