"""Grouped products on a GPU around their kernels: biases, graphs, streams, torch, other types."""

from __future__ import annotations

import numpy as np
import pytest
from grouped_cases import KERNELS, Layer, assert_right, kernel, only, poisoned, runs
from matmul_cases import assert_close, logical

import sparse24 as s24
from sparse24 import _dtypes
from sparse24._arrays import to_numpy

COUNTS = (0, 1, 7, 33, 0, 64, 129, 300, 0)
SMALL = (3, 0, 70, 1)


@pytest.fixture(params=KERNELS)
def cupy(request, monkeypatch):
    return only(request.param, monkeypatch)


@pytest.fixture
def refused(cupy, monkeypatch):
    """As on a GPU that the kernel does not run on."""
    monkeypatch.setattr(kernel(), "refuses", lambda problem, gated: "this is a test")


@pytest.mark.parametrize("name", ["float16", "bfloat16", "int8", "float32"])
@pytest.mark.parametrize("on_device", [True, False])
def test_linear_layers_with_biases(cupy, rng, name, on_device):
    case = Layer(name, 136, 272, COUNTS, cupy, rng)
    bias = rng.integers(-9, 10, (len(COUNTS), 136)).astype(np.float32)
    offsets = cupy.asarray(case.offsets) if on_device else case.offsets
    y = s24.grouped_linear(case.x, case.experts, cupy.asarray(bias), offsets=offsets)
    assert y.flags.c_contiguous
    want = case.exact.T + np.repeat(bias, COUNTS, axis=0)
    eps = {"float16": 2**-10, "bfloat16": 2**-7}.get(name, 2**-20)
    bound = 2 * eps * (np.abs(case.exact.T) + 10) if name != "int8" else 0
    assert (np.abs(to_numpy(y).astype(np.float64) - want) <= bound).all()


def captured(cupy, run):
    """The graph of a call that has run before, and its stream."""
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()  # the operands were made on another one
    with stream:
        run()
        stream.begin_capture()
        run()
        return stream.end_capture(), stream


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "int8"])
@pytest.mark.parametrize("order", ["F", "C"])
@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_a_graph_reads_offsets_anew(cupy, rng, name, order, kind):
    if not runs(name):
        pytest.skip("only a kernel reads offsets on the device")
    routes = [COUNTS, (534, *8 * (0,)), (*8 * (0,), 534), (60, 59, 59, 60, 59, 59, 60, 59, 59)]
    cases = []
    for counts in routes:
        rng = np.random.default_rng(3)  # the same operands
        cases.append(Layer(name, 136, 264, counts, cupy, rng))
    case, result = cases[0], _dtypes.TABLE[name].result
    offsets = cupy.asarray(case.offsets, kind)
    out = poisoned(cupy, case.exact.shape, result, order)
    b = cupy.asarray(case.x.T, order=order)  # in C order the graph keeps copies
    call = lambda: s24.grouped_matmul(  # noqa: E731
        case.experts, b, out, offsets=offsets, b_dtype=name
    )
    graph, stream = captured(cupy, call)
    others = [cupy.full(1 << size, 7, np.uint8) for size in range(9, 24) for _ in range(3)]
    for other in [*cases, case]:
        offsets[...] = cupy.asarray(other.offsets)
        out[...] = poisoned(cupy, out.shape, result)
        cupy.cuda.Device().synchronize()
        graph.launch(stream)
        stream.synchronize()
        assert_right(out, other, result)
    assert all(bool((x == 7).all()) for x in others)


