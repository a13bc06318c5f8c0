"""Products that would drop the gradient of a tensor of torch are refused; all else goes on."""

from __future__ import annotations

import numpy as np
import pytest

import sparse24 as s24
from sparse24 import ArgumentError, functional

torch = pytest.importorskip("torch")

from sparse24 import torch as st  # noqa: E402

F = torch.nn.functional
WAYS_OUT = r"torch\.no_grad\(\).*\.detach\(\).*linear, grouped_linear and the layers of sparse24\.t"
FLAT = {
    "x @ A.T": lambda A, x: x @ A.T,
    "A @ x.T": lambda A, x: A @ x.T,
    "A.dot": lambda A, x: A.dot(x.T),
    "matvec": lambda A, x: A.matvec(x[0]),
    "rmatvec": lambda A, x: A.T.rmatvec(x[0]),
    "matmul": lambda A, x: s24.matmul(A, x.T),
    "matmul from the left": lambda A, x: s24.matmul(x, A.T),
    "linear": lambda A, x: s24.linear(x, A),
    "F.linear": lambda A, x: F.linear(x, A),
    "torch.matmul": lambda A, x: torch.matmul(x, A.T),
    "torch.mm": lambda A, x: torch.mm(x, A.T),
}


@pytest.fixture
def device(request):
    return request.param


on_devices = pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)], indirect=True
)


def arrays(device):
    w = s24.prune(torch.randn(16, 32, generator=torch.Generator().manual_seed(0)).to(device))
    two_four = s24.compress(w)
    return {
        "2:4": two_four,
        "n:m": s24.compress(w, pattern=(5, 8), on_excess="prune"),
        "embedded n:m": s24.compress(w, pattern=(1, 4), on_excess="prune"),
        "hybrid": s24.hybrid(w),
    }


@on_devices
@pytest.mark.parametrize("kind", ["2:4", "n:m", "embedded n:m", "hybrid"])
@pytest.mark.parametrize("call", FLAT)
def test_a_product_does_not_drop_a_gradient(kind, call, device):
    A, product = arrays(device)[kind], FLAT[call]
    x = torch.ones(3, 32, device=device)
    learns = torch.ones_like(x, requires_grad=True)
    want = product(A, x)
    for given in (learns, torch.relu(learns), torch.nn.Parameter(x)):
        with pytest.raises(ArgumentError, match=f"must not require a gradient.*{WAYS_OUT}"):
            product(A, given)
        for context in (torch.no_grad(), torch.inference_mode()):
            with context:
                torch.testing.assert_close(product(A, given), want)
        torch.testing.assert_close(product(A, given.detach()), want)


def test_windows_do_not_drop_it_either():
    W = s24.compress(torch.randn(16, 32), pattern=(6, 8), on_excess="prune").windows()
    x = torch.ones(3, 32, requires_grad=True)
    for product in (lambda: W @ x.T, lambda: x @ W.T, lambda: s24.linear(x, W)):
        with pytest.raises(ArgumentError, match="must not require a gradient"):
            product()
    with torch.no_grad():
        assert (W @ x.T).shape == (16, 3)


@on_devices
def test_plain_and_planned_products_do_not_drop_it(device):
    A, x = arrays(device)["2:4"], torch.ones(32, 3, device=device, requires_grad=True)
    dense = torch.ones(16, 32, device=device)
    planned, hybrid = s24.plan(A, x), s24.hybrid(dense)
    for product in (lambda: s24.matmul(dense, x), lambda: planned.execute(x),
                    lambda: hybrid.matmul(x)):  # fmt: skip
        with pytest.raises(ArgumentError, match="b must not require a gradient"):
            product()
    assert planned.execute(x.detach()).shape == (16, 3)


