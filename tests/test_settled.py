"""Matrices that are read while the kernel before a product still runs, and never too early."""

from __future__ import annotations

import functools
import itertools
from types import SimpleNamespace

import numpy as np
import pytest

import sparse24 as s24
from sparse24 import _arrays, _autotune, _settled, _streams
from sparse24._records import MAKING, PLAIN, Compressed24, Fused, Operand24
from sparse24._views import View
from sparse24.kernels.launch import Launcher
from sparse24.kernels.sparse_split import InPieces, InTurn

M, K = 4096, 4096


# --- without a GPU ------------------------------------------------------------------------


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


# --- on a GPU -----------------------------------------------------------------------------


def gpu_test(function):
    return pytest.mark.gpu(pytest.mark.stem("sparse_decode")(function))


def whole(rng, *shape) -> np.ndarray:
    """Small integers, whose products are exact in float16."""
    return rng.integers(-2, 3, shape).astype(np.float16)


def is_settled(A) -> bool:
    return _settled.is_settled(A._operand.rows)


@gpu_test
def test_the_second_product_is_planned_for_a_settled_matrix(rng):
    cupy = pytest.importorskip("cupy")
    A = s24.compress(cupy.asarray(s24.prune(whole(rng, M, K))))
    b = cupy.asarray(whole(rng, 8, K)).T
    results = []
    for known in (0, 1, 1):
        results.append(s24.matmul(A, b, algorithm="sparse_decode"))
        assert len(A._plans) == known
        cupy.cuda.Device().synchronize()
    assert is_settled(A)
    assert all(plan.settled for plan in A._plans.values())
    other = s24.compress(A.toarray())
    other._operand.rows.derived[MAKING] = _settled.Making(None)
    want = s24.matmul(other, b, algorithm="sparse_decode")
    assert not next(iter(other._plans.values())).settled
    assert all((got == want).all() for got in results)


@gpu_test
@pytest.mark.parametrize("shape", [(4096, 4096), (1000, 144), (16, 8192), (50, 32)])
@pytest.mark.parametrize(("n", "order"), [
    (1, "F"), (7, "F"), (8, "F"), (16, "F"), (17, "F"), (40, "F"), (48, "F"),
    (16, "C"),
])  # fmt: skip
@pytest.mark.parametrize("dtype", [np.float16, np.int8])
def test_b_is_read_only_once_it_is_written(rng, shape, n, order, dtype):
    """Each b comes from a kernel just before, and then is overwritten."""
    cupy = pytest.importorskip("cupy")
    w, x = s24.prune(whole(rng, *shape)).astype(dtype), whole(rng, shape[1], n).astype(dtype)
    A, given = s24.compress(cupy.asarray(w)), cupy.asarray(x, order=order)
    for _ in range(2):
        s24.matmul(A, given, algorithm="sparse_decode")
        cupy.cuda.Device().synchronize()
    b, out = cupy.zeros_like(given), []
    for _ in range(20):
        b[...] = given
        out.append(s24.matmul(A, b, algorithm="sparse_decode"))
        b[...] = 0
    assert is_settled(A)
    want = w.astype(np.float64) @ x.astype(np.float64)
    for got in out:
        np.testing.assert_array_equal(got.get().astype(np.float64), want)


@gpu_test
def test_a_new_matrix_in_the_memory_of_a_settled_one(rng):
    """Compressed just before the product, at the addresses of one that was settled."""
    cupy = pytest.importorskip("cupy")
    b = cupy.asarray(whole(rng, 8, K)).T
    weights = [cupy.asarray(s24.prune(whole(rng, M, K))) for _ in range(3)]
    want = [w.astype(np.float32) @ b.astype(np.float32) for w in weights]
    places = set()
    for turn in range(30):
        A = s24.compress(weights[turn % 3], on_excess="prune")  # which does not wait
        places.add(A.values.data.ptr)
        for _ in range(1 + turn % 2 * 2):  # once, or until it is settled
            got = s24.matmul(A, b, algorithm="sparse_decode")
            if turn % 2:
                cupy.cuda.Device().synchronize()
        assert (got == want[turn % 3]).all()
        assert len(A._plans) == turn % 2  # planned for a settled matrix, or to be planned again
        del A
    assert len(places) < 30


@gpu_test
def test_a_matrix_that_a_graph_makes(rng):
    cupy = pytest.importorskip("cupy")
    dense, b = cupy.zeros((M, K), np.float16), cupy.asarray(whole(rng, 8, K)).T
    out = cupy.empty((M, 8), np.float16)
    weights = [cupy.asarray(s24.prune(whole(rng, M, K))) for _ in range(2)]

    def step():
        A = s24.compress(dense, on_excess="prune")
        s24.matmul(A, b, out, algorithm="sparse_decode")

    with cupy.cuda.Stream(non_blocking=True) as stream:
        for _ in range(2):
            step()
        stream.begin_capture()
        step()
        graph = stream.end_capture()
        for turn in range(10):
            dense[...] = weights[turn % 2]
            graph.launch(stream)
            want = weights[turn % 2].astype(np.float32) @ b.astype(np.float32)
            assert (out == want).all()


@gpu_test
def test_a_settled_matrix_in_a_graph(rng):
    """Products of one graph, each with what the one before it has written."""
    cupy = pytest.importorskip("cupy")
    w = np.zeros((K, K), np.float16)
    w[np.arange(K), np.roll(np.arange(K), 1)] = 1  # moves rows by one
    A = s24.compress(cupy.asarray(w))
    first = cupy.asarray(whole(rng, 8, K))
    xs = [cupy.zeros_like(first) for _ in range(9)]
    with cupy.cuda.Stream(non_blocking=True) as stream:
        for _ in range(2):
            s24.matmul(first, A.T, xs[1], algorithm="sparse_decode")
            stream.synchronize()
        stream.begin_capture()
        for x, y in itertools.pairwise(xs):
            s24.matmul(x, A.T, y, algorithm="sparse_decode")
        graph = stream.end_capture()
        assert is_settled(A)
        for shift in range(5):
            xs[0][...] = cupy.roll(first, shift, axis=1)
            for x in xs[1:]:
                x.fill(cupy.nan)
            graph.launch(stream)
            want = cupy.roll(first, shift + len(xs) - 1, axis=1)
            np.testing.assert_array_equal(xs[-1].get(), want.get())
