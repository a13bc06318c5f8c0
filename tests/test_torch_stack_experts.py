"""Products of experts whose weights are a stack of packed matrices, beside dense ones."""

from __future__ import annotations

import contextlib
import gc
import weakref

import pytest

torch = pytest.importorskip("torch")

from test_torch_experts import COUNTS, looped, offsets_of  # noqa: E402
from torch_quantised_cases import (  # noqa: E402
    KINDS,
    TYPES,
    close,
    counted_dequantisations,
    packed,
    packed_as,
)

import sparse24 as s24  # noqa: E402
from sparse24 import _dispatch  # noqa: E402
from sparse24 import torch as st  # noqa: E402
from sparse24._torch import kept_arrays  # noqa: E402

E, M, K = len(COUNTS), 128, 256
F = torch.nn.functional
GROUPED = [getattr(owner, name) for owner, name in ((torch, "_grouped_mm"), (F, "grouped_mm"))
           if hasattr(owner, name)]  # fmt: skip
MODES = {
    "grad": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
}


def operands(bits=4, dtype=torch.float32, device="cpu", counts=COUNTS):
    """x (t, k), a weight (e, m, k) of a kind, the dense one, a bias (e, m), offsets."""
    weight, dense = packed(bits, (len(counts), M, K), dtype, device)
    x = torch.randn(sum(counts), K, device=device).to(dtype)
    bias = torch.randn(len(counts), M, device=device).to(dtype)
    return x, weight, dense, bias, offsets_of(counts, device)


def ends_of(offsets):
    return offsets[1:].to(torch.int32)


