"""What packed stacks do that quantised ones do not: factors, sums, pruning that is learned."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from test_torch_experts import COUNTS, looped, offsets_of  # noqa: E402
from torch_cases import CLOSE, WAYS, gradients  # noqa: E402

import sparse24 as s24  # noqa: E402
from sparse24 import torch as st  # noqa: E402
from sparse24._errors import PatternError, ShapeError, UnsupportedError  # noqa: E402

E, M, K = len(COUNTS), 128, 64
SHAPE = (E, M, K)
TURNED_WAYS = {
    **WAYS,
    "along columns": lambda w: st.to_sparse_semi_structured(w.mT.contiguous()).mT,
    "both ways, turned": lambda w: st.sparsify24(w.mT.contiguous()).mT,
}


def stack(way="along rows", device="cpu", shape=SHAPE):
    """A stack that is packed in some way, and what it stands for."""
    weight = torch.randn(shape, device=device)
    weight = weight * s24.mask(weight, transposable=True)
    return TURNED_WAYS[way](weight), weight


@pytest.mark.parametrize("way", WAYS)
def test_it_stands_for_its_matrices(device, way):
    weight, dense = stack(way, device)
    assert torch.equal(weight.to_dense(), dense)
    for one, want in zip(weight.unbind(), dense, strict=True):
        assert torch.equal(one.to_dense(), want)
        x = torch.randn(3, K, device=device)
        torch.testing.assert_close(x @ one.mT, x @ want.mT, **CLOSE)
    rows_and_columns = slice(None), slice(64, 128), slice(4, 12)
    for cut in (slice(1, 3), (slice(None), slice(64, 128)), rows_and_columns):
        assert torch.equal(weight[cut].to_dense(), dense[cut])
        assert torch.equal(weight[cut].mT.to_dense(), dense[cut].mT)


FACTORS = [2.5, (), (1,), (E, 1, 1), (E, M, 1), (E, 1, K), (M, 1), (K,), (M, K), SHAPE]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("factor", FACTORS, ids=str)
def test_factors_scale_its_elements(device, factor, way):
    weight, dense = stack(way, device)
    factor = torch.rand(factor, device=device) + 1 if isinstance(factor, tuple) else factor
    for got, want in (
        (weight * factor, dense * factor),
        (weight / factor, dense / factor),
        (-weight, -dense),
        (abs(weight), abs(dense)),
    ):
        assert len(got.parts) == len(weight.parts)
        assert torch.equal(got.to_dense(), want)
        assert torch.equal(got[1].to_dense(), want[1])


def test_no_matrix_has_factors_and_sums():
    weight, _ = stack(shape=(0, 4, 8))
    assert (weight * torch.ones(8)).shape == (weight + weight).shape == (0, 4, 8)


def test_a_factor_that_would_enlarge_it_is_refused():
    weight, _ = stack()
    for shape in ((E + 1, 1, 1), (1, *SHAPE), (3,)):
        with pytest.raises(ShapeError, match=r"does not broadcast to \(5, 128, 64\).*; reshape it"):
            weight * torch.ones(shape)


@pytest.mark.parametrize("way", WAYS)
def test_sums_of_two_are_packed(device, way):
    weight, dense = stack(way, device)
    other = 2 * weight
    assert torch.equal((weight + other).to_dense(), 3 * dense)
    assert torch.equal((weight - other)[1].to_dense(), -dense[1])
    with pytest.raises(PatternError, match="must obey 2:4"):
        weight + stack(way, device)[0]
    with pytest.raises(UnsupportedError, match="not defined"):
        weight[0].expand(SHAPE) + weight


def test_weights_of_experts_are_averaged():
    layer, later = torch.nn.Module(), torch.nn.Module()
    weight, dense = stack()
    layer.up, later.up = (torch.nn.Parameter(w, requires_grad=False) for w in (weight, 3 * weight))
    averaged = torch.optim.swa_utils.AveragedModel(layer)
    for model in (layer, later):
        averaged.update_parameters(model)
    torch.testing.assert_close(averaged.module.up.to_dense(), 2 * dense)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int8])
@pytest.mark.parametrize("way", WAYS)
def test_another_type_is_packed_along_the_same_axes(device, way, dtype):
    weight, dense = stack(way, device)
    new = weight.to(dtype)
    assert (new.dtype, len(new.parts), new.turned) == (dtype, len(weight.parts), weight.turned)
    assert torch.equal(new.to_dense(), dense.to(dtype))


@pytest.mark.parametrize("way", ["along rows", "both ways"])
def test_codes_in_the_order_of_a_gpu(way):
    """Which have an axis more than on the CPU."""
    _, dense = stack(shape=(3, 128, 64))
    dense = dense.half()
    arrays = [s24.compress(x.contiguous()) for x in (dense, dense.mT)[: 1 if "rows" in way else 2]]
    parts = [part for a in arrays for part in map(torch.tensor, (a.values, a.packed))]
    weight = st.Sparse24Tensor(parts, dense.shape)
    assert weight.stacked
    assert torch.equal(weight.to_dense(), dense)
    assert not weight[1].stacked
    assert torch.equal(weight[1].to_dense(), dense[1])
    cuts = [slice(1, 3), slice(64, 128), slice(8, 16)]
    for axis, cut in ((0, cuts[0]), (1, cuts[1]), (1, cuts[2]), (2, cuts[2])):
        part, want = (a.narrow(axis, cut.start, cut.stop - cut.start) for a in (weight, dense))
        assert torch.equal(part.to_dense(), want)
        assert torch.equal(part[1].to_dense(), want[1])
    numbers = torch.tensor([2, 0])
    assert torch.equal(weight[numbers].to_dense(), dense[numbers])
    x = torch.randn(5, 64, dtype=torch.float16)
    got = st.grouped_linear(x, weight, offsets=[0, 2, 2, 5])
    want = torch.cat([x[:2] @ dense[0].T, x[2:] @ dense[2].T])
    torch.testing.assert_close(got, want, rtol=1e-2, atol=1e-2)


# --- pruning that is learned ------------------------------------------------------------------

PRODUCTS = {
    "grouped": lambda x, w, offsets: st.grouped_linear(x, w, offsets=offsets),
    "torch": lambda x, w, offsets: torch._grouped_mm(x, w.mT, offs=offsets[1:].int()),
    "loop": lambda x, w, offsets: looped(x, w, None, offsets),
    "stacks": lambda x, w, offsets: x[: 2 * E].view(E, 2, K) @ w.mT,
    "by the rows": lambda x, w, offsets: (w @ x[: 2 * E].view(E, 2, K).mT).contiguous(),
}


def unpruned(product):
    """The same for dense weights, which `grouped_linear` would prune."""
    return PRODUCTS["loop" if product == "grouped" else product]


@pytest.mark.parametrize("gradient", ["ste", "24dense", "24sparse"])
@pytest.mark.parametrize("product", PRODUCTS)
def test_what_is_pruned_has_its_gradient(device, product, gradient):
    weight = torch.randn(SHAPE, device=device, requires_grad=True)
    x = torch.randn(sum(COUNTS), K, device=device, requires_grad=True)
    mask = s24.mask(weight.detach(), transposable=True)
    multiply, offsets = PRODUCTS[product], offsets_of(COUNTS, device)
    dense = (weight * mask).detach().requires_grad_()
    got = multiply(x, st.sparsify24(weight, gradient=gradient), offsets)
    want = unpruned(product)(x, dense, offsets)
    torch.testing.assert_close(got, want, **CLOSE)
    (dx, dw), (want_dx, want_dw) = gradients(got, x, weight), gradients(want, x, dense)
    torch.testing.assert_close(dx, want_dx, **CLOSE)
    torch.testing.assert_close(dw, want_dw if gradient == "ste" else want_dw * mask, **CLOSE)


@pytest.mark.parametrize("product", ["grouped", "stacks"])
def test_code_that_prunes_compiles(product, compiles_anew):
    weight, x = torch.randn(SHAPE, requires_grad=True), torch.randn(sum(COUNTS), K)
    offsets = offsets_of(COUNTS)
    run = lambda w: PRODUCTS[product](x, st.sparsify24(w), offsets).square()  # noqa: E731
    want, got = run(weight), torch.compile(run, fullgraph=True, backend="aot_eager")(weight)
    torch.testing.assert_close(got, want, **CLOSE)
    ours, wanted = (torch.autograd.grad(y.sum(), weight) for y in (got, want))
    torch.testing.assert_close(ours, wanted, **CLOSE)


def test_a_stack_that_is_not_24_is_refused():
    with pytest.raises(PatternError, match="more than 2 non-zeros"):
        st.to_sparse_semi_structured(torch.ones(2, 4, 8))
    for make in (st.to_sparse_semi_structured, st.sparsify24):
        with pytest.raises(ShapeError, match=r"a matrix \(m, k\) or a stack \(e, m, k\), got"):
            make(torch.zeros(2, 2, 4, 8))


@pytest.mark.parametrize("product", PRODUCTS)
def test_a_packed_parameter_has_a_dense_gradient(device, product):
    packed, dense = stack(device=device)
    weight, dense = torch.nn.Parameter(packed), dense.requires_grad_()
    x, offsets = torch.randn(sum(COUNTS), K, device=device), offsets_of(COUNTS, device)
    got, want = PRODUCTS[product](x, weight, offsets), unpruned(product)(x, dense, offsets)
    ours, wanted = gradients(got, weight), gradients(want, dense)
    torch.testing.assert_close(ours, wanted, **CLOSE)
