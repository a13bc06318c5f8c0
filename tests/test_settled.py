"""When a matrix counts as settled: one that nothing writes, which kernels may read early."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import numpy as np
import pytest

import sparse24 as s24
from sparse24 import _arrays, _autotune, _settled, _streams
from sparse24._records import PLAIN, Compressed24, Fused, Operand24
from sparse24._views import View
from sparse24.kernels.launch import Launcher
from sparse24.kernels.sparse_split import InPieces, InTurn


@pytest.fixture
def device(monkeypatch):
    """What the device would answer: whether a graph is captured, and all was done."""
    state = SimpleNamespace(capturing=False, done=False, events=0, modes=[])

    class Event:
        def __init__(self, disable_timing):
            assert disable_timing

        @property
        def done(self):
            assert len(state.modes) % 2  # between an exchange and the next one
            return state.done

        def record(self):
            state.events += 1

    cupy = SimpleNamespace(cuda=SimpleNamespace(Event=Event))
    monkeypatch.setattr(_arrays, "cupy_module", lambda: cupy)
    monkeypatch.setattr(_arrays, "is_capturing", lambda: state.capturing)
    monkeypatch.setattr(_streams, "_exchange_mode", lambda: state.modes.append)
    return state


def record() -> Compressed24:
    A = s24.random((4, 8), rng=0)
    return Compressed24(A.values, A.metadata, None, A.shape, A._dtype)


def test_settled_once_the_device_says_so(device):
    a = record()
    assert not _settled.is_settled(a)  # never multiplied
    assert _settled.will_settle(a)
    assert _settled.will_settle(a)
    assert device.events == 1
    assert not _settled.is_settled(a)
    device.done = True
    assert _settled.is_settled(a)
    device.done = False
    assert _settled.is_settled(a)  # known for good
    assert len(device.modes) == 4


def test_what_a_graph_may_make_never_settles(device):
    a = record()
    device.capturing = device.done = True
    assert not _settled.will_settle(a)
    device.capturing = False
    assert not _settled.will_settle(a)
    assert not _settled.is_settled(a)
    assert device.events == 0


def test_what_is_made_in_a_capture_never_settles(device, monkeypatch):
    records = record(), record()
    monkeypatch.setattr(_arrays, "is_cupy", lambda x: True)
    device.done = True
    for a, capturing in zip(records, (True, False), strict=True):
        device.capturing = capturing
        _settled.note_capture(Operand24(a, None, None, a.shape, a.dtype))
        device.capturing = False
        assert _settled.will_settle(a) != capturing
        assert _settled.is_settled(a) != capturing


def test_views_are_settled_with_the_whole(device):
    a = record()
    view = a.viewed(a.values[None], a.metadata[None], None, (1,))
    assert _settled.will_settle(view)
    device.done = True
    assert _settled.is_settled(a)
    assert _settled.is_settled(view)


class Reads(Launcher):
    """A kernel that reads a settled matrix early; its launches tell what they were given."""

    def __init__(self, *, early: bool):
        super().__init__()
        self.reads_early, self.ran = early, []

    def __call__(self, a, b, out, epilogue):
        self.ran.append(("call", a.settled, epilogue))

    def bind(self, a, b, out, stream):
        told = functools.partial(self._launch, a.settled, stream, None)
        told.with_last = functools.partial(self._with_last, a.settled, stream)
        return told

    def _with_last(self, settled, stream, last):
        return functools.partial(self._launch, settled, stream, last)

    def _launch(self, settled, bound_to, last, stream):
        assert stream == bound_to
        self.ran.append(("launch", settled, last))


@pytest.mark.parametrize("early", [True, False])
def test_a_kernel_is_timed_as_it_is_repeated(monkeypatch, early):
    monkeypatch.setattr(_autotune, "current_stream", lambda: 7)
    monkeypatch.setattr(_autotune._epilogue, "params", lambda epilogue: epilogue.alpha)
    kernel, double = Reads(early=early), Fused(alpha=2.0)
    for e in (PLAIN, double):
        for call in _autotune.as_repeated(kernel, [record(), record()], None, None, e, None):
            call()
    if early:
        want = [("launch", True, None)] * 2 + [("launch", True, 2.0)] * 2
    else:
        want = [("call", False, PLAIN)] * 2 + [("call", False, double)] * 2
    assert kernel.ran == want


class Parts(InPieces):
    """A product in pieces: each of its two launches tells what it was given."""

    def __init__(self):
        self._parts, self.ran = [slice(0, 8)], []

    def scratch_bytes(self, b):
        return 64

    def bind(self, a, b, out, stream, scratch):
        assert isinstance(b, View)
        kernel = Reads(early=True)
        kernel.ran = self.ran
        split = functools.partial(self.ran.append, ("split", scratch))
        return InTurn((lambda _: split(), kernel.bind(a, b, out, stream)))


def test_products_in_pieces_are_timed_by_their_launches_in_the_same_memory(monkeypatch):
    made: list[SimpleNamespace] = []

    def empty(size, dtype):
        made.append(SimpleNamespace(data=SimpleNamespace(ptr=4096 + len(made))))
        return made[-1]

    monkeypatch.setattr(_autotune, "current_stream", lambda: 7)
    monkeypatch.setattr(_autotune._epilogue, "params", lambda epilogue: epilogue.alpha)
    monkeypatch.setattr(_autotune.pieces, "of_sparse", lambda a: a)
    monkeypatch.setattr(_arrays, "cupy_module", lambda: SimpleNamespace(empty=empty))
    dense, epilogue = View.of(0, (8, 8), (32, 4), np.float32), Fused(alpha=2.0)
    room = _autotune._shared_room()
    for run in (Parts(), Parts()):  # two candidates
        operands = [record(), record()], dense, dense
        for call in _autotune.as_repeated(run, *operands, epilogue, room):
            call()
        assert run.ran == [("split", 4096), ("launch", True, 2.0)] * 2
    assert len(made) == 1