def wanted(x, dense, bias, offsets):
    """In float64, then in the type of x, as products are rounded once."""
    bias = None if bias is None else bias.double()
    return looped(x.double(), dense.double(), bias, offsets).to(x.dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("bits", KINDS)
@pytest.mark.parametrize("counts", [COUNTS, (1, 1, 1), (0, 40, 0), (0,)], ids=str)
def test_grouped_linear(device, bits, dtype, counts):
    x, weight, dense, bias, offsets = operands(bits, dtype, device, counts)
    for given in (None, bias):
        for _ in range(2):  # the second time by what the first has prepared
            close(
                st.grouped_linear(x, weight, given, offsets=offsets),
                wanted(x, dense, given, offsets),
            )
    close(st.grouped_linear(x, weight, offsets=offsets.tolist()), wanted(x, dense, None, offsets))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("grouped", GROUPED)
@pytest.mark.parametrize("bits", [0, 4])
def test_torchs_grouped_product(device, bits, grouped, dtype):
    x, weight, dense, _, offsets = operands(bits, dtype, device)
    close(grouped(x, weight.transpose(-2, -1), offs=ends_of(offsets)),
          wanted(x, dense, None, offsets))  # fmt: skip
    y = torch.randn(len(x), M, device=device).to(dtype)
    close(grouped(y, weight, offs=ends_of(offsets)), wanted(y, dense.mT, None, offsets))


@pytest.mark.parametrize("make", [lambda array: array, s24.quantise])
def test_a_stack_of_k_by_m_multiplies_by_its_rows(device, make):
    array = s24.compress(torch.randn(E, K, M, device=device), axis=-2, on_excess="prune")
    weight, offsets = st.to_sparse_semi_structured(make(array)), offsets_of(COUNTS, device)
    x = torch.randn(sum(COUNTS), K, device=device)
    want = wanted(x, weight.to_dense().mT, None, offsets)
    close(GROUPED[0](x, weight, offs=ends_of(offsets)), want)
    close(st.grouped_linear(x, weight.mT, offsets=offsets), want)
    y = torch.randn(sum(COUNTS), M, device=device)
    finish = {"activation": "relu", "gated": True}  # by the columns: dense
    gate, up = looped(y, weight.to_dense(), None, offsets).chunk(2, dim=1)
    got = st.grouped_linear(y, weight, offsets=offsets, **finish)
    torch.testing.assert_close(got, gate.relu() * up, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [0, 1, 7])
@pytest.mark.parametrize("bits", [0, 4])
def test_stacks_beside_stacks(device, bits, tokens, dtype):
    _, weight, dense, _, _ = operands(bits, dtype, device)
    x = torch.randn(E, tokens, K, device=device).to(dtype)
    y = torch.randn(E, tokens, M, device=device).to(dtype)
    close(x @ weight.mT, x @ dense.mT)
    close(torch.bmm(weight, x.mT), dense @ x.mT)
    close(GROUPED[0](x, weight.mT), x @ dense.mT)
    torch.testing.assert_close(y @ weight, y @ dense, rtol=2e-2, atol=0.5)


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bits", [0, 8])
def test_activation_and_gate(device, bits, dtype, learns):
    x, weight, dense, bias, offsets = operands(bits, dtype, device)
    x.requires_grad_(learns)
    finish = {"activation": "silu", "gated": True}
    y = st.grouped_linear(x, weight, bias, offsets=offsets, **finish)
    gate, up = looped(x.double(), dense.double(), bias.double(), offsets).chunk(2, dim=1)
    assert (y.shape, y.dtype, y.requires_grad) == ((len(x), M // 2), dtype, learns)
    want = F.silu(gate) * up
    assert (y.double() - want).norm() < (1e-5 if dtype == torch.float32 else 1e-2) * want.norm()


@pytest.mark.parametrize("grouped", GROUPED)
@pytest.mark.parametrize("bits", [0, 4])
def test_tokens_of_torchs_product_have_a_gradient(device, bits, grouped):
    x, weight, dense, _, offsets = operands(bits, device=device)
    x.requires_grad_()
    y = grouped(x, weight.mT, offs=ends_of(offsets))
    assert_gradients(y, looped(x, dense, None, offsets), x)


@pytest.mark.parametrize("bits", [0, 4])
def test_tokens_and_biases_have_a_gradient(device, bits):
    x, weight, dense, bias, offsets = operands(bits, device=device)
    for learning in ((x,), (bias,), (x, bias)):
        for given in (x, bias):
            given.requires_grad_(any(given is one for one in learning))
        y = st.grouped_linear(x, weight, bias, offsets=offsets)
        assert_gradients(y, looped(x, dense, bias, offsets), *learning)
    stacked = torch.randn(E, 4, K, device=device, requires_grad=True)
    assert_gradients(stacked @ weight.mT, stacked @ dense.mT, stacked)


def assert_gradients(y, want, *tensors):
    dy = torch.randn_like(want)
    for got in zip(*(torch.autograd.grad(one, tensors, dy) for one in (y, want)), strict=True):
        torch.testing.assert_close(*got, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("bits", [0, 4])
def test_the_weight_follows_autocast(device, bits):
    x, weight, dense, bias, offsets = operands(bits, device=device)
    with torch.autocast(device, torch.bfloat16):
        y = st.grouped_linear(x, weight, bias, offsets=offsets)
    close(y, wanted(x.bfloat16(), dense.bfloat16(), bias.bfloat16(), offsets))


# --- modules, also compiled ---------------------------------------------------------------


class Experts(torch.nn.Module):
    """As models have them: a weight for all experts, and a way to multiply by it."""

    def __init__(self, weight, bias):
        super().__init__()
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.bias = torch.nn.Parameter(bias, requires_grad=False)


class ByTorch(Experts):
    def forward(self, x, offsets):
        offs = offsets[1:].to(torch.int32)
        y = torch._grouped_mm(x, self.weight.transpose(-2, -1), offs=offs)
        return y + self.bias.repeat_interleave(offsets.diff(), 0, output_size=len(x))


class ByUs(Experts):
    def forward(self, x, offsets):
        return st.grouped_linear(x, self.weight, self.bias, offsets=offsets)


class ByLoop(Experts):
    """Each expert takes as many tokens as there are for all, of which it keeps its own."""

    def forward(self, x, offsets):
        rows = torch.arange(len(x), device=x.device)[:, None]
        y = x.new_zeros(len(x), self.weight.shape[1])
        for i in range(self.weight.shape[0]):
            own = (offsets[i] <= rows) & (rows < offsets[i + 1])
            y = torch.where(own, F.linear(x, self.weight[i], self.bias[i]), y)
        return y


@pytest.mark.parametrize("kind", [ByTorch, ByUs, ByLoop])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", [None, "aot_eager", "inductor"])
@pytest.mark.parametrize("bits", [0, 4])
def test_modules_in_every_mode(device, bits, kind, mode, backend, compiles_anew):
    x, weight, dense, bias, offsets = operands(bits, device=device)
    module = kind(weight, bias)
    run = module if backend is None else torch.compile(module, fullgraph=True, backend=backend)
    with MODES[mode]():
        given = x.clone().requires_grad_(mode == "grad")
        y = run(given, offsets)
        torch.testing.assert_close(y, wanted(x, dense, bias, offsets), rtol=1e-3, atol=1e-3)
    if mode == "grad":
        other = x.clone().requires_grad_()
        looped(other, dense, bias, offsets).square().sum().backward()
        y.square().sum().backward()
        torch.testing.assert_close(given.grad, other.grad, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("bits", [0, 4])
def test_activation_and_gate_in_compiled_code(bits, compiles_anew):
    x, weight, _, bias, offsets = operands(bits, torch.bfloat16)
    finish = {"offsets": offsets, "activation": "gelu", "gated": True}
    run = torch.compile(st.grouped_linear, fullgraph=True, backend="aot_eager")
    assert torch.equal(run(x, weight, bias, **finish), st.grouped_linear(x, weight, bias, **finish))


# --- what is kept on the CPU --------------------------------------------------------------


@pytest.fixture
def dequantisations(monkeypatch):
    """The shapes of what is dequantised."""
    return counted_dequantisations(monkeypatch, lambda record, dtype: record.shape)


@pytest.mark.parametrize("kind", [ByTorch, ByUs, ByLoop])
@pytest.mark.parametrize("mode", MODES)
def test_each_expert_is_dequantised_once(kind, mode, dequantisations):
    x, weight, dense, bias, offsets = operands(counts=(20, 0, 30))  # tokens for which it is
    module, times = kind(weight.clone(), bias), 3 if kind is ByLoop else 2
    dequantisations.clear()
    with MODES[mode]():
        for _ in range(3):
            close(module(x, offsets), wanted(x, dense, bias, offsets))
    assert dequantisations == [(M, K)] * times
    module.weight.copy_(packed_as(4, -dense))  # which is seen
    close(module(x, offsets), wanted(x, -dense, bias, offsets))
    assert len(dequantisations) == 2 * times


@pytest.mark.parametrize("kind", [ByTorch, ByUs])
@pytest.mark.parametrize("mode", MODES)
def test_products_of_packed_experts_are_planned_once(kind, mode, monkeypatch):
    planned, fill = [], _dispatch.fill
    monkeypatch.setattr(_dispatch, "fill", lambda *given: planned.append(given) or fill(*given))
    x, weight, dense, bias, offsets = operands(0, counts=(20, 0, 30))
    module = kind(weight.clone(), bias)
    with MODES[mode]():
        for _ in range(3):
            close(module(x, offsets), wanted(x, dense, bias, offsets))
    assert len(planned) == 2  # experts with tokens
    module.weight.copy_(packed_as(0, -dense))  # which is seen
    close(module(x, offsets), wanted(x, -dense, bias, offsets))
    assert len(planned) == 4


def test_what_is_kept_goes_with_the_weight():
    x, weight, _, _, offsets = operands(0)
    st.grouped_linear(x, weight, offsets=offsets)
    values = weakref.ref(weight.parts[0])
    assert values() in kept_arrays._kept
    del weight
    gc.collect()
    assert values() is None


# --- on a GPU -----------------------------------------------------------------------------


@pytest.mark.gpu
@torch.no_grad()
@pytest.mark.parametrize("kind", [ByTorch, ByUs])
@pytest.mark.parametrize("bits", KINDS)
def test_nothing_waits_and_a_graph_reads_offsets_anew(kind, bits):
    if torch.cuda.get_device_capability()[0] < 9:
        pytest.skip("experts are multiplied one by one, which waits")
    x, weight, dense, bias, offsets = operands(bits, torch.bfloat16, "cuda")
    module = kind(weight, bias)
    module(x, offsets)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        module(x, offsets)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph, given = torch.cuda.CUDAGraph(), offsets.clone()
    with torch.cuda.graph(graph):
        y = module(x, given)
    for counts in (COUNTS, COUNTS[::-1], (sum(COUNTS), 0, 0, 0, 0)):
        given.copy_(offsets_of(counts, "cuda"))
        graph.replay()
        close(y, wanted(x, dense, bias, given))
