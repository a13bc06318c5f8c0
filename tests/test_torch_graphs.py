"""CUDA graphs of compiled layers pack the weight at each replay, and keep nothing."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from torch_cases import CLOSE, packings  # noqa: E402

from sparse24 import torch as st  # noqa: E402
from sparse24._torch import compiled as torch_compiled  # noqa: E402

pytestmark = pytest.mark.usefixtures("compiles_anew")


def test_what_a_graph_runs_in_its_memory_is_not_kept(monkeypatch):
    x = SimpleNamespace(is_cuda=True, device=SimpleNamespace(index=0))
    name = "torch._inductor.cudagraph_trees"
    monkeypatch.setattr(torch_compiled._arrays, "captures_work_on", lambda x: False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "current")
    manager = SimpleNamespace(stream="current")
    container = SimpleNamespace(tree_manager=manager)
    for trees, expected in (
        (None, False),
        (SimpleNamespace(), True),
        (SimpleNamespace(local=SimpleNamespace()), False),
        (SimpleNamespace(local=SimpleNamespace(tree_manager_containers={1: container})), False),
        (SimpleNamespace(local=SimpleNamespace(tree_manager_containers={0: container})), True),
    ):
        monkeypatch.setitem(sys.modules, name, trees)
        assert torch_compiled._for_a_graph(x) is expected
    manager.stream = "its own"
    assert not torch_compiled._for_a_graph(x)
    del manager.stream
    assert torch_compiled._for_a_graph(x)
    container.tree_manager = None
    assert not torch_compiled._for_a_graph(x)
    monkeypatch.setattr(torch_compiled._arrays, "captures_work_on", lambda x: True)
    assert torch_compiled._for_a_graph(x)
    assert not torch_compiled._for_a_graph(torch.ones(1))


def test_where_nothing_is_kept_the_weight_is_packed_at_each_call(monkeypatch):
    layer, x = st.SparseLinear(32, 16), torch.randn(5, 32)
    monkeypatch.setattr(torch_compiled, "_for_a_graph", lambda x: True)
    fast = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        layer(x)
        for _ in range(2):
            y, count = packings(lambda: fast(x))
            assert count == 1
            torch.testing.assert_close(y, layer(x), **CLOSE)


def on_gpu(masked=False):
    layer = st.SparseLinear(512, 256, device="cuda", dtype=torch.float16).eval()
    layer.set_mask(layer.current_mask() if masked else None)
    return layer, torch.randn(5, 512, device="cuda", dtype=torch.float16)


def assert_follows(fast, layer, x, packs=None):
    with torch.no_grad():
        y, count = packings(lambda: fast(x))
        want = torch.nn.functional.linear(x, layer.weight * layer.current_mask(), layer.bias)
    torch.testing.assert_close(y, want, rtol=2e-2, atol=2e-2)
    assert packs is None or count == packs


@pytest.mark.gpu
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kept", [False, True])
def test_graphs_of_torch_follow_what_is_written(kept, masked):
    layer, x = on_gpu(masked)
    plain = torch.compile(lambda x: layer(x), fullgraph=True)
    if kept:
        assert_follows(plain, layer, x)
    fast = torch.compile(layer, fullgraph=True, mode="reduce-overhead")
    for _ in range(2):
        for _ in range(4):  # one call warms up, one is recorded, two are replayed
            torch.compiler.cudagraph_mark_step_begin()
            assert_follows(fast, layer, x)
        assert_follows(plain, layer, x)
        assert_follows(plain, layer, x, packs=0)
        with torch.no_grad():
            layer.weight.neg_()


@pytest.mark.gpu
def test_what_graphs_of_torch_leave_does_not_harm_what_is_kept():
    layers = [on_gpu()[0] for _ in range(3)]
    x = torch.randn(5, 512, device="cuda", dtype=torch.float16)
    graphs = [torch.compile(f, fullgraph=True, mode="reduce-overhead") for f in layers]
    plain = [torch.compile(lambda x, f=f: f(x), fullgraph=True) for f in layers]
    for _ in range(5):
        for graph, fast, layer in zip(graphs, plain, layers, strict=True):
            torch.compiler.cudagraph_mark_step_begin()
            assert_follows(graph, layer, x)
            assert_follows(fast, layer, x)
        junk = [torch.full((256, 512), 100.0, device="cuda") for _ in range(8)]
    assert len(junk) == 8


@pytest.mark.gpu
def test_a_captured_graph_of_compiled_code_packs_at_its_replays():
    layer, x = on_gpu()
    fast = torch.compile(layer, fullgraph=True)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        assert_follows(fast, layer, x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        y = fast(x)
    with torch.no_grad():
        layer.weight.neg_()
    graph.replay()
    assert_follows(lambda x: y, layer, x)
    assert_follows(fast, layer, x, packs=1)
    assert_follows(fast, layer, x, packs=0)


@pytest.mark.gpu
def test_compiled_code_on_another_stream_waits_until_the_weight_is_packed():
    layer, x = on_gpu()
    fast = torch.compile(layer, fullgraph=True)
    assert_follows(fast, layer, x)
    layer.eval()
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.no_grad():
        with torch.cuda.stream(side):
            torch.cuda._sleep(200_000_000)  # cycles, 0.1 s
            fast(x)
        assert not side.query()
    assert_follows(fast, layer, x, packs=0)
