"""What is made of arrays is made on their device and stream, in the order of their library."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest

import sparse24 as s24
from sparse24 import _arrays, _calibration, _deals, _foreign, _foreign_streams, _permutation, _refit
from sparse24.formats import hybrid_build


class Theirs(np.ndarray):
    """Of another library: `_foreign.take` makes a plain array of it."""


W = np.eye(8, 16, dtype=np.float32)


def working(monkeypatch, *parts):
    """For each call of these parts whether it ran where the work of a `Theirs` goes."""
    within, ran = [], []

    @contextlib.contextmanager
    def stream_of(x):
        within.append(type(x) is Theirs)
        yield
        within.pop()

    def watched(module, name):
        works = getattr(module, name)

        def watch(*given, **named):
            ran.append(any(within))
            return works(*given, **named)

        monkeypatch.setattr(module, name, watch)

    monkeypatch.setattr(_foreign_streams, "stream_of", stream_of)
    for module, name in parts:
        watched(module, name)
    return ran


def test_a_hybrid_matrix_is_built_on_the_stream_of_its_elements(monkeypatch):
    """And is complete: products on other streams would read tiles before they are filled."""
    steps = (hybrid_build, "_survey"), (hybrid_build, "_fill"), (_arrays, "settle")
    ran = working(monkeypatch, *steps)
    h = s24.hybrid(W.view(Theirs))
    np.testing.assert_array_equal(h.toarray(), W)
    assert ran == [True, True, True]
    assert s24.hybrid(W).shape == W.shape
    assert ran == [True, True, True, False, False, False]


def seen(x):
    calibration = s24.Calibration(bias=True)
    calibration.update(x)
    return calibration


@pytest.mark.parametrize(("work", "parts"), [
    (seen, [(_foreign, "take")]),
    (lambda w: seen(W).new_bias(w, W), [(_calibration, "narrowed")]),
    (lambda w: s24.refit(w, W, np.eye(16)), [(_refit, "_solve"), (_refit, "narrowed")]),
    (s24.find_permutation, [(_permutation, "_columns"), (_deals, "Search")]),
    (lambda w: s24.find_permutation([w, W]), [(_permutation, "_columns"), (_deals, "Search")]),
])  # fmt: skip
def test_what_calibrates_works_on_the_stream_of_a_tensor(work, parts, monkeypatch):
    """Elsewhere it would read memory that torch has given to others, and on another device."""
    ran = working(monkeypatch, *parts)
    work(W.view(Theirs))
    assert ran == [True] * len(parts)
    ran.clear()
    work(W)
    assert ran == [False] * len(parts)


class Stream:
    """One of torch's, that says for which others it waits."""

    def __init__(self, address: int, device: int):
        self.cuda_stream, self.device, self.before = address, device, []

    def wait_stream(self, other) -> None:
        self.before.append((other.cuda_stream, other.device))


@pytest.mark.parametrize(("here", "ours", "theirs", "waits"), [
    (0, 0, (0, 0), False),  # one stream
    (0, 0, (9, 0), True),
    (0, 0, (0, 1), True),  # the default streams of two devices, both at address 0
    (1, 0, (0, 1), False),
    (1, 7, (7, 0), True),
])  # fmt: skip
def test_work_on_a_tensor_follows_that_of_its_own_device(here, ours, theirs, waits, monkeypatch):
    torch = pytest.importorskip("torch")
    made, its = {}, Stream(*theirs)

    def at(address, device):
        return made.setdefault((address, device.index), Stream(address, device.index))

    cuda = SimpleNamespace(
        get_current_stream=lambda: SimpleNamespace(ptr=ours),
        runtime=SimpleNamespace(getDevice=lambda: here),
    )
    monkeypatch.setattr(_arrays, "cupy_module", lambda: SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(_arrays, "torch_stream_at", at)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: its)
    _foreign_streams.order_after(SimpleNamespace(device=torch.device("cuda", theirs[1])))
    assert {where: stream.before for where, stream in made.items()} == (
        {(ours, here): [theirs]} if waits else {}
    )


def test_statistics_of_a_tensor_can_be_read_on_the_stream_of_cupy(monkeypatch):
    torch = pytest.importorskip("torch")
    ordered = []
    monkeypatch.setattr(_foreign_streams, "join", ordered.append)
    x = torch.ones(3, 16)
    seen(x)
    assert ordered == [x]
    monkeypatch.undo()
    monkeypatch.setattr(_foreign_streams, "order_after", ordered.append)
    monkeypatch.setattr(_arrays, "is_torch", lambda x: isinstance(x, SimpleNamespace))
    capturing = SimpleNamespace(is_cuda=True, captured=True)
    follows = SimpleNamespace(is_cuda=True, captured=False)
    monkeypatch.setattr(_arrays, "captures_work_on", lambda x: x.captured)
    for ours in (True, False):
        monkeypatch.setattr(_arrays, "is_capturing", lambda ours=ours: ours)
        for given in (W, SimpleNamespace(is_cuda=False), capturing, follows):
            _foreign_streams.join(given)
    assert ordered[1:] == [follows]


