"""Products of `Quantised24Tensor`, weights of 4 and 8 bits, and of quantised arrays and tensors."""

from __future__ import annotations

import contextlib

import pytest

torch = pytest.importorskip("torch")

from torch_cases import CLOSE  # noqa: E402
from torch_quantised_cases import (  # noqa: E402
    BITS,
    NARROW,
    TYPES,
    K,
    M,
    close,
    counted_dequantisations,
    layers,
    packed,
)

import sparse24 as s24  # noqa: E402
from sparse24 import _dispatch  # noqa: E402
from sparse24 import torch as st  # noqa: E402
from sparse24._torch import factors  # noqa: E402

MODES = {
    "grad": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}
F = torch.nn.functional


@pytest.fixture
def dequantisations(monkeypatch):
    """The types to which a matrix is dequantised."""
    return counted_dequantisations(monkeypatch, lambda record, dtype: dtype.name)


# --- arrays beside tensors ----------------------------------------------------------------

PRODUCTS = {
    "x @ Q.T": (lambda Q, x, b: x @ Q.T, lambda w, x, b: x @ w.T),
    "Q @ x": (lambda Q, x, b: Q @ x[0].T, lambda w, x, b: w @ x[0].T),
    "Q @ stack": (lambda Q, x, b: Q @ x.mT, lambda w, x, b: w @ x.mT),
    "x @ Q": (lambda Q, x, b: x[..., :M] @ Q, lambda w, x, b: x[..., :M] @ w),
    "matmul": (lambda Q, x, b: s24.matmul(x, Q.T), lambda w, x, b: x @ w.T),
    "torch.matmul": (lambda Q, x, b: torch.matmul(x, Q.mT), lambda w, x, b: x @ w.T),
    "linear": (
        lambda Q, x, b: s24.linear(x, Q, b, activation="relu"),
        lambda w, x, b: F.linear(x, w, b).relu(),
    ),
    "torch's linear": (lambda Q, x, b: F.linear(x, Q, b), lambda w, x, b: F.linear(x, w, b)),
}


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("product", PRODUCTS)
def test_an_array_multiplies_tensors(product, bits, dtype):
    array = s24.quantise(s24.prune(torch.randn(M, K).to(dtype)), bits=bits)
    ours, torchs = PRODUCTS[product]
    x, b = torch.randn(2, 3, K).to(dtype), torch.randn(M).to(dtype)
    got = ours(array, x, b)
    assert got.dtype == dtype
    wide = [t.double() for t in (s24.convert.to_torch(array), x, b)]
    tolerance = {"rtol": 2e-2, "atol": 0.2} if dtype.itemsize == 2 else CLOSE
    torch.testing.assert_close(got.double(), torchs(*wide), **tolerance)


def test_products_of_an_array_are_written_to_a_given_tensor():
    array, x = s24.quantise(s24.prune(torch.randn(M, K))), torch.randn(2, 3, K)
    out = torch.empty(2, 3, M)
    assert s24.matmul(x, array.T, out=out) is out
    close(out, x @ array.T)


def test_an_array_gives_tensors_their_gradient():
    array = s24.quantise(s24.prune(torch.randn(M, K)))
    x = torch.randn(2, 3, K, requires_grad=True)
    st.matmul(x, array.mT).sum().backward()
    close(x.grad, s24.convert.to_torch(array).sum(0).expand(2, 3, K))
    with pytest.raises(s24.ArgumentError, match=r"must not require a gradient.*use what is diff"):
        x @ array.T


# --- layers -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("shape", [(K,), (5, K), (0, K), (2, 3, K), (200, K)])
def test_a_layer_multiplies_by_what_its_weight_stands_for(device, shape, bits, dtype):
    ours, wanted = layers(bits, dtype, device)
    x = torch.randn(shape, device=device).to(dtype)
    for _ in range(3):  # on a GPU by what the first call has prepared
        close(ours(x), wanted(x))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_layers_in_every_mode(mode, backend, compiles_anew):
    ours, wanted = layers()
    run = ours if backend is None else torch.compile(ours, fullgraph=True, backend=backend)
    x = torch.randn(2, 5, K)
    with MODES[mode]():
        close(run(x), wanted(x))


def test_tokens_have_a_gradient(device):
    (ours, wanted), found = layers(device=device), []
    for layer in (ours, wanted):
        x = torch.randn(4, K, device=device, generator=torch.Generator(device).manual_seed(1))
        x.requires_grad_()
        found.append(torch.autograd.grad(layer(x).square().sum(), x)[0])
    close(*found)


@pytest.mark.parametrize("dtype", TYPES)
def test_products_across_the_groups_may_be_dense(monkeypatch, dtype):
    monkeypatch.setattr(factors, "_multiplies_densely", lambda a, dense: True)  # as on a GPU
    weight, _ = packed(8, dtype=torch.float16)
    x = torch.randn(3, M).to(dtype)
    common = torch.promote_types(dtype, torch.float16)
    for y in (x @ weight, (weight.t() @ x.t()).t()):
        torch.testing.assert_close(y, x.to(common) @ weight.to(common).to_dense(), **NARROW)


