"""When a layer without gradients packs its weight anew, and when it does not."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from torch_cases import CLOSE  # noqa: E402

from sparse24 import _arrays, _replay  # noqa: E402
from sparse24 import torch as st  # noqa: E402
from sparse24._errors import (  # noqa: E402
    DeviceError,
    DTypeError,
    ShapeError,
    UnsupportedError,
)  # fmt: skip
from sparse24._torch import replay as torch_replay  # noqa: E402


def used_once(device="cpu", **options):
    """A layer that keeps its packed weight, and what it is called with."""
    torch.manual_seed(0)
    layer = st.SparseLinear(16, 8, device=device, **options)
    x = torch.randn(5, 16, device=device)
    with torch.no_grad():
        layer(x)
    assert layer._packed is not None
    return layer, x


def assert_follows(layer, x):
    with torch.no_grad():
        want = torch.nn.functional.linear(x, layer.weight * layer.current_mask(), layer.bias)
        torch.testing.assert_close(layer(x), want, **CLOSE)


@pytest.mark.parametrize("kind", ["SGD", "Adagrad", "AdamW"])
@pytest.mark.parametrize("by", ["fused", "foreach"])
def test_a_step_of_an_optimizer_is_seen(kind, by):
    layer, x = used_once()
    optimizer = getattr(torch.optim, kind)(layer.parameters(), lr=0.5, **{by: True})
    loss = layer(x).square().sum()
    assert_follows(layer, x)  # packs once more, before the step
    loss.backward()
    optimizer.step()
    assert_follows(layer, x)


def test_a_step_of_an_optimizer_of_other_weights_changes_nothing():
    layer, x = used_once()
    other = torch.nn.Linear(4, 4)
    other(torch.ones(1, 4)).sum().backward()
    packed = layer._packed.weight
    torch.optim.SGD(other.parameters(), fused=True).step()
    assert_follows(layer, x)
    assert layer._packed.weight is packed


def test_weights_that_learn_may_be_written_by_flat_optimizers():
    layer, x = used_once()
    layer(x).sum().backward()
    for p in layer.parameters():
        p.data.add_(p.grad)
    assert_follows(layer, x)


def test_a_frozen_layer_keeps_its_packed_weight_in_training():
    layer, x = used_once()
    packed = layer.requires_grad_(False)._packed.weight
    layer(x.requires_grad_()).sum().backward()
    assert_follows(layer, x)
    assert layer._packed.weight is packed


def test_a_compiled_step_of_an_optimizer_is_seen_and_not_compiled_anew(compiles_anew):
    layer, x = used_once()
    optimizer = torch.optim.SGD(layer.parameters(), fused=True)
    step = torch.compile(optimizer.step, backend="eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for _ in range(4):
            layer(x).sum().backward()
            assert_follows(layer, x)
            step()
            assert_follows(layer, x)


def test_weights_are_swapped_where_torch_is_told_to():
    layer, x = used_once()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        layer.load_state_dict(st.SparseLinear(16, 8).state_dict())
        assert_follows(layer, x)
        assert_follows(layer.double(), x.double())
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def test_a_layer_that_moves_leaves_no_packed_weight_behind():
    layer, _ = used_once()
    assert layer.to("meta")._packed is None


def test_negated_views_are_multiplied():
    layer, _ = used_once()
    x = torch.randn(5, 16, dtype=torch.complex64).conj().imag
    assert x.is_neg()
    assert_follows(layer, x)


WRITES = {
    "the weight": lambda layer: layer.weight.neg_(),
    "the bias": lambda layer: layer.bias.add_(1),
    "a mask": lambda layer: layer.set_mask(torch.ones_like(layer.weight, dtype=torch.bool)),
    "another weight": lambda layer: setattr(layer, "weight", torch.nn.Parameter(-layer.weight)),
    "the type": lambda layer: layer.double(),
    "what eval finds": lambda layer: (layer.weight.data.neg_(), layer.eval()),
}


@pytest.mark.parametrize("what", WRITES)
@pytest.mark.parametrize("shape", [(16,), (1, 16), (5, 16), (2, 3, 16)])
def test_repeated_calls_follow_what_is_written(device, what, shape):
    layer, _ = used_once(device)
    x = torch.randn(shape, device=device)
    for _ in range(3):
        assert_follows(layer, x)
    with torch.no_grad():
        WRITES[what](layer)
    x = x.to(layer.weight.dtype)
    for y in (x, x.clone(), 2 * x):
        assert_follows(layer, y)


def test_a_plan_that_reads_options_is_left_to_the_array(monkeypatch):
    """As one with copies, and a bias: a layer calls what it keeps without options."""
    layer, x = used_once()
    packed, got = layer._packed, torch.ones(5, 8)
    monkeypatch.setattr(_replay, "signature", lambda *given, **how: "key")

    class Plan:
        reads_options = captured = True

        def __call__(self, x, out, call):
            return got

    packed.weight.mT._plans["key"] = Plan()
    assert packed.multiply(x) is got
    assert packed.known(x) is None


@pytest.mark.gpu
def test_a_product_is_prepared_for_each_layout(monkeypatch):
    monkeypatch.setattr(torch_replay, "_known", {})
    layer = st.SparseLinear(64, 128, device="cuda", dtype=torch.float16)
    x = torch.randn(8, 64, device="cuda", dtype=torch.float16)
    with torch.no_grad():
        layer(x)
        torch.cuda.synchronize()
        layer(x)  # now the packed weight is settled
    known = layer._packed.known(x)
    assert known is not None
    assert layer._packed.known(torch.ones_like(x)) is known
    for other in (x[:4], x.float(), x.mT.contiguous().mT, x.cpu(), x[:, :32]):
        assert layer._packed.known(other) is None
    with torch.cuda.stream(torch.cuda.Stream()):
        assert layer._packed.known(x) is None


@pytest.mark.gpu
@pytest.mark.parametrize("bias", [False, True])
def test_layers_of_one_shape_share_what_one_has_prepared(monkeypatch, bias):
    monkeypatch.setattr(torch_replay, "_known", {})
    kind = {"device": "cuda", "dtype": torch.float16}
    layers = [st.SparseLinear(64, 128, bias, **kind) for _ in range(3)]
    others = [st.SparseLinear(64, 128, not bias, **kind), st.SparseLinear(64, 120, bias, **kind)]
    with torch.no_grad():
        for layer in (*layers, *others):
            layer(torch.ones(1, 64, **kind))
        for n in (8, 24, 200):
            x = torch.randn(n, 64, **kind)
            layers[0](x)
            assert [layer._packed.known(x) for layer in others] == [None, None]
            plans = [layer._packed.known(x) for layer in layers]
            assert len({id(plan) for plan in plans}) == len(layers)
            assert len({id(plan.layout) for plan in plans}) == 1
            for layer in layers:
                bare = torch.zeros_like(layer.weight[:, 0]) if layer.bias is None else layer.bias
                want = x.float() @ (layer.weight * layer.current_mask()).float().t() + bare.float()
                torch.testing.assert_close(layer(x).float(), want, rtol=2e-2, atol=2e-2)


def test_repeated_calls_check_what_the_first_one_checked(device):
    layer, x = used_once(device)
    for _ in range(2):
        with torch.no_grad():
            for wrong, error in (
                (x[:, :8], ShapeError), (x.tolist(), DTypeError), (x.to("meta"), DeviceError),
                (x.to_sparse(), DTypeError), (x.long(), DTypeError),
            ):  # fmt: skip
                with pytest.raises(error):
                    layer(wrong)
            with pytest.raises(UnsupportedError, match="transforms"):
                torch.func.vmap(layer)(x)
            assert_follows(layer, x)


def test_repeated_calls_follow_autocast(device):
    layer, x = used_once(device)
    with torch.no_grad():
        plain = layer(x)
        for _ in range(3):
            with torch.autocast(device, torch.bfloat16):
                assert layer(x).dtype is torch.bfloat16
            assert torch.equal(layer(x), plain)


def frozen(m=256, k=512):
    """A layer on the GPU that has not been called, an operand, and their product."""
    torch.manual_seed(0)
    layer = st.SparseLinear(k, m, device="cuda", dtype=torch.float16).requires_grad_(False)
    x = torch.randn(64, k, device="cuda", dtype=torch.float16)
    return layer, x, torch.nn.functional.linear(x, layer.weight * layer.current_mask(), layer.bias)


def captured(layer, x):
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        y = layer(x)
    return graph, y


@pytest.mark.gpu
def test_a_graph_reads_the_packed_weight_as_long_as_its_layer_lives():
    layer, x, want = frozen()
    with torch.no_grad():
        layer(x)
    graph, y = captured(layer, x)
    layer.eval()  # drops the packed weight
    torch.cuda.synchronize()
    others = [torch.full_like(part, 100) for memory in layer._captured for part in memory[1]]
    graph.replay()
    torch.testing.assert_close(y, want, rtol=2e-2, atol=2e-2)
    assert len(layer._captured) == 1
    assert len(others) == 3


@pytest.mark.gpu
def test_a_layer_packed_in_a_graph_packs_again_outside():
    layer, x, want = frozen()
    with torch.no_grad():
        layer.train(False)
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            layer._followed(x)  # compiles
        side.synchronize()
    graph, y = captured(layer, x)
    assert layer._packed is None
    with torch.no_grad():
        torch.testing.assert_close(layer(x), want, rtol=2e-2, atol=2e-2)
        layer.weight.mul_(-1)
    graph.replay()  # packs what the weight is now
    bias = layer.bias
    torch.testing.assert_close(y - bias, bias - want, rtol=2e-2, atol=2e-2)


@pytest.mark.gpu
def test_another_stream_waits_until_the_weight_is_packed():
    layer, x, want = frozen()
    with torch.no_grad():
        layer(x)
        layer.eval()
        side = torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(200_000_000)  # cycles, 0.1 s
            layer(x)
        assert not side.query()
        torch.testing.assert_close(layer(x), want, rtol=2e-2, atol=2e-2)


def test_streams_are_told_to_wait_once_they_are_others(monkeypatch):
    layer, x = used_once()
    packed, waited, recorded = layer._packed, [], []
    stream = SimpleNamespace(wait_event=waited.append, cuda_stream=7)
    monkeypatch.setattr(_arrays, "torch_stream", lambda x: 7)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    packed.tensors = [SimpleNamespace(record_stream=recorded.append)]
    there = SimpleNamespace(is_cuda=True, device=None)
    packed.await_on_stream_of(there)  # made on the CPU
    packed._streams, packed._made = {7}, "event"
    packed.await_on_stream_of(there)
    packed.await_on_stream_of(x)
    assert not waited
    packed._streams = {8}
    for _ in range(2):
        packed.await_on_stream_of(there)
    assert waited == ["event"]
    assert recorded == [stream]


def test_what_a_graph_captures_stays(monkeypatch):
    layer, x = used_once()
    monkeypatch.setattr(_arrays, "captures_work_on", lambda x: True)
    with torch.no_grad():
        layer(x), layer(x)
    assert [memory[0] for memory in layer._captured] == [layer._packed.weight]
    layer.eval()
    assert layer._packed is None
    assert len(layer._captured) == 1
    assert not copy.deepcopy(layer)._captured
    assert_follows(layer, x)
    assert layer._packed is None  # packed for the graph alone