def test_sums_of_a_tensor_follow_those_of_other_streams(monkeypatch):
    """Joined to CuPy's stream behind each batch, for which the next batch waits."""
    torch, order = pytest.importorskip("torch"), []
    monkeypatch.setattr(_foreign_streams, "follow", lambda x: order.append("follow"))
    monkeypatch.setattr(_foreign_streams, "join", lambda x: order.append("join"))
    x = torch.ones(3, 16)
    calibration = s24.Calibration(bias=True)
    take = _foreign.take
    monkeypatch.setattr(_foreign, "take", lambda x, **how: order.append("sums") or take(x, **how))
    calibration.update(x)
    assert order == ["follow", "sums", "join"]
    pruned = s24.prune(torch.ones(4, 16))
    order.clear()
    s24.refit(pruned, torch.ones(4, 16), calibration)
    assert order[0] == "follow"


def test_work_on_a_tensor_can_follow_that_of_cupy(monkeypatch):
    ours, theirs = Stream(7, 0), Stream(9, 0)
    monkeypatch.setattr(_foreign_streams, "_orders_streams", lambda x: x is not None)
    for apart in ((ours, theirs), None):
        monkeypatch.setattr(_foreign_streams, "_apart", lambda x, apart=apart: apart)
        _foreign_streams.follow("tensor")
    _foreign_streams.follow(None)
    assert theirs.before == [(7, 0)]
    assert not ours.before


@pytest.mark.gpu
def test_calibration_with_tensors_on_a_stream_of_their_own(rng):
    pytest.importorskip("cupy")
    torch = pytest.importorskip("torch")
    batches, seen_by_cpu = rng.integers(-3, 4, (20, 256, 64)).astype(np.float32), s24.Calibration()
    calibration, side = s24.Calibration(), torch.cuda.Stream()
    with torch.cuda.stream(side):
        for batch in batches:
            torch.cuda._sleep(1_000_000)
            calibration.update(torch.from_numpy(batch).to("cuda", non_blocking=True))
            torch.full((256, 64), 1e6, device="cuda")  # in the memory of the batch
            seen_by_cpu.update(batch)
    np.testing.assert_array_equal(calibration.hessian.get(), seen_by_cpu.hessian)


@pytest.mark.gpu
def test_a_hybrid_matrix_of_a_tensor_is_ready_for_products_on_its_stream(rng, monkeypatch):
    cupy, torch = pytest.importorskip("cupy"), pytest.importorskip("torch")
    streams, fill = [], hybrid_build._fill

    def slow(*given):
        streams.append(cupy.cuda.get_current_stream().ptr)
        torch.cuda._sleep(100_000_000)  # before it on the stream of torch, or else not at all
        fill(*given)

    monkeypatch.setattr(hybrid_build, "_fill", slow)
    w = (rng.integers(-3, 4, (512, 256)) * (rng.random((512, 256)) < 0.1)).astype(np.float16)
    b = rng.integers(-2, 3, (256, 8)).astype(np.float16)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        h = s24.hybrid(torch.from_numpy(w).to("cuda"))
        got = (h @ torch.from_numpy(b).to("cuda")).cpu()  # on this stream, as it waits for no other
    assert streams == [side.cuda_stream]
    np.testing.assert_array_equal(got.numpy(), w @ b)


@pytest.mark.gpu
def test_what_is_made_of_a_tensor_is_there_for_the_stream_of_cupy(rng):
    cupy, torch = pytest.importorskip("cupy"), pytest.importorskip("torch")
    w = s24.prune(rng.integers(-3, 4, (1024, 1024)).astype(np.float16))
    side = torch.cuda.Stream()
    for _ in range(3):
        cupy.full(1 << 20, 7, np.uint8)  # what its memory may hold
        with torch.cuda.stream(side):
            tensor = torch.from_numpy(w).cuda()
            torch.cuda._sleep(20_000_000)
            a = s24.compress(tensor, on_excess="prune")
            converted, dense = a.astype("float32"), a.toarray()
        np.testing.assert_array_equal(dense.get(), w)
        np.testing.assert_array_equal(converted.toarray().get(), w)


@pytest.mark.gpu
def test_codes_that_are_converted_in_a_capture_are_not_kept(rng):
    cupy = pytest.importorskip("cupy")
    w = s24.prune(rng.integers(-3, 4, (64, 128)).astype(np.float16))
    a = s24.compress(cupy.asarray(w))
    out = cupy.zeros((64, 16), np.uint8)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        codes = a.metadata
        out[...] = codes
        graph = stream.end_capture()
        np.testing.assert_array_equal(a.metadata.get(), s24.compress(w).metadata)
        graph.launch(stream)
        np.testing.assert_array_equal(out.get(), s24.compress(w).metadata)
