"""Launches that are moved to other addresses: the same arguments as laid out for those."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

from sparse24 import _moved
from sparse24.kernels import launch, tensor_map
from sparse24.kernels.launch import Launch

HERE, THERE = (0x7F00_0000_0000, 0x7F10_0020_0000), (0x7E00_0080_0200, 0x7F00_0000_0000)
VIEW = np.dtype([("address", "u8"), ("pitch", "i8"), ("rows", "i4")])


@pytest.fixture(autouse=True)
def no_driver(monkeypatch):
    """A driver that keeps a map's address in its third word, and checks where the map lies."""

    def replace(at, address):
        if at % tensor_map.ALIGNMENT or address % 16:
            return 1
        ctypes.c_uint64.from_address(at + 16).value = ~address & (1 << 64) - 1
        return 0

    monkeypatch.setattr(launch, "_driver_launch", lambda: None)
    monkeypatch.setattr(_moved, "_replacer", lambda: replace)


def encoded(address: int) -> np.ndarray:
    room = tensor_map.empty()
    room.view(np.uint64)[:3] = 7, 8, ~np.uint64(address)
    return room


def word(value: int) -> np.ndarray:
    return np.array([value], np.uint64)


KERNEL = SimpleNamespace(kernel=SimpleNamespace(ptr=77))


def product(x: int, out: int, stream: int) -> list[Launch]:
    """Two tensor maps of one array, a number, a pointer into another one and a struct."""
    maps = tensor_map.several([encoded(x), encoded(x)])
    view = np.array([(out, 128, 3)], VIEW)
    return [Launch(KERNEL, 4, 384, 99, [word(stream), maps, word(x + 96), view], early=True)]


def packing(x: int, out: int, stream: int) -> list[Launch]:
    """A launch for each orientation, the second one without `x`."""
    both = Launch(KERNEL, 4, 128, 0, [word(x), word(out), word(5)])
    return [both, Launch(KERNEL, 8, 128, 0, [word(out + 4096), word(5)])]


def contents(launches: list[Launch]) -> list:
    return [
        (one._function, one._sizes, one._early, [argument.tobytes() for argument in one.arguments])
        for one in launches
    ]


@pytest.mark.parametrize("lay_out", [product, packing])
@pytest.mark.parametrize("there", [THERE, THERE[::-1], HERE, (THERE[0], THERE[0])])
def test_moved_launches_are_those_that_are_laid_out_there(lay_out, there):
    move = _moved.movable(lay_out, HERE, 9)
    assert contents(move(there)) == contents(lay_out(*there, 9))


def test_the_first_launches_stay_as_they_are():
    made = []

    def lay_out(*given):
        made.append(product(*given))
        return made[-1]

    move = _moved.movable(lay_out, HERE, 9)
    before = contents(made[0])
    one, other = move(THERE), move(HERE)
    assert contents(made[0]) == before == contents(other) != contents(one)


def test_a_moved_launch_takes_another_last_argument():
    (one,) = _moved.movable(product, HERE, 9)(THERE)
    (laid_out,) = product(*THERE, 9)
    last = word(3)
    assert contents([one.with_last(last)]) == contents([laid_out.with_last(last)])


def test_an_array_that_is_left_out_has_no_address():
    move = _moved.movable(lambda x, bias, stream: product(x, bias, stream), (HERE[0], 0), 9)
    assert contents(move((THERE[0], 0))) == contents(product(THERE[0], 0, 9))


@pytest.mark.parametrize(
    "argument",
    [
        lambda x, out: word(x >> 7),  # part of an address
        lambda x, out: word(x ^ out),  # of both
        lambda x, out: word(x % (1 << 22)),  # how it lies
        lambda x, out: encoded(x + 64),  # a map that begins within the array
    ],
)
def test_arguments_that_do_not_follow_their_addresses_are_laid_out(argument):
    def lay_out(x, out, stream):
        return [Launch(KERNEL, 4, 128, 0, [word(x), argument(x, out)])]

    assert _moved.movable(lay_out, HERE, 9) is None


@pytest.mark.parametrize(
    "other",
    [
        lambda x: Launch(KERNEL, 4 + x // _moved.MOVE % 2, 128, 0, [word(x)]),
        lambda x: Launch(KERNEL, 4, 128, 0, [word(x)], early=bool(x // _moved.MOVE % 2)),
        lambda x: Launch(KERNEL, 4, 128, 0, [word(x)] * (1 + x // _moved.MOVE % 2)),
    ],
)
def test_launches_that_depend_on_their_addresses_are_laid_out(other):
    assert _moved.movable(lambda x, stream: [other(x)], HERE[:1], 9) is None
    several = lambda x, stream: [Launch(KERNEL, 4, 128, 0, [word(x)])] * (1 + x // _moved.MOVE % 2)  # noqa: E731
    assert _moved.movable(several, HERE[:1], 9) is None


def test_an_error_of_the_driver_is_told(monkeypatch):
    monkeypatch.setattr(_moved, "_replacer", lambda: lambda at, address: 1)
    with pytest.raises(_moved.DeviceError, match="cuTensorMapReplaceAddress returned CUresult 1"):
        _moved.movable(product, HERE, 9)