@pytest.mark.parametrize("name", ["bfloat16", "float32", "float64"])
def test_a_graph_keeps_offsets_of_the_host(cupy, refused, rng, name):
    case = Layer(name, 136, 264, SMALL, cupy, rng)
    bias = cupy.asarray(rng.integers(-9, 10, (4, 136)).astype(np.float64))  # is converted
    results = []
    call = lambda: results.append(  # noqa: E731
        s24.grouped_linear(case.x, case.experts, bias, offsets=case.offsets)
    )
    graph, stream = captured(cupy, call)
    want = to_numpy(results[0])
    results[1].fill(77)
    others = [cupy.full(1 << size, 7, np.uint8) for size in range(9, 24) for _ in range(3)]
    cupy.cuda.Device().synchronize()
    graph.launch(stream)
    stream.synchronize()
    np.testing.assert_array_equal(to_numpy(results[1]), want)
    assert all(bool((x == 7).all()) for x in others)


def test_captures_that_would_have_to_copy_offsets_are_refused(cupy, rng):
    stream = cupy.cuda.Stream(non_blocking=True)
    for name, on_device, words in (
        ("float64", True, r"runs expert by expert, .* as a list"),
        ("bfloat16", False, r"cannot capture the copy of offsets from the host; pass an array"),
    ):
        if name == "bfloat16" and not runs():
            continue
        case = Layer(name, 24, 40, SMALL, cupy, rng)
        offsets = cupy.asarray(case.offsets) if on_device else case.offsets
        with stream:
            case.multiply(offsets=offsets)
            stream.begin_capture()
            with pytest.raises(s24.UnsupportedError, match=words):
                case.multiply(offsets=offsets)
            stream.end_capture()


@pytest.mark.parametrize("name", _dtypes.NAMES)
@pytest.mark.parametrize("on_device", [True, False])
def test_every_type_expert_by_expert(cupy, refused, rng, name, on_device):
    case = Layer(name, 100, 201, (0, 1, 7, 33, 0, 64), cupy, rng)
    offsets = cupy.asarray(case.offsets) if on_device else case.offsets
    got = case.multiply(offsets=offsets)
    assert_close(logical(got, name), case.exact, name, 201)
    out = poisoned(cupy, case.exact.shape, _dtypes.TABLE[name].result, "C")
    case.multiply(out, offsets=offsets)
    assert_close(logical(out, name), case.exact, name, 201)
    if on_device:
        for wrong, words in (
            ([1, 1, 8, 41, 41, 105, 105], "offsets must begin with 0"),
            ([0, 41, 8, 41, 41, 41, 105], "offsets must not decrease"),
        ):
            with pytest.raises(s24.ArgumentError, match=words):
                case.multiply(offsets=cupy.asarray(wrong))


def test_matrices_without_elements(cupy):
    for m, k in ((0, 8), (8, 0)):
        experts = s24.compress(cupy.zeros((2, m, k), np.float16))
        for offsets in ([0, 2, 5], cupy.asarray([0, 2, 5])):
            got = s24.grouped_matmul(experts, cupy.ones((k, 5), np.float16), offsets=offsets)
            np.testing.assert_array_equal(to_numpy(got), np.zeros((m, 5)))


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
@pytest.mark.parametrize("on_device", [True, False])
def test_torch_tensors_on_their_stream_and_in_their_graphs(cupy, rng, name, on_device):
    torch = pytest.importorskip("torch")
    case = Layer(name, 136, 272, COUNTS, cupy, rng)
    x = torch.from_numpy(to_numpy(case.x).astype(np.float32)).cuda().to(getattr(torch, name))
    offsets = torch.tensor(case.offsets.tolist(), dtype=torch.int32)
    offsets = offsets.cuda() if on_device else offsets
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        y = s24.grouped_linear(x, case.experts, offsets=offsets)
    stream.synchronize()
    assert (type(y), y.dtype, y.shape) == (torch.Tensor, x.dtype, (len(x), 136))
    assert y.is_contiguous()
    assert_close(y.float().cpu().numpy(), case.exact.T, name, 272)
    if not on_device or not runs():
        return
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        again = s24.grouped_linear(x, case.experts, offsets=offsets)
    again.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert_close(again.float().cpu().numpy(), case.exact.T, name, 272)


