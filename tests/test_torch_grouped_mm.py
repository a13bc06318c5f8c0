"""Dense products of experts: torch's grouped product, where it runs, and one by one."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from test_torch_experts import COUNTS, FLOATS, assert_near, looped, offsets_of  # noqa: E402

from sparse24 import _arrays  # noqa: E402
from sparse24._errors import UnsupportedError  # noqa: E402
from sparse24._torch import grouped_mm as torch_grouped_mm  # noqa: E402

HALF = torch.bfloat16


@pytest.fixture(params=["one by one", "in one launch"])
def how(request, monkeypatch):
    """On the CPU torch has the products of a GPU, slow, with the same checks of layouts."""
    if request.param == "in one launch":
        one = torch.ones(1, 8, dtype=HALF)
        try:
            torch_grouped_mm._grouped(one.t(), one, offs=torch.ones(1, dtype=torch.int32))
        except (NotImplementedError, TypeError):
            pytest.skip("this torch has no grouped product on the CPU")
        monkeypatch.setattr(torch_grouped_mm, "in_one_launch", lambda *_: True)
    return request.param


def operands(counts, m=16, k=24):
    """x (t, m), a weight (e, m, k), dy (t, k) and offsets."""
    t, e = sum(counts), len(counts)
    x, weight, dy = torch.randn(t, m), torch.randn(e, m, k), torch.randn(t, k)
    return x.to(HALF), weight.to(HALF), dy.to(HALF), offsets_of(counts)


def laid_out(x, layout):
    if layout == "columns":
        return x.mT.contiguous().mT
    if layout == "part of wider rows":
        return torch.cat([x, x], -1)[..., : x.shape[-1]]
    if layout == "off by an element":
        return torch.cat([x[..., :1], x], -1)[..., 1:]
    return x


@pytest.mark.parametrize("layout", ["rows", "columns", "part of wider rows", "off by an element"])
@pytest.mark.parametrize("counts", [COUNTS, (5,), (1, 0), (0, 1)], ids=str)
def test_products_and_gradients_of_any_layout(how, layout, counts):
    x, weight, dy, offsets = operands(counts)
    x, weight, dy = (laid_out(part, layout) for part in (x, weight, dy))
    y = torch_grouped_mm.products(x, weight, offsets)
    want = looped(x.double(), weight.double().mT, None, offsets)
    dw = torch_grouped_mm.gradients(x, dy, offsets)
    ends = offsets.tolist()
    wanted = [x[i:j].double().T @ dy[i:j].double() for i, j in itertools.pairwise(ends)]
    assert (y.dtype, dw.dtype) == (HALF, HALF)
    assert_near([y, *dw], [want, *wanted], FLOATS[HALF])


def test_which_operands_torch_multiplies_in_one_launch(monkeypatch):
    there = {"is_cuda": True, "device": None, "dtype": HALF, "numel": lambda: 64}
    fits = SimpleNamespace(**there, shape=(4, 16))
    offsets = torch.zeros(4, dtype=torch.int32)
    monkeypatch.setattr(torch_grouped_mm, "_grouped", print)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(_arrays, "captures_work_on", lambda x: False)
    chosen = torch_grouped_mm.in_one_launch
    assert chosen(fits, fits, offsets)
    for other in (
        {"shape": (4, 12)}, {"dtype": torch.float16}, {"is_cuda": False}, {"numel": lambda: 0},
    ):  # fmt: skip
        unfit = SimpleNamespace(**{**vars(fits), **other})
        assert not chosen(unfit, fits, offsets)
    assert not chosen(fits, SimpleNamespace(**{**vars(fits), "shape": (4, 12)}), offsets)
    assert not chosen(fits, fits, torch.zeros(1))
    assert not chosen(fits, fits, torch.zeros(1025))
    monkeypatch.setattr(_arrays, "captures_work_on", lambda x: True)
    assert not chosen(fits, fits, offsets)  # on the host
    monkeypatch.setattr(_arrays, "captures_work_on", lambda x: False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (10, 0))
    assert not chosen(fits, fits, offsets)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch_grouped_mm, "_grouped", None)
    assert not chosen(fits, fits, offsets)


@pytest.mark.gpu
def test_bfloat16_takes_one_launch_on_hopper():
    if torch.cuda.get_device_capability()[0] != 9 or torch_grouped_mm._grouped is None:
        pytest.skip("torch's grouped product is for Hopper")
    x, weight, dy, offsets = (part.cuda() for part in operands((300, 0, 9, 77, 0)))
    assert torch_grouped_mm.in_one_launch(x, weight, offsets)
    got = torch_grouped_mm.products(x, weight, offsets)
    dw = torch_grouped_mm.gradients(x, dy, offsets)
    assert_near([got], [looped(x.double(), weight.double().mT, None, offsets)], FLOATS[HALF])
    ends = offsets.tolist()
    wanted = [x[i:j].double().T @ dy[i:j].double() for i, j in itertools.pairwise(ends)]
    assert_near(dw, wanted, FLOATS[HALF])
    assert not dw[[1, 4]].any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_sums_of_rows_where_the_offsets_are(device, dtype):
    dy, offsets = torch.randn(sum(COUNTS), 6, device=device).to(dtype), offsets_of(COUNTS, device)
    for given in (offsets, offsets.int()):
        got = torch_grouped_mm.sums_there(dy, given)
        want = [dy[i:j].double().sum(0) for i, j in zip(offsets.tolist(), offsets.tolist()[1:])]
        assert got.dtype == dtype
        assert_near(got, want, FLOATS[dtype])


def test_a_graph_of_products_one_by_one_wants_offsets_on_the_host(monkeypatch):
    class There:
        is_cuda = True

    monkeypatch.setattr(_arrays, "captures_work_on", lambda x: True)
    with pytest.raises(UnsupportedError, match=r"expert by expert.*a list or a tensor on the CPU"):
        next(torch_grouped_mm.experts_with_tokens(torch.ones(3, 8), There()))
    monkeypatch.undo()
    assert not list(torch_grouped_mm.experts_with_tokens(torch.ones(0, 8), There()))
