"""Replays of tensors of torch on a GPU: on which stream and device they launch, without one."""

from __future__ import annotations

import contextlib
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from sparse24 import _arrays, _foreign_streams, _moved_layout, _ready, _streams
from sparse24._dispatch import Launched
from sparse24._ready import Ready, ReadyInTurn, ReadyProduct
from sparse24._ready_pieces import ReadyInPieces
from sparse24._records import PLAIN, Compressed24, Fused
from sparse24._views import View
from sparse24.kernels import block_sums, epilogue


class Tensor:
    """What is asked of a tensor."""

    is_cuda = True

    def __init__(self, address: int, index: int = 0):
        self._address, self.device = address, SimpleNamespace(index=index)

    def data_ptr(self) -> int:
        return self._address


@pytest.fixture
def machine(monkeypatch):
    """What a test sets, and in what each launch found itself."""
    machine = SimpleNamespace(torch=0, cupy=0, inside=[], launches=[], bound=[])

    @contextlib.contextmanager
    def entered(name):
        machine.inside.append(name)
        yield
        machine.inside.pop()

    put = monkeypatch.setattr
    put(_arrays, "is_cupy", lambda x: False)
    put(_arrays, "is_torch", lambda x: isinstance(x, Tensor))
    put(_arrays, "torch_stream", lambda x: 7)
    put(_foreign_streams, "make_current", lambda: None)
    put(_streams, "hold", lambda stream: None)
    put(_streams, "hold_current", lambda: None)
    put(_foreign_streams, "stream_of", lambda x: entered("all of torch's"))
    put(_arrays, "cupy_stream", lambda stream: entered(f"stream {stream}"))
    put(_foreign_streams, "is_current_device", lambda x: machine.cupy == x.device.index)
    put(_ready, "_is_on_current_device", lambda x: machine.torch == x.device.index)
    return machine


NAMES = ("shape", "strides", "dtype", "ndim", "size")


def device_array(x):
    """A NumPy array with the attributes of one on a GPU."""
    data = SimpleNamespace(ptr=x.ctypes.data)
    return SimpleNamespace(data=data, **{name: getattr(x, name) for name in NAMES})


def ready(machine, *, captured: bool = True, out: int = 1 << 20) -> Ready:
    def bind(b, result, stream, *vector):
        if b.ptr < _moved_layout.FIRST:  # no stand-in
            machine.bound.append((b.ptr, result.ptr, stream, *vector))
        return lambda stream: machine.launches.append((stream, *machine.inside))

    arrays = (device_array(np.zeros(4, np.float32)) for _ in range(2))
    return _ready.bound(bind, *arrays, lambda: Tensor(out), captured=captured)


@pytest.mark.parametrize(
    ("captured", "torch", "cupy", "inside"),
    [
        (True, 0, 0, ()), (True, 0, 1, ()), (True, 1, 0, ("all of torch's",)),
        (False, 0, 0, ("stream 7",)), (False, 0, 1, ("all of torch's",)),
        (False, 1, 0, ("all of torch's",)), (False, 1, 1, ("all of torch's",)),
    ],
)  # fmt: skip
def test_only_what_a_launch_asks_for_is_entered(machine, captured, torch, cupy, inside):
    """cuBLAS asks CuPy for stream and device; a kernel belongs to torch's current device."""
    machine.torch, machine.cupy = torch, cupy
    plan = ready(machine, captured=captured)
    for _ in range(2):
        assert plan(Tensor(64), None).data_ptr() == 1 << 20
    assert machine.launches == [(7, *inside)] * 2
    assert machine.bound == [(64, 1 << 20, 7)]
    assert not machine.inside


@pytest.mark.parametrize("in_place", [True, False])
def test_a_sum_with_the_result_reads_it_where_it_lies(machine, in_place):
    arrays = [np.zeros((4, 4), np.float32) for _ in range(4)]
    values, packed, b, out = map(device_array, arrays)
    record = Compressed24(values, None, packed, (4, 8), None)
    launched = Launched(SimpleNamespace(bind=None), record, b, out, Fused(c=out, beta=2.0))
    plan = ReadyProduct(launched, lambda: Tensor(1 << 20), None, in_place=in_place)
    taken = []

    def enqueue(given, stream, last):
        (params,) = last.argument.view(epilogue.PARAMS)
        taken.append((given[-1], int(params["c"]), float(params["beta"])))

    plan.layout = SimpleNamespace(enqueue=enqueue)
    places = (1 << 21, out.data.ptr, 1 << 22)
    for place in places:
        assert plan(Tensor(64), Tensor(place)).data_ptr() == place
    there = places if in_place else (out.data.ptr,) * 3
    assert taken == [(place, c, 2.0) for place, c in zip(places, there, strict=True)]


