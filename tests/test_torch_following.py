"""Layers that torch only follows: inputs without elements, traces, transforms, no features."""

from __future__ import annotations

import re

import numpy as np
import pytest
import scipy.sparse

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch_cases import CLOSE  # noqa: E402

import sparse24 as s24  # noqa: E402
from sparse24 import functional  # noqa: E402
from sparse24 import torch as st  # noqa: E402


@pytest.mark.parametrize("learns", [False, True])
def test_shapes_are_told_without_elements(learns):
    with torch.set_grad_enabled(learns):
        on_meta = st.SparseLinear(32, 16, device="meta")
        assert on_meta(torch.empty(2, 3, 32, device="meta")).shape == (2, 3, 16)
        layer = st.SparseLinear(32, 16)
        with FakeTensorMode(allow_non_fake_inputs=True):
            assert layer(torch.empty(3, 32)).shape == (3, 16)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize(("like", "given"), [((3,), (5,)), ((1, 3), (4, 5)), ((2, 1), (3, 4))])
def test_a_trace_multiplies_what_it_is_given(like, given):
    layer, x = st.SparseLinear(32, 16).eval(), torch.randn(*given, 32)
    with torch.no_grad():
        traced = torch.jit.trace(layer, (torch.randn(*like, 32),))
        torch.testing.assert_close(traced(x), layer(x), **CLOSE)
        with pytest.raises(RuntimeError):  # of as many axes as it was traced with
            traced(x[None])


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx_follows_layers_without_gradient(mode):
    layer, x = st.SparseLinear(32, 16).eval(), torch.randn(3, 32)
    with torch.no_grad():
        layer(x)  # packs its weight
        follow = make_fx(layer, tracing_mode=mode, _allow_non_fake_inputs=True)
        graph = follow(torch.randn(3, 32))
        torch.testing.assert_close(graph(x), layer(x), **CLOSE)


def test_products_without_gradient_are_refused_within_transforms():
    a, x = s24.random((16, 32), rng=0), torch.randn(3, 32)
    for transform in (
        torch.func.grad(lambda x: (x @ a.T).sum()), torch.vmap(lambda x: x @ a.T),
        torch.func.functionalize(lambda x: x @ a.T),
        torch.func.functionalize(lambda x: x[1:] @ a.T),
        torch.func.functionalize(lambda x: s24.prune(x)),
    ):  # fmt: skip
        with pytest.raises(s24.DTypeError, match=r"dense tensor with memory.*torch\.func"):
            transform(x)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("learns", [False, True])
def test_compiled_layers_take_any_number_of_tokens(learns, masked):
    layer = st.SparseLinear(32, 16)
    layer.set_mask(layer.current_mask() if masked else None)
    fast = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    with torch.set_grad_enabled(learns):
        for shape in ((2, 3, 32), (4, 5, 32)):
            x = torch.randn(shape)
            torch.testing.assert_close(fast(x), layer(x), **CLOSE)


def test_exported_layers_take_any_number_of_tokens():
    layer = st.SparseLinear(32, 16).eval()
    many = {0: torch.export.Dim("tokens", min=2, max=64)}
    exported = torch.export.export(layer, (torch.randn(8, 32),), dynamic_shapes=(many,)).module()
    x = torch.randn(5, 32)
    torch.testing.assert_close(exported(x), layer(x), **CLOSE)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize(("x", "weight"), [((3, 0), (4, 0)), ((2, 3, 8), (0, 8)), ((0,), (4, 0))])
def test_layers_without_features(x, weight):
    m, k = weight
    layer = st.SparseLinear(k, m)
    y = layer(torch.ones(x, requires_grad=True))
    assert torch.equal(y, layer.bias.expand(*x[:-1], m))
    y.sum().backward()
    assert layer.weight.grad.shape == weight
    got, saved = functional.linear(np.ones(x), np.ones(weight))
    assert not got.any()
    dx, dweight, _ = functional.linear_backward(got, saved)
    assert (dx.shape, dweight.shape) == (x, weight)
    wide = st.feed_forward(torch.ones(x), torch.ones(weight), torch.ones(5, m))
    assert wide.shape == (*x[:-1], 5)


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta state")
@pytest.mark.parametrize("layout", ["csr", "csc", "coo", "bsr"])
def test_sparse_tensors_are_told_a_way_that_keeps_them_sparse(layout):
    """What torch says, ``to_dense()``, would fill the memory with a graph."""
    dense = torch.ones(24, 24).triu()
    blocks = (4, 4) if layout == "bsr" else None
    x = dense.to_sparse(layout=getattr(torch, f"sparse_{layout}"), blocksize=blocks)
    way_out = (
        rf"torch.sparse_{layout}; call .*\(\), or t = (.*), of which sparse24.hybrid takes (.*)"
    )
    for call in (s24.compress, s24.hybrid, lambda x: s24.random((8, 24)) @ x):
        with pytest.raises(s24.DTypeError, match="must be a dense tensor with memory: ") as refusal:
            call(x)
        first, second = re.search(way_out, str(refusal.value)).groups()
        rows = eval(second, {"scipy": scipy, "t": eval(first, {"x": x})})
        np.testing.assert_array_equal(s24.hybrid(rows).toarray(), dense.numpy())


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_named():
    x = torch.nested.nested_tensor([torch.ones(24, 2), torch.ones(24, 3)])
    with pytest.raises(s24.DTypeError, match=r"b must be a dense .* nested; .*\.unbind\(\)"):
        s24.random((8, 24)) @ x
