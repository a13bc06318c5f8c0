"""Rows and groups of columns of a `Sparse24Tensor`."""

from __future__ import annotations

import copy
import io

import pytest

torch = pytest.importorskip("torch")

from torch_cases import CLOSE  # noqa: E402

import sparse24 as s24  # noqa: E402
from sparse24 import torch as st  # noqa: E402
from sparse24._errors import ShapeError, UnsupportedError  # noqa: E402

M, K = 200, 136  # more than one tile of codes on a GPU, and no whole number of them
MAKERS = {
    "plain": lambda w: st.to_sparse_semi_structured(s24.prune(w)),
    "turned": lambda w: st.to_sparse_semi_structured(s24.prune(w.T.contiguous())).T,
    "transposable": lambda w: st.sparsify24(w),
}
CUTS = {
    "rows": lambda w: w[:64],
    "rows of tiles": lambda w: w[64:192],
    "last rows": lambda w: w[128:],
    "rows within tiles": lambda w: w[12:100],
    "columns": lambda w: w[:, 8:72],
    "last columns": lambda w: w[..., 64:],
    "both": lambda w: w[64:, 4:12],
    "none": lambda w: w[:0],
    "no columns": lambda w: w[:, 5:5],
    "narrow": lambda w: w.narrow(1, 4, 8),
    "split": lambda w: w.split(64)[3],
    "split of none": lambda w: w[:0].split(64)[0],
    "split in": lambda w: w.split([64, 136])[1],
    "split along columns": lambda w: torch.split(w, [128, 8], dim=-1)[0],
    "chunk": lambda w: w.chunk(2)[1],
    "tensor_split": lambda w: w.tensor_split(2)[0],
    "negative": lambda w: w[-64:],
}


def matrix(make, device="cpu"):
    return MAKERS[make](torch.randn(M, K, device=device))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("cut", CUTS)
def test_parts_are_those_of_the_dense_matrix(device, make, cut, dtype):
    w = matrix(make, device).mul(20).to(dtype)
    got, want = CUTS[cut](w), CUTS[cut](w.to_dense())
    assert type(got) is st.Sparse24Tensor
    assert torch.equal(got.to_dense(), want)
    b = torch.ones(want.shape[1], 3, device=device, dtype=dtype)
    close = CLOSE if dtype != torch.bfloat16 else {"rtol": 2e-2, "atol": 2.0}
    y = want.float() @ b.float()
    torch.testing.assert_close((got @ b).float(), y, **close)
    torch.testing.assert_close((got[:4] @ b).float(), y[:4], **close)


def test_rows_are_views():
    w = matrix("plain")
    assert w[8:].parts[0].data_ptr() == w.parts[0][8:].data_ptr()
    assert w.T[:, 8:].parts[1].data_ptr() == w.parts[1][8:].data_ptr()


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("compiled", [False, True])
def test_parts_have_their_gradients(make, compiled):
    weight, found = torch.randn(M, K, requires_grad=True), []
    packed = matrix(make).detach().requires_grad_()

    def loss(w, x):
        gate, up = w.chunk(2)
        y = torch.nn.functional.linear(x, gate) * torch.nn.functional.linear(x, up)
        return y.square().mean() + (w[:, :64] @ x[:, :64].T).square().mean()

    torch._dynamo.reset()
    ours = torch.compile(loss, fullgraph=True, backend="aot_eager") if compiled else loss
    with torch.no_grad():
        weight.copy_(packed.to_dense())
    for call, w in ((ours, packed), (loss, weight)):
        x = torch.linspace(-1, 1, 5 * K).reshape(5, K).requires_grad_()
        found.append(torch.autograd.grad(call(w, x), (w, x)))
    for got, want in zip(*found, strict=True):
        assert type(got) is torch.Tensor
        torch.testing.assert_close(got, want, **CLOSE)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_parts_of_a_parameter_without_gradients(mode):
    w, x = torch.nn.Parameter(matrix("plain")), torch.randn(3, K)
    with mode():
        for got, want in zip(w.split(100), w.to_dense().split(100), strict=True):
            y = torch.nn.functional.linear(x, got)
            torch.testing.assert_close(y, torch.nn.functional.linear(x, want), **CLOSE)


def test_a_part_is_saved_and_copied():
    part, file = matrix("plain")[8:40], io.BytesIO()
    torch.save(part, file)
    file.seek(0)
    for again in (copy.deepcopy(part), torch.load(file, weights_only=True)):
        assert torch.equal(again, part)
    assert torch.equal(s24.convert.to_torch(part.to_array()), part.to_dense())


@pytest.mark.parametrize("cut", [lambda w: w[8:40], lambda w: w[:, 8:72], lambda w: w.T[:64]])
def test_a_deep_copy_of_a_part_is_a_matrix_of_its_own(cut):
    w, other = matrix("plain"), matrix("plain")
    layers = torch.nn.ParameterList([w, cut(w)]).requires_grad_(False)
    twin, before = copy.deepcopy(layers), w.to_dense()
    assert twin[1].requires_grad is False
    twin[1].copy_(cut(other).clone())
    assert torch.equal(twin[1].to_dense(), cut(other).to_dense())
    assert torch.equal(twin[0].to_dense(), before)
    assert torch.equal(layers[1].to_dense(), cut(before))


def test_cuts_through_groups_are_refused():
    plain, both = matrix("plain"), matrix("transposable")
    for cut in (
        lambda w: w[:, 2:8],
        lambda w: w[:, :6],
        lambda w: w.T[3:],
        lambda w: w.split(6, 1),
    ):
        with pytest.raises(ShapeError, match=r"cuts a group of 4 .* multiples of 4, or call"):
            cut(plain)
        cut(both)  # has the other orientation


REFUSED = {
    "step": (lambda w: w[::2], UnsupportedError, r"aten.slice.* not defined .*\.to_dense\(\)"),
    "row": (lambda w: w[3], UnsupportedError, r"aten.select.* not defined .*\.to_dense\(\)"),
    "stack": (lambda w: w.expand(2, M, K)[:1], UnsupportedError, r"aten.slice.* not defined"),
    "axis": (lambda w: w.split(8, 2), ShapeError, r"axes of a Sparse24Tensor .* are -2 to 1"),
    "sizes": (lambda w: w.split([1, 2]), ShapeError, r"add up to 200, got \[1, 2\]; give others"),
    "size": (lambda w: w.split(0), ShapeError, r"a size of 1 or more, got 0; give another"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_other_parts_say_what_to_do(case):
    cut, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        cut(matrix("plain"))