def in_pieces(machine) -> ReadyInPieces:
    """A product whose two launches tell where it was given the pieces of b."""

    def bind(a, b, out, stream, scratch):
        def launch(stream):
            machine.launches.append((scratch, stream, *machine.inside))

        return block_sums.InTurn((launch, launch))

    values, packed, b, out = (device_array(np.zeros((4, 4), np.float32)) for _ in range(4))
    record = Compressed24(values, None, packed, (4, 8), None)
    launcher = SimpleNamespace(bind=bind, scratch_bytes=lambda b: 640)
    launched = Launched(launcher, record, b, out, PLAIN)
    return ReadyInPieces(launched, record, lambda: Tensor(1 << 20))


@pytest.mark.parametrize("device", [0, 1])
def test_pieces_of_a_tensor_are_in_memory_of_torch(machine, monkeypatch, device):
    asked = []

    def torch_memory(device, size):
        asked.append((device.index, size))
        return Tensor(4096 * len(asked))

    monkeypatch.setattr(_foreign_streams, "torch_memory", torch_memory)
    plan = in_pieces(machine)
    for _ in range(2):
        assert plan(Tensor(64, device), None).data_ptr() == 1 << 20
    where = ["all of torch's"] if device else []
    assert machine.launches == [(at, 7, *where) for at in (4096, 4096, 8192, 8192)]
    assert asked == [(device, 640)] * 2
    assert not plan.captured


def test_pieces_of_an_array_are_in_memory_of_cupy(machine, monkeypatch):
    pool = iter((512, 1024))
    cuda = SimpleNamespace(alloc=lambda size: SimpleNamespace(ptr=next(pool) + size))
    monkeypatch.setattr(_arrays, "is_cupy", lambda x: True)
    monkeypatch.setattr(_arrays, "cupy_module", lambda: SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(_ready, "current_stream", lambda: 9)
    x, out = (View.of(at << 40, (4, 4), (16, 4), np.float32) for at in (1, 2))
    plan = in_pieces(machine)
    for _ in range(2):
        assert plan(x, out) is out
    assert machine.launches == [(at, 9) for at in (1152, 1152, 1664, 1664)]


def test_a_vector_of_the_call_is_part_of_where_it_reads(machine):
    plan = ready(machine)
    for address in (256, 512, 256):
        plan(Tensor(64), None, Tensor(address))
    assert machine.bound == [(64, 1 << 20, 7, 256), (64, 1 << 20, 7, 512)]
    assert len(machine.launches) == 3


@pytest.mark.parametrize("converts", [False, True])
def test_the_second_of_two_takes_what_the_first_made(machine, converts):
    first, second = ready(machine, out=1 << 20), ready(machine, out=1 << 21)
    convert = (lambda x: Tensor(2 * x.data_ptr())) if converts else None
    both = ReadyInTurn(first, second, convert)
    assert both(Tensor(64), Tensor(300)).data_ptr() == 1 << 21
    of_second = (1 << 20, 1 << 21, 7, 600) if converts else (1 << 20, 1 << 21, 7)
    assert machine.bound == [(64, 1 << 20, 7), of_second]
    assert not both.captured


def test_views_of_parts():
    stack = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)[:, ::-1, 1:, ::2]
    view = View(device_array(stack))
    for index in np.ndindex(2, 3):
        part, want = view.matrix(index), stack[index]
        assert part.ptr == want.ctypes.data
        for name in ("shape", "strides", "ndim", "size"):
            assert getattr(part, name) == getattr(want, name)
    row = stack[0, 0, 0]
    rows, want = View(device_array(row)).repeated(6), np.broadcast_to(row, (6, row.size))
    assert (rows.ptr, rows.shape, rows.strides, rows.size) == (
        row.ctypes.data, want.shape, want.strides, want.size,
    )  # fmt: skip


def test_a_product_in_two_launches_is_replayed_as_two():
    launches = (object(), object())
    b, out = (device_array(np.zeros(4, np.float32)) for _ in range(2))
    for bound, want in ((block_sums.InTurn(launches), launches), (launches[0], launches[:1])):
        lay_out = _ready.by_address(lambda b, out, stream, bound=bound: bound, b, out)
        assert lay_out(1 << 20, 1 << 21, 7) == list(want)


def test_torch_tells_its_stream_without_an_object(monkeypatch):
    raw = SimpleNamespace(_cuda_getCurrentRawStream=lambda index: 40 + index)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(_C=raw))
    assert _arrays.torch_stream(Tensor(0, index=2)) == 42
    cuda = SimpleNamespace(current_stream=lambda device: SimpleNamespace(cuda_stream=device.index))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(_C=None, cuda=cuda))
    assert _arrays.torch_stream(Tensor(0, index=3)) == 3


def test_cupys_default_stream_is_that_of_torch(monkeypatch):
    """By its address, 0, torch would make a stream of its own, which nobody waits for."""
    cuda = SimpleNamespace(
        default_stream=lambda device: f"default of {device}",
        ExternalStream=lambda address, device: f"{address} of {device}",
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert _arrays.torch_stream_at(0, 1) == "default of 1"
    assert _arrays.torch_stream_at(64, 1) == "64 of 1"