@on_devices
def test_products_of_experts_do_not_drop_it(device):
    w = torch.randn(2, 16, 32, device=device)
    As, offsets = s24.compress(w, on_excess="prune"), [0, 1, 3]
    x = torch.ones(3, 32, device=device, requires_grad=True)
    bias = torch.zeros(2, 16, device=device, requires_grad=True)
    kept = x.detach()
    for argument, product in (
        ("x", lambda: s24.grouped_linear(x, As, offsets=offsets)),
        ("bias", lambda: s24.grouped_linear(kept, As, bias, offsets=offsets)),
        ("scales", lambda: s24.grouped_linear(kept, As, offsets=offsets, scales=(x[:, 0], None))),
        ("b", lambda: s24.grouped_matmul(As, x.T, offsets=offsets)),
    ):
        with pytest.raises(ArgumentError, match=f"^{argument} must not require a gradient"):
            product()
        with torch.no_grad():
            product()


@on_devices
def test_options_do_not_drop_it(device):
    A, x = arrays(device)["2:4"], torch.ones(3, 32, device=device)
    bias, factors = (torch.ones(16, device=device, requires_grad=True) for _ in range(2))
    c = torch.ones(3, 16, device=device, requires_grad=True)
    for argument, product in (
        ("bias", lambda: s24.linear(x, A, bias)),
        ("bias", lambda: s24.matmul(x, A.T, epilogue=s24.Epilogue(bias=bias))),
        ("c", lambda: s24.matmul(x, A.T, c=c, beta=1.0)),
        ("scales", lambda: s24.matmul(x, A.T, scales=(1.0, factors))),
        ("out", lambda: s24.matmul(x, A.T, out=c)),
    ):
        with torch.no_grad():
            product()  # is remembered
        with pytest.raises(ArgumentError, match=f"^{argument} must not require a gradient"):
            product()


def test_a_bias_that_torch_adds_has_its_gradient():
    bias = torch.zeros(16, requires_grad=True)
    F.linear(torch.ones(3, 32), arrays("cpu")["2:4"], bias).sum().backward()
    assert (bias.grad == 3).all()


def test_weights_that_learn_are_compressed():
    weight = torch.nn.Parameter(torch.randn(16, 32))
    keep = s24.mask(weight)
    assert (s24.prune(weight) == (weight * keep).detach()).all()
    A = s24.compress(weight, on_excess="prune")
    np.testing.assert_array_equal(A.toarray(), (weight * keep).detach())
    assert not s24.is_24(weight)
    assert s24.hybrid(weight).shape == (16, 32)


def test_a_function_with_a_backward_of_its_own_multiplies():
    A = s24.random((16, 32), rng=0)

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x @ A.T

        @staticmethod
        def backward(ctx, dy):
            return dy @ A

    x = torch.ones(3, 32, requires_grad=True)
    Product.apply(x).sum().backward()
    np.testing.assert_allclose(x.grad, np.ones((3, 16)) @ A.toarray(), rtol=1e-5)


def test_layers_and_their_operators_multiply():
    x = torch.ones(3, 32, requires_grad=True)
    experts = st.SparseExperts(2, 32, 16)
    layer = st.SparseLinear(32, 16)
    for product in (lambda: layer(x), lambda: experts(x, [0, 1, 3])):
        product().sum().backward()
        assert x.grad.any()
        x.grad = None
    ops = torch.ops.sparse24
    parts = ops.pack(torch.randn(2, 16, 32), None, False)
    offsets = torch.tensor([0, 1, 3])
    ops.grouped_product(parts, 16, 32, x, None, offsets, False, None, False)


def test_what_compresses_activations_and_written_out_layers_drop_no_gradient():
    x = torch.ones(4, 8, requires_grad=True)
    for call in (
        lambda: s24.activate_compress(x),
        lambda: s24.activate_compress(x.detach(), "silu", gate=x),
    ):
        with pytest.raises(ArgumentError, match="must not require a gradient"):
            call()
        with torch.no_grad():
            call()
    for call in (
        lambda: functional.linear(np.ones((2, 8), np.float32), x),
        lambda: functional.linear(x.detach(), np.ones((4, 8), np.float32)),
    ):
        with pytest.raises(s24.DTypeError, match=r"NumPy or CuPy, got Tensor; .* sparse24\.torch"):
            call()
