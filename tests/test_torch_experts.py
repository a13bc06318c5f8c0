"""Experts that learn, against a loop of dense layers with masked weights, on either device."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch_cases import CLOSE, gradients  # noqa: E402

import sparse24 as s24  # noqa: E402
from sparse24 import torch as st  # noqa: E402

COUNTS = (3, 0, 7, 1, 0)
FLOATS = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 4e-3}


def offsets_of(counts, device="cpu"):
    ends = torch.tensor(counts, dtype=torch.int64).cumsum(0)
    return torch.nn.functional.pad(ends, (1, 0)).to(device)


def operands(device="cpu", m=16, k=32, counts=COUNTS, dtype=torch.float32):
    """x, weight, bias and offsets."""
    shapes = (sum(counts), k), (len(counts), m, k), (len(counts), m)
    made = (torch.randn(s, device=device).to(dtype).requires_grad_() for s in shapes)
    return *made, offsets_of(counts, device)


def looped(x, weight, bias, offsets):
    """Dense layers, one after the other."""
    ends = offsets.tolist()
    parts = [x[i:j] @ w.T for w, i, j in zip(weight, ends, ends[1:])]
    if bias is not None:
        parts = [part + b for part, b in zip(parts, bias, strict=True)]
    return torch.cat(parts) if parts else x.new_zeros(0, weight.shape[1])


def reference(x, weight, bias, offsets, mask, gradient="ste", decay=0.0):
    """The result and all gradients of masked layers, in float64."""
    given = (x, weight * mask, bias)
    x, kept, b = (None if g is None else g.detach().double().requires_grad_() for g in given)
    y = looped(x, kept, b, offsets)
    dx, dw, *db = gradients_of(y, *(g for g in (x, kept, b) if g is not None))
    dw = dw if gradient == "ste" else dw * mask
    return y, dx, dw + decay * weight.detach().double() * ~mask, *db


def gradients_of(y, *tensors):
    """For the same gradient of y, whatever its type."""
    torch.manual_seed(1)
    dy = torch.randn(y.shape, dtype=torch.float64).to(torch.float16)
    return torch.autograd.grad(y, tensors, dy.to(y.device, y.dtype))


def assert_near(got, want, within):
    for a, b in zip(got, want, strict=True):
        size = b.abs().max().item() if b.numel() else 0
        torch.testing.assert_close(a.double(), b, rtol=0, atol=within * (size + 1e-3))


@pytest.mark.parametrize("transposable", [False, True])
@pytest.mark.parametrize("gradient", ["ste", "24dense"])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("given", [False, True])
def test_gradients_equal_those_of_masked_layers(device, transposable, gradient, decay, given):
    x, weight, bias, offsets = operands(device)
    scores = torch.rand_like(weight) if given else weight.detach()
    mask = s24.mask(scores, transposable=transposable)
    options = {"gradient": gradient, "transposable": transposable, "decay": decay}
    y = st.grouped_linear(x, weight, bias, offsets=offsets, mask=mask if given else None, **options)
    got = (y, *gradients_of(y, x, weight, bias))
    want = reference(x, weight, bias, offsets, mask, gradient, decay)
    assert_near(got, want, 1e-5)
    assert not got[3][1].any()  # an expert without tokens
    if decay == 0.0:
        assert not got[2][[1, 4]].any()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", [(16, 32), (7, 13), (1, 1), (64, 8), (9, 3), (4, 2)])
@pytest.mark.parametrize("transposable", [False, True])
def test_every_type_and_size(device, dtype, size, transposable):
    x, weight, bias, offsets = operands(device, *size, dtype=dtype)
    y = st.grouped_linear(x, weight, bias, offsets=offsets, transposable=transposable)
    assert y.dtype == dtype
    assert y.is_contiguous()
    got = (y, *gradients_of(y, x, weight, bias))
    mask = s24.mask(weight.detach(), transposable=transposable)
    assert_near(got, reference(x, weight, bias, offsets, mask), FLOATS[dtype])
    assert {g.dtype for g in got} == {dtype}


@pytest.mark.parametrize("transposable", [False, True])
@pytest.mark.parametrize("counts", [(0,), (5,), (0, 0, 3), (4, 0, 0), (0, 0), (1,) * 9], ids=str)
def test_empty_experts_one_expert_and_no_tokens(device, counts, transposable):
    x, weight, bias, offsets = operands(device, 8, 16, counts)
    y = st.grouped_linear(x, weight, bias, offsets=offsets, transposable=transposable)
    got = (y, *gradients_of(y, x, weight, bias))
    mask = s24.mask(weight.detach(), transposable=transposable)
    assert_near(got, reference(x, weight, bias, offsets, mask), 1e-5)


@pytest.mark.parametrize("place", ["there", "int32", "on the host", "list"])
def test_offsets_of_every_kind(device, place):
    x, weight, bias, offsets = operands(device)
    given = {
        "there": offsets, "int32": offsets.int().repeat_interleave(2)[::2],
        "on the host": offsets.cpu(), "list": offsets.tolist(),
    }[place]  # fmt: skip
    y = st.grouped_linear(x, weight, bias, offsets=given)
    got = (y, *gradients_of(y, x, weight, bias))
    want = reference(x, weight, bias, offsets, s24.mask(weight.detach()))
    assert_near(got, want, 1e-5)


def test_any_strides_and_no_bias(device):
    x, weight, _, offsets = operands(device, 12, 20)
    across = x.detach().t().contiguous().t().requires_grad_()
    turned = weight.detach().mT.contiguous().mT.requires_grad_()
    wide = torch.cat([x, x], 1).detach()[:, 1:21].requires_grad_()
    for rows, matrices in ((across, turned), (wide, weight)):
        y = st.grouped_linear(rows, matrices, offsets=offsets)
        got = (y, *torch.autograd.grad(y.sum(), (rows, matrices)))  # of one number for all
        mask = s24.mask(matrices.detach())
        dense = [t.detach().double().requires_grad_() for t in (rows, matrices * mask)]
        want = looped(*dense, None, offsets)
        assert_near(got, (want, *torch.autograd.grad(want.sum(), dense)), 1e-5)


def test_types_that_differ_are_promoted(device):
    x, weight, bias, offsets = operands(device)
    for x_type, w_type, result in (
        (torch.bfloat16, torch.float32, torch.float32),
        (torch.float32, torch.float16, torch.float32),
        (torch.float32, torch.float64, torch.float64),
    ):
        a, w = (t.detach().to(d).requires_grad_() for t, d in ((x, x_type), (weight, w_type)))
        y = st.grouped_linear(a, w, bias, offsets=offsets)
        assert y.dtype == result
        got = (y, *gradients_of(y, a, w, bias))
        assert [g.dtype for g in got[1:]] == [x_type, w_type, torch.float32]
        assert_near(got, reference(a, w, bias, offsets, s24.mask(w.detach())), 1e-2)


def test_gradients_pass_finite_differences():
    x, weight, bias, offsets = operands("cpu", 4, 8, (2, 0, 1), torch.float64)
    mask = s24.mask(weight.detach(), transposable=True)

    def product(x, bias):
        options = {"mask": mask, "transposable": True}
        return st.grouped_linear(x, weight, bias, offsets=offsets, **options)

    assert torch.autograd.gradcheck(product, (x, bias))
    kept = (weight * mask).detach().requires_grad_()

    def of_weight(kept):
        return st.grouped_linear(x, kept, offsets=offsets, mask=mask, gradient="24dense")

    assert torch.autograd.gradcheck(of_weight, kept)


def test_nan_stays_with_the_tokens_of_its_expert(device):
    x, weight, bias, offsets = operands(device)
    with torch.no_grad():
        x[3:10] = torch.nan
    y = st.grouped_linear(x, weight, bias, offsets=offsets)
    dx, dw, db = torch.autograd.grad(y, (x, weight, bias), y.detach())
    assert y[3:10].isnan().all()
    for part in (y[:3], y[10:], dx[:3], dx[10:], dw[:2], dw[3:], db[:2], db[3:]):
        assert part.isfinite().all()


def test_only_wanted_gradients_are_computed(device):
    x, weight, bias, offsets = operands(device)
    (dx,) = gradients(st.grouped_linear(x, weight.detach(), offsets=offsets), x)
    (dw,) = gradients(st.grouped_linear(x.detach(), weight, offsets=offsets), weight)
    (db,) = gradients(st.grouped_linear(x.detach(), weight.detach(), bias, offsets=offsets), bias)
    y = st.grouped_linear(x, weight, bias, offsets=offsets)
    for got, want in zip((dx, dw, db), gradients(y, x, weight, bias), strict=True):
        torch.testing.assert_close(got, want)


def test_autocast(device):
    x, weight, bias, offsets = operands(device)
    with torch.autocast(device, torch.bfloat16):
        y = st.grouped_linear(x, weight, bias, offsets=offsets, transposable=True)
        inner = gradients_of(y, x, weight)  # torch's own products would be cast as well
    assert y.dtype == torch.bfloat16
    mask = s24.mask(weight.detach().bfloat16(), transposable=True)
    want = reference(x, weight, bias, offsets, mask)
    got = gradients_of(
        st.grouped_linear(
            x.bfloat16(), weight.bfloat16(), bias, offsets=offsets, transposable=True
        ), x, weight,
    )  # fmt: skip
    assert [g.dtype for g in inner] == [torch.float32] * 2
    assert_near((y, *inner), want[:3], 3e-2)
    assert_near(inner, [g.double() for g in got], 1e-6)


@pytest.mark.parametrize("as_list", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("options", [{}, {"transposable": True, "decay": 0.1}])
def test_compiles_without_graph_breaks(device, options, dynamic, as_list, compiles_anew):
    def product(x, weight, bias, offsets):
        return st.grouped_linear(x, weight, bias, offsets=offsets, **options)

    fast = torch.compile(product, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for counts in (COUNTS, (4, 4, 0, 0, 2)):
        x, weight, bias, offsets = operands(device, counts=counts)
        given = offsets.tolist() if as_list else offsets
        y, want = fast(x, weight, bias, given), product(x, weight, bias, given)
        got, wanted = (gradients(z, x, weight, bias) for z in (y, want))
        for a, b in zip((y, *got), (want, *wanted), strict=True):
            torch.testing.assert_close(a, b, **CLOSE)


def test_operators_pass_torchs_own_checks(device):
    x, weight, bias, offsets = (t.detach() for t in operands(device, 8, 16))
    ops, tests = torch.ops.sparse24, ("test_schema", "test_faketensor")
    masks = [s24.mask(weight, transposable=both) for both in (False, True)]
    for mask, both in ((None, False), (None, True), (masks[0], False), (masks[1], True)):
        torch.library.opcheck(ops.pack.default, (weight, mask, both), test_utils=tests)
        parts = ops.pack(weight, mask, both)
        assert torch.equal(ops.dense(parts, 8, 16), weight * masks[both])
        torch.library.opcheck(ops.dense.default, (parts, 8, 16), test_utils=tests)
        narrow = x[:, :8].contiguous()
        for turned, given, added, *finish in (
            (False, x, bias, None, False), (True, narrow, None, None, False),
            (False, x, bias, "silu", True),
        ):  # fmt: skip
            args = (parts, 8, 16, given, added, offsets, turned, *finish)
            torch.library.opcheck(ops.grouped_product.default, args, test_utils=tests)
    dy = torch.randn(len(x), 8, device=device)
    torch.library.opcheck(ops.grouped_dense.default, (x, weight, bias, offsets), test_utils=tests)
    torch.library.opcheck(ops.grouped_gradient.default, (dy, x, offsets), test_utils=tests)
    torch.library.opcheck(ops.grouped_sum.default, (dy, offsets), test_utils=tests)


@pytest.mark.gpu
@pytest.mark.parametrize("transposable", [False, True])
def test_nothing_waits_and_a_graph_reads_offsets_anew(transposable):
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("one launch for all experts needs Hopper")
    counts, others = (64, 0, 200, 8), (0, 100, 72, 100)
    x, weight, bias, offsets = operands("cuda", 128, 256, counts, torch.bfloat16)
    dy = torch.randn(len(x), 128, device="cuda", dtype=torch.bfloat16)

    def step():
        y = st.grouped_linear(x, weight, bias, offsets=offsets, transposable=transposable)
        return y, *torch.autograd.grad(y, (x, weight, bias), dy)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # compile, choose, fill caches
        step()
        torch.cuda.set_sync_debug_mode("error")
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    offsets.copy_(offsets_of(others))
    graph.replay()
    for a, b in zip(captured, step(), strict=True):
        torch.testing.assert_close(a, b)
    mask = s24.mask(weight.detach(), transposable=transposable)
    y = looped(*(t.detach().double().requires_grad_() for t in (x, weight * mask, bias)), offsets)
    torch.testing.assert_close(captured[0].double(), y.detach(), rtol=2e-2, atol=0.5)
    assert not captured[2][0].any()


@pytest.mark.gpu
@pytest.mark.parametrize("size", [(128, 256), (64, 72), (100, 50)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_of_many_tokens(size, dtype):
    x, weight, bias, offsets = operands("cuda", *size, (300, 0, 1, 77, 0), dtype)
    y = st.grouped_linear(x, weight, bias, offsets=offsets)
    got = (y, *gradients_of(y, x, weight, bias))
    want = reference(x, weight, bias, offsets, s24.mask(weight.detach()))
    assert_near(got, want, FLOATS[dtype])
