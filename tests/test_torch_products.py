"""`sparse24.torch.matmul`: products of sparse arrays that are differentiable in the tensor."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import scipy.sparse
import torch

import sparse24 as s24
from sparse24._errors import ArgumentError, DTypeError, ShapeError, UnsupportedError

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
K, M = 52, 32


@pytest.fixture(params=["hybrid", "2:4", "transposable", "3:8", "stack"])
def array(request, rng):
    """A sparse array of each format in float64; its transpose in one case is sparse, too."""
    w = rng.standard_normal((3, M, K) if request.param == "stack" else (M, K))
    if request.param == "hybrid":
        return s24.hybrid(np.where(rng.random(w.shape) < 0.2, w, 0))
    pattern = (3, 8) if request.param == "3:8" else (2, 4)
    transposable = request.param == "transposable"
    return s24.compress(w, pattern=pattern, transposable=transposable, on_excess="prune")


def operands(array, device, rng):
    """The array, it as a dense tensor, and tensors for its right and its left."""
    dense = torch.tensor(array.toarray(), device=device)
    draw = lambda *shape: torch.tensor(  # noqa: E731
        rng.standard_normal(shape), device=device, requires_grad=True
    )
    right = [draw(K), draw(K, 3)] + [draw(3, K, 2), draw(2, 1, K, 4)] * (array.ndim > 2)
    left = [draw(M), draw(3, M)] + [draw(3, 2, M), draw(2, 1, 4, M)] * (array.ndim > 2)
    return array.to_device(device), dense, right, left


def assert_same(got, want, x):
    torch.manual_seed(0)
    upstream = torch.randn_like(want)
    torch.testing.assert_close(got, want)
    (of_ours,), (of_torch,) = (torch.autograd.grad(y, x, upstream) for y in (got, want))
    torch.testing.assert_close(of_ours, of_torch)


@pytest.mark.parametrize("device", DEVICES)
def test_products_and_gradients_are_those_of_the_dense_matrix(rng, array, device):
    ours, dense, right, left = operands(array, device, rng)
    for x in right:
        assert_same(s24.torch.matmul(ours, x), torch.matmul(dense, x), x)
    for x in left:
        assert_same(s24.torch.matmul(x, ours), torch.matmul(x, dense), x)


def test_gradients_have_gradients(rng):
    h = s24.hybrid(scipy.sparse.random_array((6, 5), density=0.4, rng=rng))
    x = torch.tensor(rng.standard_normal((5, 2)), requires_grad=True)
    square = lambda x: s24.torch.matmul(h, x) ** 2  # noqa: E731
    assert torch.autograd.gradcheck(square, x)
    assert torch.autograd.gradgradcheck(square, x)


def test_a_gradient_has_the_type_of_its_tensor(rng):
    h = s24.hybrid(rng.integers(-2, 3, (6, 5)).astype(np.float32))
    x = torch.ones(5, 2, dtype=torch.float16, requires_grad=True)
    y = s24.torch.matmul(h, x)
    y.sum().backward()
    assert (y.dtype, x.grad.dtype) == (torch.float32, torch.float16)
    wanted = torch.tensor(h.toarray().sum(0))[:, None].expand(5, 2)
    torch.testing.assert_close(x.grad, wanted.half())
    assert s24.torch.matmul(h, x, dtype="float64").dtype == torch.float64


def test_within_a_model_that_is_compiled_or_recomputed(rng):
    h = s24.hybrid(rng.standard_normal((6, 5)).astype(np.float32))
    dense, weight = torch.tensor(h.toarray()), torch.randn(5, 3, requires_grad=True)
    x = torch.randn(5, 5, requires_grad=True)

    def layer(x):
        return s24.torch.matmul(h, torch.relu(x @ weight))

    compiled = torch.compile(layer, backend="eager")
    recomputed = lambda x: torch.utils.checkpoint.checkpoint(  # noqa: E731
        layer, x, use_reentrant=False
    )
    for how in (compiled, recomputed):
        assert_same(how(x), dense @ torch.relu(x @ weight), x)


def test_without_gradients_nothing_is_recorded(rng):
    h = s24.hybrid(rng.standard_normal((6, 5)))
    assert s24.torch.matmul(h, torch.ones(5, 1, dtype=torch.float64)).grad_fn is None
    with torch.no_grad():
        x = torch.ones(5, 1, dtype=torch.float64, requires_grad=True)
        assert s24.torch.matmul(h, x).grad_fn is None


def test_what_is_refused(rng):
    h = s24.hybrid(rng.standard_normal((6, 5)).astype(np.float32))
    x = torch.ones(5, 2, requires_grad=True)
    for a, b in ((h, np.ones((5, 2))), (x, x), (h, h)):
        with pytest.raises(
            ArgumentError, match=r"one operand must be a sparse array, .*torch\.mat"
        ):
            s24.torch.matmul(a, b)
    windows = s24.compress(np.eye(8), pattern=(6, 8)).windows()
    with pytest.raises(ArgumentError, match=r"in place of a Windows24 pass .* whose windows\(\)"):
        s24.torch.matmul(windows, torch.ones(8, 1))
    with pytest.raises(ShapeError, match="k = 5, got "):
        s24.torch.matmul(h, x.T)
    with pytest.raises(ShapeError, match="b must have at least one axis"):
        s24.torch.matmul(h, torch.tensor(1.0))
    with pytest.raises(UnsupportedError, match=r"torch\.func"):
        torch.func.grad(lambda x: s24.torch.matmul(h, x).sum())(x)
    with pytest.raises(ArgumentError, match="use what is differentiable: matmul, linear"):
        h @ x


@pytest.mark.parametrize("device", DEVICES)
def test_functions_of_torch_take_weights_and_biases_that_are_vectors(device, rng):
    linear, ones = torch.nn.functional.linear, functools.partial(torch.ones, device=device)
    w = rng.standard_normal((6, 8)).astype(np.float32)
    for a in (s24.compress(w, on_excess="prune"), s24.hybrid(w)):
        dense, a = torch.from_numpy(a.toarray()).to(device), a.to_device(device)
        torch.testing.assert_close(linear(a, ones(8)), dense.sum(1))
        torch.testing.assert_close(linear(ones(8), a, ones(1)), dense.sum(1) + 1)
        for bias in (ones(7), ones(2, 6)):  # torch would spread the product over it
            with pytest.raises(ShapeError, match=r"bias must broadcast to .* \(6,\), got shape"):
                linear(ones(8), a, bias)


@pytest.mark.parametrize("device", DEVICES)
def test_a_packed_matrix_refuses_what_is_no_vector(device):
    ones = functools.partial(torch.ones, device=device)
    packed = s24.torch.to_sparse_semi_structured(torch.eye(6, 8, device=device))
    torch.testing.assert_close(packed.mv(ones(8)), ones(6))
    for wrong in (ones(()), ones(6), ones(8, 1)):
        with pytest.raises(ShapeError, match=r"mv: shapes \(6, 8\) and \(.*\) do not fit"):
            packed.mv(wrong)


def test_a_packed_matrix_says_that_it_fits_transposed():
    packed = s24.torch.to_sparse_semi_structured(torch.eye(6, 8))
    with pytest.raises(ShapeError, match=r"second one fits transposed, as in x @ A\.T"):
        torch.ones(3, 8) @ packed
    with pytest.raises(ShapeError, match=r"first one fits transposed, as in A\.T @ x"):
        packed @ torch.ones(6, 3)
    with pytest.raises(ShapeError, match=r"do not fit$"):
        packed @ torch.ones(7, 3)


def test_whole_numbers_have_no_gradient():
    a = s24.compress(np.eye(4, dtype=np.int8))
    with pytest.raises(UnsupportedError, match=r"floats to have a gradient, got torch\.int32"):
        s24.torch.matmul(a, torch.ones(4, 1, requires_grad=True), dtype="int32")


@pytest.mark.parametrize("learns", [False, True])
def test_explain_and_plan_name_the_way_from_a_layer_or_a_packed_weight(learns):
    layer, x = torch.nn.Linear(8, 4, bias=False), torch.ones(3, 8)
    with pytest.raises(DTypeError, match=r"b must be an array, got Linear; pass its \.weight"):
        s24.explain(x, layer)
    packed = s24.torch.to_sparse_semi_structured(s24.prune(layer.weight))
    packed = torch.nn.Parameter(packed, requires_grad=learns)
    with pytest.raises(DTypeError, match=r"b must be a dense .* Sparse24Tensor; .* \.to_array\(\)"):
        s24.explain(x, packed.T)
    with pytest.raises(DTypeError, match=r"a must be a dense .* Sparse24Tensor; .* \.to_array\(\)"):
        s24.explain(packed, x.T)
    assert s24.explain(x, packed.T.to_array()).chosen == "cpu_sparse"
    with pytest.raises(ArgumentError, match=r"got Sparse24Tensor; pass its \.to_array\(\)$"):
        s24.plan(packed, x.T)
    with pytest.raises(ArgumentError, match=r"x @ W\.T: plan\(W\.to_array\(\), x\.T, out_order='c"):
        s24.plan(x, packed.T)
    plan = s24.plan(packed.to_array(), x.T, out_order="column")
    torch.testing.assert_close(plan.execute(x.T).T, x @ packed.detach().T)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["hybrid", "2:4", "3:8", "bfloat16"])
def test_autocast_gives_the_type_of_a_dense_product(rng, kind, dtype):
    w = rng.standard_normal((M, 64)).astype(np.float32)
    how = {"pattern": (3, 8)} if kind == "3:8" else {}
    a = s24.hybrid(w) if kind == "hybrid" else s24.compress(w, on_excess="prune", **how)
    a = a.astype(kind) if kind == "bfloat16" else a
    dense = torch.from_numpy(np.asarray(a.toarray(), np.float32))
    x = torch.from_numpy(rng.standard_normal((5, 64)).astype(np.float32)).requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        for y in (s24.torch.matmul(x, a.T), s24.torch.matmul(a, x.T).T):
            assert y.dtype == (x @ dense.T).dtype == dtype
            torch.testing.assert_close(y, (x.double() @ dense.double().T).to(dtype))
        assert s24.torch.matmul(x.to(dtype), a.T).dtype == dtype
        assert s24.torch.matmul(x, a.T, dtype="float32").dtype == torch.float32
        assert s24.torch.matmul(x.double(), a.T).dtype == torch.float64
    (got,) = torch.autograd.grad(y.float().sum(), x)
    torch.testing.assert_close(got, dense.sum(0).expand(5, -1), rtol=2e-2, atol=2e-2)
    assert s24.torch.matmul(x, a.T).dtype == torch.float32  # outside of it


def test_autocast_leaves_whole_numbers_alone():
    a = s24.compress(np.eye(4, dtype=np.int8))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert s24.torch.matmul(a, torch.ones(4, 1, dtype=torch.int8)).dtype == torch.int32


@pytest.mark.parametrize("name", ["int8", "float8_e4m3fn", "float8_e5m2"])
def test_autocast_of_8_bits_is_that_of_a_layer_with_a_packed_weight(rng, name):
    a = s24.random((12, 32), dtype=name, rng=rng)
    weight = s24.torch.to_sparse_semi_structured(a)
    for given in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        x = torch.from_numpy(rng.standard_normal((5, 32))).to(given)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            want = torch.nn.functional.linear(x, weight)
            for y in (s24.torch.matmul(x, a.T), s24.torch.matmul(a, x.T).T):
                assert y.dtype == want.dtype
                torch.testing.assert_close(y, want, rtol=2e-2, atol=2e-2 * float(want.abs().max()))
        assert s24.torch.matmul(x, a.T).dtype == given  # outside of it
