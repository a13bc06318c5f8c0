"""Factors, signs and absolute values of a `Sparse24Tensor`."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch_cases import CLOSE  # noqa: E402

import sparse24 as s24  # noqa: E402
from sparse24 import torch as st  # noqa: E402
from sparse24._errors import ShapeError, UnsupportedError  # noqa: E402

F = torch.nn.functional
M, K = 72, 48
MAKERS = {
    "plain": lambda w: st.to_sparse_semi_structured(s24.prune(w)),
    "turned": lambda w: st.to_sparse_semi_structured(s24.prune(w.T.contiguous())).T,
    "transposable": lambda w: st.sparsify24(w),
    "turned transposable": lambda w: st.sparsify24(w.T.contiguous()).T,
}
FACTORS = {
    "whole number": lambda d: 3,
    "number": lambda d: -0.3,
    "no axes": lambda d: torch.tensor(1.5, device=d, dtype=torch.float64),
    "one": lambda d: torch.full((1, 1), 1.5, device=d),
    "column": lambda d: torch.linspace(1, 2, M, device=d)[:, None],
    "row": lambda d: torch.linspace(-2, -1, K, device=d),
    "wide row": lambda d: torch.linspace(1, 2, K, device=d, dtype=torch.float64),
    "all": lambda d: torch.linspace(1, 2, M * K, device=d).reshape(M, K),
    "turned": lambda d: torch.linspace(1, 2, M * K, device=d).reshape(K, M).T,
}
OPERATIONS = {
    "w * f": lambda w, f: w * f,
    "f * w": lambda w, f: f * w,
    "w / f": lambda w, f: w / f,
}


def assert_is(got, want) -> None:
    """Every orientation that is stored holds the dense matrix."""
    assert type(got) is st.Sparse24Tensor
    assert got.dtype == want.dtype
    torch.testing.assert_close(got.to_dense(), want, rtol=0, atol=0)
    b = torch.ones(want.shape[1], 3, device=want.device, dtype=want.dtype)
    c = torch.ones(3, want.shape[0], device=want.device, dtype=want.dtype)
    close = CLOSE if want.dtype.itemsize > 2 else {"rtol": 2e-2, "atol": 0.2}
    torch.testing.assert_close(got @ b, want @ b, **close)
    torch.testing.assert_close(c @ got, c @ want, **close)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("factor", FACTORS)
def test_factors_are_those_of_the_dense_matrix(device, make, factor, dtype):
    w = MAKERS[make](torch.randn(M, K, device=device, dtype=dtype))
    f = FACTORS[factor](device)
    for operation in OPERATIONS.values():
        assert_is(operation(w, f), operation(w.to_dense(), f))
    assert w.parts[1] is (w * 2).parts[1]  # the places are shared


@pytest.mark.parametrize("make", MAKERS)
def test_signs_and_absolute_values(device, make):
    w = MAKERS[make](torch.randn(M, K, device=device))
    assert_is(-w, 0 - w.to_dense())
    assert_is(abs(w), w.to_dense().abs())
    assert_is(w.abs(), w.to_dense().abs())


def test_types_are_torchs():
    w = st.to_sparse_semi_structured(torch.eye(4, 8).to(torch.int8))
    assert (w * 3).dtype == torch.int8
    assert (w / 2).dtype == (2.5 * w).dtype == torch.float32
    assert (w.half() * torch.tensor(2.0, dtype=torch.float64)).dtype == torch.float16
    with pytest.raises(UnsupportedError, match=r"int8 and the factor give torch.int32.*\.to\("):
        w * torch.ones(8, dtype=torch.int32)
    with pytest.raises(UnsupportedError, match=r"complex64, which is not stored; convert"):
        1j * w.float()
    for call in (lambda x: 2 * x, lambda x: -x):
        with pytest.raises(UnsupportedError, match=r"no arithmetic of torch.float8.*\.to_array\("):
            call(w.to(torch.float8_e4m3fn))


def test_zeros_stay_zeros():
    w = st.to_sparse_semi_structured(torch.tensor([[0.0, 0, 2, -1], [1e-30, 0, 0, 0]]))
    for made in (w * torch.inf, w / 0, w * torch.tensor([[torch.inf], [1.0]])):
        assert not made.to_dense().isnan().any()
        assert made.to_dense()[0, 2] == torch.inf
    lost = w / torch.tensor([[1.0], [-1e30]])  # -0.0 in the dense result
    assert not torch.signbit(lost.to_dense()[1]).any()


def test_stacks_of_one_matrix_have_factors_of_the_matrix():
    dense = s24.prune(torch.randn(8, 16))
    w = st.to_sparse_semi_structured(dense).expand(3, 8, 16)
    row = torch.linspace(1, 2, 16)
    assert torch.equal((w * row).to_dense(), dense.expand(3, 8, 16) * row)
    with pytest.raises(ShapeError, match=r"of shape \(3, 1, 1\) does not broadcast to \(8, 16\)"):
        w * torch.ones(3, 1, 1)


@pytest.mark.parametrize("shape", [(3,), (8, 3), (16, 1), (1, 8, 16), (2, 8, 16)])
def test_a_factor_that_would_enlarge_the_matrix_is_refused(shape):
    w = st.to_sparse_semi_structured(s24.prune(torch.randn(8, 16)))
    for call in (lambda f: w * f, lambda f: f * w, lambda f: w / f):
        with pytest.raises(ShapeError, match=r"does not broadcast to \(8, 16\).*; reshape it"):
            call(torch.ones(shape))


OTHERS = {
    "sum": (lambda w: w + w.to_dense(), r"aten.add.* not defined .*; call \.to_dense\(\)"),
    "product": (lambda w: w * w, r"aten.mul.* not defined .*; call \.to_dense\(\) on one of them"),
    "divisor": (lambda w: torch.ones(8, 16) / w, r"aten.div.* not defined .*\.to_dense\(\)"),
    "in place": (lambda w: w.mul_(2), r"mul_.*not written in place: w = 2 \* w .*SparseLinear"),
    "into a dense one": (
        lambda w: torch.ones(4, 8).addmm_(torch.ones(4, 16), w.T), r"addmm_.*; call .*\) first$"
    ),
    "optimizer": (lambda w: w.add_(torch.ones(8, 16)), r"add_.* learns stays dense, as in"),
    "its state": (lambda w: torch.zeros_like(w), r"zeros_like.*to_dense.* learns stays dense"),
}  # fmt: skip


@pytest.mark.parametrize("other", OTHERS)
def test_other_arithmetic_says_what_to_do(other):
    call, message = OTHERS[other]
    with pytest.raises(UnsupportedError, match=message):
        call(st.to_sparse_semi_structured(s24.prune(torch.randn(8, 16))))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("shape", [(), (1,), (8, 1), (16,), (1, 16)])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_scale_learns_beside_a_packed_weight(operation, shape, compiled):
    dense, x = s24.prune(torch.randn(8, 16)), torch.randn(3, 16)
    packed, found = st.to_sparse_semi_structured(dense), []

    def loss(w, scale):
        return F.linear(x, OPERATIONS[operation](w, scale)).square().sum()

    torch._dynamo.reset()
    ours = torch.compile(loss, fullgraph=True, backend="aot_eager") if compiled else loss
    for call, w in ((ours, packed), (loss, dense)):
        scale = torch.full(shape, 1.5, requires_grad=True)
        (gradient,) = torch.autograd.grad(call(w, scale), scale)
        assert type(gradient) is torch.Tensor
        found.append(gradient)
    torch.testing.assert_close(*found, **CLOSE)


USES = {
    "twice": lambda w: 2 * w,
    "negative": lambda w: -w,
    "scaled rows": lambda w: w / torch.arange(1.0, 9)[:, None],
    "scaled columns": lambda w: (w.T * torch.arange(1.0, 17)[:, None]).T,
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("use", USES)
def test_a_pruned_weight_has_its_gradient_through_factors(use, compiled):
    weight, x, found = torch.randn(8, 16, requires_grad=True), torch.randn(3, 16), []
    mask = s24.mask(weight.detach(), transposable=True)

    def loss(weight):
        return F.linear(x, USES[use](st.sparsify24(weight))).square().sum()

    torch._dynamo.reset()
    ours = torch.compile(loss, fullgraph=True, backend="aot_eager") if compiled else loss
    for y in (ours(weight), F.linear(x, USES[use](weight * mask)).square().sum()):
        (gradient,) = torch.autograd.grad(y, weight)
        assert type(gradient) is torch.Tensor
        found.append(gradient)
    torch.testing.assert_close(*found, **CLOSE)


def test_gradients_that_would_be_sparse_are_refused():
    packed = st.to_sparse_semi_structured(s24.prune(torch.randn(8, 16)))
    with pytest.raises(UnsupportedError, match=r"for each element has no gradient.*\.detach\(\)"):
        packed * torch.ones(8, 16, requires_grad=True)
    learning = torch.nn.Parameter(packed)
    with pytest.raises(UnsupportedError, match=r"abs\(\) .* no gradient; call \.to_dense\(\)"):
        abs(learning)
    with torch.no_grad():
        assert torch.equal(abs(learning).to_dense(), packed.to_dense().abs())
        assert (packed * torch.ones(8, 16, requires_grad=True)).shape == (8, 16)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_factors_without_gradients(mode):
    dense, x = s24.prune(torch.randn(8, 16)), torch.randn(3, 16)
    w, row = st.to_sparse_semi_structured(dense), torch.linspace(1, 2, 16)
    with mode():
        torch.testing.assert_close(F.linear(x, -w * row), F.linear(x, -dense * row), **CLOSE)
