"""Sums, extremes and norms of a `Sparse24Tensor`."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch_cases import CLOSE  # noqa: E402

import sparse24 as s24  # noqa: E402
from sparse24 import torch as st  # noqa: E402
from sparse24._errors import UnsupportedError  # noqa: E402

LINEAR = {
    "sum": lambda w: w.sum(),
    "sum of rows": lambda w: w.sum(1),
    "sum of columns": lambda w: w.sum(0, keepdim=True),
    "mean": lambda w: w.mean(),
    "mean of rows": lambda w: w.mean(dim=-1),
}
OTHERS = {
    "max": lambda w: w.max(),
    "max and its place": lambda w: w.max(1),
    "amax": lambda w: w.amax(1, keepdim=True),
    "min": lambda w: w.min(),
    "amin": lambda w: w.amin(0),
    "norm": lambda w: w.norm(),
    "norm of rows": lambda w: torch.linalg.vector_norm(w, ord=1, dim=1),
    "count": lambda w: torch.count_nonzero(w),
    "count of rows": lambda w: torch.count_nonzero(w, dim=1),
}


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("name", [*LINEAR, *OTHERS])
def test_they_are_those_of_the_dense_matrix(device, name, turned):
    dense = s24.prune(torch.randn(8, 16, device=device))
    w = st.to_sparse_semi_structured(dense)
    w, dense = (w.T, dense.T) if turned else (w, dense)
    call = {**LINEAR, **OTHERS}[name]
    with torch.no_grad():
        torch.testing.assert_close(call(w), call(dense), rtol=0, atol=0)
        torch.testing.assert_close(call(torch.nn.Parameter(w)), call(dense), rtol=0, atol=0)


@pytest.mark.parametrize("name", LINEAR)
def test_sums_have_gradients(name):
    weight, found = torch.randn(8, 16, requires_grad=True), []
    mask = s24.mask(weight.detach(), transposable=True)
    for w in (st.sparsify24(weight), weight * mask):
        found.append(torch.autograd.grad(LINEAR[name](w).square().sum(), weight)[0])
    torch.testing.assert_close(*found, **CLOSE)


@pytest.mark.parametrize("name", [name for name in OTHERS if "count" not in name])
def test_others_of_a_weight_that_learns_are_refused(name):
    w = torch.nn.Parameter(st.to_sparse_semi_structured(s24.prune(torch.randn(8, 16))))
    with pytest.raises(UnsupportedError, match=r"has no gradient; call \.to_dense\(\) first, or"):
        OTHERS[name](w)
    OTHERS[name](w.detach())


def test_equality():
    dense = s24.prune(torch.randn(8, 16))
    w = st.to_sparse_semi_structured(dense)
    assert torch.equal(w, w.clone())
    assert torch.equal(w, dense)
    assert torch.equal(dense, w)
    assert not torch.equal(w, 2 * w)
    assert not torch.equal(w, w.T)
    assert w.to_dense(torch.float64).dtype == torch.float64
