"""Launches that are moved to other addresses: the same arguments as laid out for those."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

from sparse24._moved import SHIFT, MovedLayout
from sparse24.kernels import launch, tensor_map
from sparse24.kernels.launch import Launch

HERE, THERE = (0x7F00_0000_0000, 0x7F10_0020_0000), (0x7E00_0080_0200, 0x7F00_0000_0000)
VIEW = np.dtype([("address", "u8"), ("pitch", "i8"), ("rows", "i4")])
KERNEL = SimpleNamespace(kernel=SimpleNamespace(ptr=77))


@pytest.fixture(autouse=True)
def calls(monkeypatch):
    """What the driver is given: the first word of each argument, read from its address."""
    seen = []

    def driver(configuration, function, addresses, extra):
        seen.append([ctypes.c_uint64.from_address(address).value for address in addresses])
        return 0

    monkeypatch.setattr(launch, "_driver_launch", lambda: driver)
    return seen


def encoded(address: int) -> np.ndarray:
    room = tensor_map.empty()
    room.view(np.uint64)[:3] = 7, 8, address
    return room


def word(value: int) -> np.ndarray:
    return np.array([value], np.uint64)


def product(x: int, out: int, stream: int) -> list[Launch]:
    """Two tensor maps of one array, a number, a pointer into it and a struct with another one."""
    maps = tensor_map.several([encoded(x), encoded(x)])
    view = np.array([(out, 128, 3)], VIEW)
    return [Launch(KERNEL, 4, 384, 99, [word(stream), maps, word(x + 96), view], early=True)]


def packing(x: int, out: int, stream: int) -> list[Launch]:
    """A launch for each orientation, the second one without `x`."""
    both = Launch(KERNEL, 4, 128, 0, [word(x), word(out), word(5)])
    return [both, Launch(KERNEL, 8, 128, 0, [word(out + 4096), word(5)])]


def contents(launches) -> list:
    return [
        (one._function, one._sizes, one._early, [read(one, i) for i in range(len(one.arguments))])
        for one in launches
    ]


def read(one: Launch, i: int) -> bytes:
    """An argument, as long as the one that was laid out, from the address that the driver gets."""
    sizes = {4: (8, 256, 8, VIEW.itemsize)}.get(len(one.arguments), (8,) * len(one.arguments))
    return ctypes.string_at(one._addresses[i], sizes[i])


class Counted:
    """A layout that knows how often it was made."""

    def __init__(self, lay_out):
        self.lay_out, self.made = lay_out, 0

    def __call__(self, *key):
        self.made += 1
        return self.lay_out(*key)


@pytest.mark.parametrize("lay_out", [product, packing])
def test_moved_launches_are_those_that_are_laid_out_there(lay_out):
    counted = Counted(lay_out)
    moved = MovedLayout(counted)
    for place in (HERE, THERE, THERE[::-1], (THERE[0], THERE[0]), HERE):
        assert contents(moved(*place, 9)) == contents(lay_out(*place, 9))
    assert counted.made == 2


def test_the_driver_gets_what_was_moved(calls):
    one, other = (MovedLayout(product)(*place, 9)[0] for place in (HERE, THERE))
    for made in (one, other, one.with_last(word(3)), other.with_last(word(3))):
        made(5)
    assert calls == [
        [9, 7, HERE[0] + 96, HERE[1]], [9, 7, THERE[0] + 96, THERE[1]],
        [9, 7, HERE[0] + 96, 3], [9, 7, THERE[0] + 96, 3],
    ]  # fmt: skip


def test_streams_and_alignments_have_layouts_of_their_own():
    def lay_out(x, out, stream):
        kernel = SimpleNamespace(kernel=SimpleNamespace(ptr=x % 16))
        return [Launch(kernel, 4, 128, 0, [word(x), word(stream)])]

    counted = Counted(lay_out)
    moved = MovedLayout(counted)
    for x in (HERE[0], HERE[0] + 2, HERE[0] + 16, HERE[0] + 18):
        for stream in (8, 9):
            assert contents(moved(x, 0, stream)) == contents(lay_out(x, 0, stream))
    assert counted.made == 8


def test_an_array_that_is_left_out_has_no_address():
    def lay_out(x, bias, stream):
        return product(x, bias, stream) if bias else packing(x, x, stream)

    moved = MovedLayout(lay_out)
    for bias in (0, HERE[1], 0):
        for x in (HERE[0], THERE[0]):
            assert contents(moved(x, bias, 9)) == contents(lay_out(x, bias, 9))


@pytest.mark.parametrize(
    "launches",
    [
        lambda x: [Launch(KERNEL, 4, 128, 0, [word(x >> 7)])],
        lambda x: [Launch(KERNEL, 4, 128, 0, [word(x), word(-x % (1 << 64))])],
        lambda x: [Launch(KERNEL, 4, 128, 0, [word(x + (x >> 40))])],
        lambda x: [Launch(KERNEL, 4 + x // SHIFT % 2, 128, 0, [word(x)])],
        lambda x: [Launch(KERNEL, 4, 128, 0, [word(x)], early=bool(x // SHIFT % 2))],
        lambda x: [Launch(KERNEL, 4, 128, 0, [word(x)] * (1 + x // SHIFT % 2))],
        lambda x: [Launch(KERNEL, 4, 128, 0, [word(x)])] * (1 + x // SHIFT % 2),
    ],
)
def test_other_layouts_are_made_each_time(launches):
    counted = Counted(lambda x, stream: launches(x))
    moved = MovedLayout(counted)
    for x in (*HERE, *THERE):
        assert contents(moved(x, 9)) == contents(launches(x))
    assert counted.made == 2 + 4