@pytest.mark.parametrize("turn", [lambda a: a, lambda a: a.T, lambda a: a.expand(3, -1, -1)])
def test_it_is_turned_and_repeated(device, turn):
    weight, dense = packed(device=device)
    assert torch.equal(turn(weight).to_dense(), turn(dense))
    x = torch.randn(5, turn(dense).shape[-1], device=device)
    close(x @ turn(weight).mT, x @ turn(dense).mT)
    assert turn(weight).bits == 4


def test_attention_reads_a_quantised_weight():
    attention = torch.nn.MultiheadAttention(128, 4, batch_first=True).eval().requires_grad_(False)
    weight, dense = packed(shape=(384, 128))
    attention.in_proj_weight.copy_(dense)
    x, other = torch.randn(2, 5, 128), torch.randn(2, 7, 128)
    wanted = [attention(x, keys, keys)[0] for keys in (x, other)]
    attention.in_proj_weight = torch.nn.Parameter(weight, requires_grad=False)
    for keys, want in zip((x, other), wanted, strict=True):
        close(attention(x, keys, keys)[0], want)


# --- what is kept on the CPU --------------------------------------------------------------

MANY = 20  # tokens, for which the CPU does not read integers as they are stored


@pytest.mark.parametrize("backend", [None, "aot_eager", "inductor"])
def test_products_on_the_cpu_keep_what_they_dequantise(backend, dequantisations, compiles_anew):
    (ours, wanted), x = layers(), torch.randn(MANY, K)
    ours.weight = torch.nn.Parameter(ours.weight.clone(), requires_grad=False)
    other, dense = packed()
    run = ours if backend is None else torch.compile(ours, fullgraph=True, backend=backend)
    dequantisations.clear()
    with torch.no_grad():
        for _ in range(3):
            close(run(x), wanted(x))
        assert dequantisations == ["float32"]
        ours.weight.copy_(other)  # which is seen
        wanted.weight.copy_(dense)
        for _ in range(2):
            close(run(x), wanted(x))
        assert dequantisations == ["float32"] * 2


@pytest.mark.parametrize("tokens", [1, MANY])
@pytest.mark.parametrize("bits", BITS)
def test_products_on_the_cpu_are_planned_once(monkeypatch, bits, tokens):
    planned, fill = [], _dispatch.fill
    monkeypatch.setattr(_dispatch, "fill", lambda *given: planned.append(given) or fill(*given))
    weight, dense = packed(bits)
    for product in (
        lambda w, x, y, bias: torch.nn.functional.linear(x, w),
        lambda w, x, y, bias: torch.nn.functional.linear(x, w, bias),
        lambda w, x, y, bias: y @ w,
        lambda w, x, y, bias: w @ x.T,
        lambda w, x, y, bias: w.T @ y.T,
    ):
        for again in (False, True):
            given = torch.randn(tokens, K), torch.randn(tokens, M), torch.randn(M)
            planned.clear()
            close(product(weight, *given), product(dense, *given))
            assert not (again and planned)


@pytest.mark.parametrize("part", [lambda a: a[16:], lambda a: a[16:][16:], lambda a: a.t()[:, 16:]])
def test_rows_multiply_by_what_is_written_to_the_whole(part):
    weight, (other, dense) = packed()[0].clone(), packed()
    rows, x = part(weight), torch.randn(MANY, K)
    rows = rows if rows.shape[1] == K else rows.t()
    x @ rows.T
    weight.copy_(other)
    want = part(dense)
    close(x @ rows.T, x @ (want if want.shape[1] == K else want.t()).T)


def test_nothing_is_kept_of_inference_tensors(dequantisations):
    x = torch.randn(MANY, K)
    with torch.inference_mode():
        weight, dense = packed()
        weight = weight.clone()
        dequantisations.clear()
        for _ in range(2):
            close(x @ weight.T, x @ dense.T)
        assert len(dequantisations) == 2


# --- on a GPU -----------------------------------------------------------------------------


@pytest.mark.gpu
@torch.no_grad()
@pytest.mark.parametrize("tokens", [1, 8, 512])
@pytest.mark.parametrize("bits", BITS)
def test_a_graph_multiplies_by_the_weight(bits, tokens):
    ours, wanted = layers(bits, torch.float16, "cuda")
    x = torch.randn(tokens, K, device="cuda", dtype=torch.float16)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        ours(x)
    torch.cuda.synchronize()
    graph, given = torch.cuda.CUDAGraph(), x.clone()
    with torch.cuda.graph(graph, stream=stream):
        y = ours(given)
    for shift in range(3):
        given.copy_(x.roll(shift, 0))
        graph.replay()
        close(y, wanted(given))


@pytest.mark.gpu
@torch.no_grad()
def test_layers_of_one_shape_and_several_types_do_not_share_products():
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        for bits in BITS:
            ours, wanted = layers(bits, dtype, "cuda")
            x = torch.randn(8, K, device="cuda", dtype=dtype)
            for _ in range(3):
                close(ours(x), wanted(x))
                torch.cuda.synchronize()
