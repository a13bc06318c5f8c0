"""Packed tensors that are read early, and written in place all the same."""

from __future__ import annotations

import contextlib
import functools
from types import SimpleNamespace

import numpy as np
import pytest

import sparse24 as s24

torch = pytest.importorskip("torch")

from sparse24._torch import grouped_ops, settled  # noqa: E402
from sparse24.torch import to_sparse_semi_structured  # noqa: E402

M, K, N = 4096, 4096, 8


def gpu_test(function):
    return pytest.mark.gpu(pytest.mark.stem("sparse_decode")(function))


# --- without a GPU ------------------------------------------------------------------------


@pytest.fixture
def all_is_done(monkeypatch):
    """Events on the device, which all have passed."""
    made = SimpleNamespace(has_ended=lambda: True, may_end=True)
    monkeypatch.setattr(settled.Making, "before_now", lambda: made)
    monkeypatch.setattr(settled._foreign_streams, "stream_of", lambda x: contextlib.nullcontext())


def packed(seed: int):
    torch.manual_seed(seed)
    return to_sparse_semi_structured(torch.from_numpy(s24.prune(torch.randn(8, 16).numpy())))


def test_a_copy_makes_it_unsettled_until_it_is_multiplied_again(all_is_done):
    a, x = packed(0), torch.ones(1, 16)
    settled.note(*a.parts, x)
    assert settled.are_settled(*a.parts)
    a.copy_(packed(1))
    assert not settled.are_settled(*a.parts)
    settled.note(*a.parts, x)
    assert settled.are_settled(*a.parts)
    layer = torch.nn.Linear(16, 8, bias=False)
    layer.weight = torch.nn.Parameter(a, requires_grad=False)
    layer.load_state_dict({"weight": packed(2)})
    assert not settled.are_settled(*layer.weight.parts)


def test_values_with_other_codes_are_not_settled(all_is_done):
    a, x = packed(0), torch.ones(1, 16)
    settled.note(*a.parts, x)
    values, codes = a.parts
    assert settled.are_settled(values, codes)
    assert not settled.are_settled(values, codes.clone())


@torch.inference_mode()
def test_what_torch_does_not_count_is_never_settled(all_is_done):
    values, codes = packed(0).parts
    settled.note(values, codes, torch.ones(1, 16))
    assert not settled.are_settled(values, codes)


def test_nothing_is_kept_of_a_stack_that_a_graph_makes(monkeypatch):
    """Torch does not count what its replays write."""
    parts, made = torch.stack([packed(0), packed(1)]).parts, []
    unpack = grouped_ops.unpack
    monkeypatch.setattr(grouped_ops, "unpack", lambda *given: made.append(given) or unpack(*given))
    multiply = functools.partial(
        grouped_ops.stack_product, parts, 8, 16, torch.ones(3, 16), None, torch.tensor([0, 1, 3])
    )
    for _ in range(2):
        multiply(False, None, False)
    assert len(made) == 1
    settled._remember(*parts, settled.MADE_ANEW)
    for _ in range(2):
        multiply(False, None, False)
    assert len(made) == 3


# --- on a GPU -----------------------------------------------------------------------------


@pytest.fixture
def drawn(rng):
    """Weights and tokens of small integers, whose products are exact in float16."""

    def draw(*shape):
        return rng.integers(-2, 3, shape).astype(np.float16)

    weights = [torch.from_numpy(s24.prune(draw(M, K))).cuda() for _ in range(2)]
    return weights, torch.from_numpy(draw(N, K)).cuda()


def layer_of(weight):
    layer = torch.nn.Linear(K, M, bias=False, device="cuda", dtype=torch.float16)
    packed = to_sparse_semi_structured(weight)
    layer.weight = torch.nn.Parameter(packed, requires_grad=False)
    return layer


def product(x, weight):
    return (x.double() @ weight.double().T).half()


@gpu_test
@torch.no_grad()
def test_a_layer_that_is_written_in_place(drawn):
    weights, x = drawn
    layer, others = layer_of(weights[0]), [to_sparse_semi_structured(w) for w in weights]
    for turn in range(12):
        layer.weight.copy_(others[turn % 2])
        assert not settled.are_settled(*layer.weight.parts)
        for _ in range(1 + turn % 3):
            assert torch.equal(layer(x), product(x, weights[turn % 2]))
        torch.cuda.synchronize()
        assert not settled.are_settled(*others[0].parts)
        assert settled.are_settled(*layer.weight.parts)


@gpu_test
@torch.no_grad()
@pytest.mark.parametrize("warm", [1, 3])
def test_a_layer_in_a_graph(drawn, warm):
    (weight, _), x = drawn
    layer = layer_of(weight)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(warm):
            layer(x)
    torch.cuda.synchronize()
    graph, given = torch.cuda.CUDAGraph(), x.clone()
    with torch.cuda.graph(graph, stream=stream):
        y = layer(given)
        z = layer(y - y + given)
    assert settled.are_settled(*layer.weight.parts)
    for shift in range(4):
        given.copy_(x.roll(shift, 0))
        graph.replay()
        for got in (y, z):
            assert torch.equal(got, product(given, weight))


@gpu_test
@torch.inference_mode()
def test_inference_tensors_are_never_settled(drawn):
    (weight, _), x = drawn
    packed = to_sparse_semi_structured(weight)
    for _ in range(3):
        assert torch.equal(torch.nn.functional.linear(x, packed), product(x, weight))
        torch.cuda.synchronize()
    assert not settled.are_settled(*packed.parts)
