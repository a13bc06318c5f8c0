"""`Sparse24Tensor` beside stacks, and in every mode in which torch runs and records products."""

from __future__ import annotations

import contextlib
import copy

import pytest

torch = pytest.importorskip("torch")

from torch_cases import CLOSE  # noqa: E402

import sparse24 as s24  # noqa: E402
from sparse24 import torch as st  # noqa: E402
from sparse24._errors import ShapeError, UnsupportedError  # noqa: E402

MODES = {
    "grad": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}
# Of a layer, its weight (8, 16) and x (2, 5, 16); torch folds some of the stacks into a matrix.
PRODUCTS = {
    "matrix": lambda layer, w, x: layer(x[0]),
    "vector": lambda layer, w, x: layer(x[0, 0]),
    "stack": lambda layer, w, x: layer(x),
    "part": lambda layer, w, x: layer(x[:, :3]),
    "turned": lambda layer, w, x: layer(x.transpose(0, 1)),
    "none": lambda layer, w, x: layer(x[:0].transpose(0, 1)),
    "four axes": lambda layer, w, x: layer(x.expand(3, 2, 5, 16).transpose(0, 2)),
    "x @ w.T": lambda layer, w, x: x.transpose(0, 1) @ w.T,
    "x @ w.t()": lambda layer, w, x: torch.matmul(x[:, :3], w.t()),
    "w @ stack": lambda layer, w, x: w @ x.mT,
    "w @ whole stack": lambda layer, w, x: w @ x.mT.contiguous(),
    "w @ four axes": lambda layer, w, x: w @ x.mT.expand(3, 2, 16, 5),
    "w @ vector": lambda layer, w, x: w @ x[0, 0],
    "vector @ w.T": lambda layer, w, x: x[0, 0] @ w.T,
    "w.T @ stack": lambda layer, w, x: w.T @ x[:, :, :8].mT,
}


def layers():
    """A layer with a packed weight, and the same with a dense one."""
    dense = torch.nn.Linear(16, 8).requires_grad_(False)
    dense.weight.copy_(s24.prune(dense.weight))
    packed = copy.deepcopy(dense)
    packed.weight = torch.nn.Parameter(
        st.to_sparse_semi_structured(dense.weight), requires_grad=False
    )
    return packed, dense


def close(mode: str) -> dict:
    return {"rtol": 2e-2, "atol": 2e-2} if mode == "autocast" else CLOSE


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("product", PRODUCTS)
def test_products_with_stacks_are_those_of_the_dense_matrix(mode, product):
    (packed, dense), found = layers(), []
    for layer in (packed, dense):
        x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))
        x.requires_grad_(mode in ("grad", "autocast"))
        with MODES[mode]():
            y = PRODUCTS[product](layer, layer.weight, x)
        ways = torch.autograd.grad(y.float().sum(), x) if x.requires_grad else ()
        found.append((y, *ways))
    assert found[0][0].dtype == found[1][0].dtype
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want, **close(mode))


@pytest.mark.parametrize("product", [x for x in PRODUCTS if "w" in x])
def test_a_pruned_weight_has_its_gradient_from_products_with_stacks(product):
    weight, found = torch.randn(8, 16, requires_grad=True), []
    mask = s24.mask(weight.detach(), transposable=True)
    x = torch.randn(2, 5, 16)
    for w in (st.sparsify24(weight), weight * mask):
        y = PRODUCTS[product](None, w, x)
        found.append(torch.autograd.grad(y.square().sum(), weight)[0])
    torch.testing.assert_close(*found, **CLOSE)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("product", ["part", "turned", "x @ w.T", "w @ stack", "w @ vector"])
def test_products_with_stacks_compile(mode, product):
    (packed, dense), x = layers(), torch.randn(2, 5, 16)
    torch._dynamo.reset()
    compiled = torch.compile(PRODUCTS[product], fullgraph=True, backend="aot_eager")
    with MODES[mode]():
        got = compiled(packed, packed.weight, x)
        want = PRODUCTS[product](dense, dense.weight, x)
    torch.testing.assert_close(got, want, **close(mode))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("of_the_mode", [False, True])
def test_it_is_turned_and_moved_in_every_mode(mode, of_the_mode):
    dense = s24.prune(torch.randn(8, 16))
    a = st.to_sparse_semi_structured(dense)
    with MODES[mode]():
        if of_the_mode:
            a = st.to_sparse_semi_structured(dense)
        turned = [a.T, a.t(), a.mT, a.H, a.adjoint(), a.swapaxes(0, 1), a.movedim(0, 1)]
        assert all(torch.equal(x.to_dense(), dense.T) for x in turned)
        assert torch.equal(a.half().to_dense(), dense.half())
        assert torch.equal(a.double().to_dense(), dense.double())
        assert torch.equal(a.to("cpu").to_dense(), dense)
        assert torch.equal(a.detach().to_dense(), dense)
        with pytest.raises(UnsupportedError, match=r"aten.* is not defined .*\.to_dense\(\)"):
            a.reshape(-1)


def test_leading_axes_repeat_the_matrix():
    dense = s24.prune(torch.randn(8, 16))
    a = st.to_sparse_semi_structured(dense)
    stack = a.expand(3, -1, 16)
    assert torch.equal(stack.to_dense(), dense.expand(3, 8, 16))
    assert torch.equal(stack.mT.to_dense(), dense.T.expand(3, 16, 8))
    assert torch.equal(stack.expand(2, -1, -1, -1).to_dense(), dense.expand(2, 3, 8, 16))
    x = torch.randn(3, 5, 16)
    torch.testing.assert_close(torch.bmm(x, stack.mT), x @ dense.T, **CLOSE)
    with pytest.raises(ShapeError, match=r"bmm: shapes \(3, 5, 16\) and \(3, 8, 16\) do not fit"):
        torch.bmm(x, stack)
    for refused in (
        lambda: stack.transpose(0, 1),
        lambda: stack.t(),
        lambda: a.expand(16, 16),
        lambda: stack.expand(4, 8, 16),
        lambda: a.view(16, 8),
        lambda: a.view(-1),
    ):
        with pytest.raises(UnsupportedError, match=r"aten.* is not defined .*\.to_dense\(\)"):
            refused()
    with pytest.raises(UnsupportedError, match="two Sparse24Tensors cannot be multiplied"):
        torch.bmm(stack, stack.mT)