def test_streams_share_the_experts(cupy, rng):
    case = Layer("bfloat16", 264, 520, COUNTS, cupy, rng)
    want, offsets = to_numpy(case.multiply()), cupy.asarray(case.offsets)
    cupy.cuda.Device().synchronize()
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(3)]
    results = []
    for _ in range(3):
        for stream in streams:
            with stream:
                results.append(case.multiply(offsets=offsets))
    cupy.cuda.Device().synchronize()
    for got in results:
        np.testing.assert_array_equal(to_numpy(got), want)


@pytest.fixture
def planned(cupy, monkeypatch):
    """Counts calls that were planned, not replayed."""
    from sparse24._grouped import dispatch as grouped_dispatch

    calls, fill = [], grouped_dispatch.fill
    monkeypatch.setattr(
        grouped_dispatch, "fill", lambda *given: (calls.append(given), fill(*given))[1]
    )
    if not runs():
        pytest.skip("only products in one launch are replayed")
    return calls


@pytest.mark.parametrize("library", ["cupy", "torch"])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_call_like_an_earlier_one_is_replayed(cupy, planned, rng, library, with_bias):
    routes = [COUNTS, (534, *8 * (0,)), (*8 * (0,), 534)]
    draw = lambda counts: Layer("float16", 136, 264, counts, cupy, np.random.default_rng(3))  # noqa: E731
    cases = [draw(counts) for counts in routes]
    give = lambda x: x  # noqa: E731
    if library == "torch":
        give = pytest.importorskip("torch").from_dlpack
    bias = rng.integers(-9, 10, (len(COUNTS), 136)).astype(np.float32)
    of_call = give(cupy.asarray(bias)) if with_bias else None
    experts = cases[0].experts
    for case in [*cases, *cases]:
        tokens, offsets = give(case.x.copy()), give(cupy.asarray(case.offsets))  # other memory
        y = s24.grouped_linear(tokens, experts, of_call, offsets=offsets)
        assert type(y) is type(tokens)
        if not with_bias:
            columns = s24.grouped_matmul(experts, tokens.T, offsets=offsets)
            assert bool((y == columns.T).all())
        want = case.exact.T
        if with_bias:
            want = want + np.repeat(bias, np.diff(case.offsets), axis=0)
        got = to_numpy(cupy.from_dlpack(y)).astype(np.float64)
        assert (np.abs(got - want) <= 2**-9 * (np.abs(want) + 10)).all()
    assert len(planned) == (1 if with_bias else 2)


def test_what_is_copied_or_converted_is_not_replayed(cupy, planned, rng):
    case = Layer("float16", 136, 264, COUNTS, cupy, rng)
    offsets, bias = cupy.asarray(case.offsets), cupy.ones((len(COUNTS), 136), np.float16)
    spread = cupy.zeros(2 * len(offsets), offsets.dtype)[::2]
    spread[...] = offsets
    strided = cupy.zeros((len(case.x), 528), np.float16)[:, ::2]
    strided[...] = case.x
    calls = [
        (case.x, None, case.offsets), (case.x, None, spread), (case.x, bias, offsets),
        (strided, None, offsets), (case.x.astype(np.float32), None, offsets),
    ]  # fmt: skip
    for x, of_call, where in 2 * calls:
        y = s24.grouped_linear(x, case.experts, of_call, offsets=where)
        want = case.exact.T + (0 if of_call is None else 1)
        assert (np.abs(to_numpy(y) - want) <= 2**-9 * (np.abs(want) + 10)).all()
    assert len(planned) == 2 * len(calls)


def test_a_replayed_result_must_not_overlap(cupy, planned, rng):
    case = Layer("float16", 264, 264, COUNTS, cupy, rng)
    offsets, out = cupy.asarray(case.offsets), cupy.empty_like(case.x).T
    for _ in range(2):
        s24.grouped_matmul(case.experts, case.x.T, out, offsets=offsets)
    assert len(planned) == 1
    with pytest.raises(s24.ArgumentError, match="shares memory with an operand"):
        s24.grouped_matmul(case.experts, case.x.T, case.x.T, offsets=offsets)
