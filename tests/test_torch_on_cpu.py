"""What packed weights on the CPU keep of their products, and until when."""

from __future__ import annotations

import ctypes
import gc
import weakref

import pytest

torch = pytest.importorskip("torch")

from torch_cases import CLOSE, WAYS  # noqa: E402
from torch_quantised_cases import BITS, packed  # noqa: E402

import sparse24 as s24  # noqa: E402
from sparse24 import _dispatch  # noqa: E402
from sparse24 import torch as st  # noqa: E402
from sparse24._torch import kept_arrays, on_cpu  # noqa: E402

F = torch.nn.functional
M, K = 48, 256
FORMS = {
    "linear": lambda w, x, y, bias: F.linear(x, w),
    "with a bias": lambda w, x, y, bias: F.linear(x, w, bias),
    "with a batch": lambda w, x, y, bias: F.linear(x.expand(2, *x.shape), w, bias),
    "x @ w": lambda w, x, y, bias: y @ w,
    "w @ x": lambda w, x, y, bias: w @ x.T,
    "w.T @ y": lambda w, x, y, bias: w.T @ y.T,
}


def made(way, dtype=torch.float32):
    """A new packed weight, which nothing else holds, and what it stands for."""
    if way in BITS:
        weight, dense = packed(way, (M, K), dtype)
        return weight.clone(), dense
    if dtype == torch.int8:
        dense = torch.randint(-9, 9, (M, K), dtype=torch.int8)
    else:
        dense = torch.randn(M, K).to(dtype)
    axis = -2 if way == "along columns" else -1
    dense = s24.prune(dense, axis=axis, transposable=way.startswith("both"))
    return WAYS[way](dense), dense


def operands(tokens, dtype=torch.float32):
    if dtype == torch.int8:
        random = lambda *shape: torch.randint(-9, 9, shape, dtype=dtype)  # noqa: E731
    else:
        random = lambda *shape: torch.randn(shape).to(dtype)  # noqa: E731
    return random(tokens, K), random(tokens, M), torch.randn(M)


@pytest.fixture
def plans(monkeypatch):
    """A list that gets an entry for each product that is planned."""
    planned, fill = [], _dispatch.fill
    monkeypatch.setattr(_dispatch, "fill", lambda *given: planned.append(given) or fill(*given))
    return planned


@pytest.mark.parametrize("tokens", [1, 20])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("way", [*WAYS, *BITS])
def test_products_are_planned_once(plans, way, form, tokens):
    weight, dense = made(way)
    for number in range(4):
        given = operands(tokens)
        plans.clear()
        got = FORMS[form](weight, *given)
        torch.testing.assert_close(got, FORMS[form](dense, *given), **CLOSE)
        assert number < 2 or not plans


@pytest.mark.parametrize("dtype", [torch.int8, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("way", WAYS)
def test_all_products_give_the_same(way, dtype):
    weight, _ = made(way, dtype)
    given = operands(3, dtype)
    for form in ("linear", "x @ w", "w @ x", "w.T @ y"):
        first, *others = [FORMS[form](weight, *given) for _ in range(3)]
        tolerance = {"rtol": 1e-2, "atol": 1e-2} if dtype.itemsize == 2 else CLOSE
        for other in others:
            torch.testing.assert_close(other, first, **tolerance)


@pytest.mark.parametrize("of_tokens", [torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("tokens", [1, 40])
def test_a_bias_is_rounded_as_that_of_an_array(tokens, dtype, of_tokens):
    weight, _ = made("along rows", dtype)
    array, x = weight.to_array(), torch.randn(tokens, K).to(of_tokens)
    for bias in (torch.randn(M), torch.randn(M).double(), torch.randint(1 << 30, (M,)).int()):
        for _ in range(3):
            got, want = F.linear(x, weight, bias), s24.linear(x, array, bias)
            torch.testing.assert_close(got, want, rtol=0, atol=0)


@pytest.mark.parametrize("other", [torch.float16, torch.float64, torch.int8])
def test_tokens_of_another_type_or_order_have_a_plan_of_their_own(other):
    weight, dense = made("along rows")
    x = torch.randint(-9, 9, (4, K)).float()
    for _ in range(3):
        for tokens in (x, x.to(other), x.t().contiguous().t(), x[:, :].repeat(1, 2)[:, K:], x[:0]):
            want = tokens.to(torch.promote_types(other, torch.float32)).double() @ dense.T.double()
            got = F.linear(tokens, weight)
            torch.testing.assert_close(got.double(), want, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
@pytest.mark.parametrize("form", ["linear", "x @ w"])
@pytest.mark.parametrize("way", WAYS)
def test_what_is_copied_into_a_weight_is_multiplied(way, form, dtype):
    (weight, _), (other, dense), given = made(way, dtype), made(way, dtype), operands(1, dtype)
    for _ in range(3):
        FORMS[form](weight, *given)
    weight.copy_(other)
    wide = torch.float64  # sums of int8 are of int32, which torch does not give
    for _ in range(3):
        want = FORMS[form](dense.to(wide), *(x.to(wide) for x in given))
        torch.testing.assert_close(FORMS[form](weight, *given).to(wide), want, **CLOSE)


@pytest.mark.parametrize("way", [*WAYS, *BITS])
def test_a_weight_that_moves_to_shared_memory_is_read_there(way):
    weight, x = made(way)[0], operands(1)[0]
    for _ in range(3):
        F.linear(x, weight)
    weight.share_memory_()
    for part in weight.parts:  # as another process writes it
        if part.dtype != torch.uint8 or way in BITS:
            ctypes.memset(part.data_ptr(), 0, part.nbytes)
    assert not F.linear(x, weight).any()


def test_rows_multiply_by_what_is_written_to_the_whole():
    (weight, _), (other, dense), x = made("along rows"), made("along rows"), operands(2)[0]
    rows = weight[16:]
    for _ in range(3):
        F.linear(x, rows)
    weight.copy_(other)
    torch.testing.assert_close(F.linear(x, rows), x @ dense[16:].T, **CLOSE)


@pytest.mark.parametrize("way", [*WAYS, *BITS])
def test_what_is_kept_goes_with_the_weight(way):
    weight, given = made(way)[0], operands(2)
    for form in FORMS.values():
        for _ in range(3):
            form(weight, *given)
    gc.collect()
    gc.disable()  # nothing waits for Python to look for cycles
    try:
        kept = [weakref.ref(x.made) for x in kept_arrays._kept[weight.parts[0]].values()]
        assert kept
        del weight
        assert not any(x() for x in kept)
    finally:
        gc.enable()


def test_a_step_of_training_makes_no_array(monkeypatch):
    arrays, unpack = [], on_cpu.unpack
    monkeypatch.setattr(on_cpu, "unpack", lambda *given: arrays.append(given) or unpack(*given))
    layer, x = st.SparseLinear(K, M, transposable=True), operands(2)[0].requires_grad_()
    for _ in range(3):
        layer(x).sum().backward()
    assert not arrays


def test_weights_of_inference_mode_are_planned_each_time(plans):
    with torch.inference_mode():  # where torch does not count what is written
        weight, x = made("along rows")[0], operands(2)[0]
        for _ in range(3):
            F.linear(x, weight)
    assert len(plans) == 3
