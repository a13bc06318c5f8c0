"""On which device work goes, with stand-ins for CuPy's arrays and devices."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from fake_device import RUNTIME, Array, Place, array

import sparse24 as s24
from sparse24 import _arrays, _devices, _foreign, _foreign_streams, _replay
from sparse24._errors import DeviceError
from sparse24._fuse import fuse
from sparse24._options import NO_OPTIONS, Epilogue
from sparse24._records import Compressed24, Operand24
from sparse24._target import Result, Target


@pytest.fixture(autouse=True)
def two_devices(monkeypatch):
    cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=RUNTIME, Device=Place))
    monkeypatch.setattr(_arrays, "is_cupy", lambda x: isinstance(x, Array))
    monkeypatch.setattr(_arrays, "cupy_module", lambda: cupy)
    monkeypatch.setattr(Place, "current", 0)
    take = _foreign.take
    monkeypatch.setattr(_foreign, "take", lambda x, **how: (
        (x, _foreign.identity) if isinstance(x, Array) else take(x, **how)
    ))  # fmt: skip


class Kept:
    """An object on a device, whose methods say where they ran."""

    def __init__(self, device: str):
        self.device = device

    @_devices.on_own_device
    def where(self, more=0):
        return Place.current + more

    @property
    @_devices.on_own_device
    def place(self):
        return Place.current


@_devices.on_device_of_arguments
def where(*arrays, last=None):
    return Place.current


@pytest.mark.parametrize("number", [0, 1])
def test_work_goes_to_the_device_of_the_arrays(number):
    x = array(np.zeros(4), number)
    with _devices.on_device_of(np.zeros(3), x):
        assert Place.current == number
    with _foreign_streams.stream_of(x):
        assert Place.current == number
    assert where(None, x) == where(1, last=x) == number
    kept = Kept(f"cuda:{number}")
    assert (kept.where(), kept.where(more=5), kept.place) == (number, number + 5, number)
    assert Place.current == 0


def test_what_is_on_no_gpu_leaves_the_current_device():
    with _devices.on_device("cuda:1"):
        for context in (_devices.on_device("cpu"), _devices.on_device("cuda")):
            with context:
                assert Place.current == 1
        assert where(np.zeros(3), last=4) == Kept("cpu").where() == 1
    assert Place.current == 0


def test_only_arrays_of_the_current_device_are_remembered():
    here, there = array(np.zeros((4, 4))), array(np.zeros((4, 4)), 1)
    assert not _devices.is_elsewhere(here)
    assert _replay.layout_of(here) is not None
    assert _replay.layout_of(there) is None
    with _devices.on_device("cuda:1"):
        assert _replay.layout_of(there)[-1] == 1
        assert _replay.layout_of(here) is None


def test_arrays_of_another_device_are_refused():
    here, there = array(np.zeros((16, 4), np.float32)), array(np.zeros((16, 4), np.float32), 1)
    _devices.refuse_elsewhere(here, argument="out")
    _devices.refuse_elsewhere(np.zeros(3), argument="out")  # it is moved, or refused as NumPy's
    with pytest.raises(DeviceError, match="out is on cuda:1, the operands are not; pass an array"):
        _devices.refuse_elsewhere(there, argument="out")
    A = s24.random((8, 16), rng=0)
    record = Compressed24(array(A.values), None, array(A.packed), (8, 16), A._dtype)
    a = Operand24(record, None, None, (8, 16), A._dtype)
    assert Result.of(a, here, None, NO_OPTIONS, (8, 4)).on_gpu
    message = r"one operand is on cuda:0, the other on cuda:1; move one with \.to_device"
    with pytest.raises(DeviceError, match=message):
        Result.of(a, there, None, NO_OPTIONS, (8, 4))
    target = Target((8, 4), "float32", array(np.zeros((8, 4), np.float32), 1), on_gpu=True)
    with pytest.raises(DeviceError, match="out is on cuda:1, the operands are not"):
        target.allocate(None)
    bias = array(np.zeros(8, np.float32), 1)
    for call in (
        NO_OPTIONS._replace(epilogue=Epilogue(bias=bias)),
        NO_OPTIONS._replace(scales=(bias, None)),
    ):  # fmt: skip
        with pytest.raises(DeviceError, match=r"(bias|scales\[0\]) is on cuda:1"):
            fuse(call, (8, 16), (16, 4), np, np.float32)
