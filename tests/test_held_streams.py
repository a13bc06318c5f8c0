"""Streams of CuPy are not destroyed, and their addresses given away, while products run on them."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

import sparse24 as s24
from sparse24 import _arrays, _streams

# --- without a GPU ------------------------------------------------------------------------


class Stream:
    def __init__(self, ptr: int, done: bool = False):
        self.ptr, self.done = ptr, done


class ExternalStream(Stream):
    """Made by another library."""


@pytest.fixture
def current(monkeypatch):
    """A place for the current stream, where nothing is held yet."""
    state = SimpleNamespace(stream=None)
    cuda = SimpleNamespace(Stream=Stream, get_current_stream=lambda: state.stream)
    monkeypatch.setattr(_arrays, "cupy_module", lambda: SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(_streams, "_exchange_mode", lambda: lambda _: None)
    monkeypatch.setattr(_streams, "held", {})
    return state


def run_on(current, stream: Stream) -> weakref.ref[Stream]:
    """Enqueue a product, and drop the stream."""
    current.stream = stream
    _streams.hold_current()
    current.stream = None
    return weakref.ref(stream)


def test_a_stream_is_held_until_its_work_has_ended(current):
    first = run_on(current, Stream(1))
    run_on(current, Stream(2))
    assert first() is not None
    first().done = True
    run_on(current, Stream(3))
    assert first() is None
    assert set(_streams.held) == {2, 3}


def test_a_stream_that_the_caller_has_stays(current):
    mine = Stream(1, done=True)
    run_on(current, mine)
    run_on(current, Stream(2))
    assert set(_streams.held) == {1, 2}
    del mine
    run_on(current, Stream(3))
    assert set(_streams.held) == {2, 3}


def test_streams_of_others_are_known_by_address_alone(current):
    ends = run_on(current, ExternalStream(1))
    current.stream = Stream(2)
    _streams.hold(7)  # torch's stream, while CuPy has another current one
    assert ends() is None
    assert _streams.held == {1: None, 7: None}


# --- on a GPU -----------------------------------------------------------------------------

SPIN = r"""extern "C" __global__ void spin(long long cycles) {
    for (const long long start = clock64(); clock64() - start < cycles;) {}
}"""
HALF_A_SECOND = 10**9  # cycles, about


@pytest.mark.gpu
@pytest.mark.parametrize("unstructured", [True, False])
def test_the_next_stream_does_not_get_the_address_of_a_busy_one(rng, unstructured):
    cupy = pytest.importorskip("cupy")
    spin = cupy.RawKernel(SPIN, "spin")
    dense = np.where(rng.random((512, 512)) < 0.1, rng.standard_normal((512, 512)), 0)
    dense = cupy.asarray(dense.astype(np.float16))
    A = s24.hybrid(dense) if unstructured else s24.compress(dense, on_excess="prune")
    b, turns = cupy.ones((512, 8), np.float16), 3
    want = A @ b
    for _ in range(turns):  # planned at first, repeated then
        stream = cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.Device().synchronize()
        with stream:
            spin((1,), (1,), (HALF_A_SECOND,))
            got = A @ b
        busy, address = weakref.ref(stream), stream.ptr
        del stream
        gc.collect()
        others = [cupy.cuda.Stream(non_blocking=True) for _ in range(4)]
        assert address not in [other.ptr for other in others]
        cupy.cuda.Device().synchronize()
        assert (got == want).all()
        with others[0]:
            A @ b
        assert busy() is None  # was let go, as its work has ended
