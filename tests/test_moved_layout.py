"""Launches that are moved to other addresses: the same arguments as laid out for those."""

from __future__ import annotations

import ctypes
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from sparse24 import _moved_layout, _streams
from sparse24._moved_layout import SHIFT, Last, MovedLayout
from sparse24.kernels import launch, tensor_map
from sparse24.kernels.launch import Launch

HERE, THERE = (0x7F00_0000_0000, 0x7F10_0020_0000), (0x7E00_0080_0200, 0x7F00_0000_0000)
VIEW = np.dtype([("address", "u8"), ("pitch", "i8"), ("rows", "i4")])
KERNEL = SimpleNamespace(kernel=SimpleNamespace(ptr=77))
SIZES = {4: (8, 256, 8, VIEW.itemsize)}  # of the arguments of `product`


@pytest.fixture(autouse=True)
def calls(monkeypatch):
    """What the driver is given: function, grid and the arguments, read from their addresses."""
    seen = []

    def driver(configuration, function, addresses, extra):
        sizes = SIZES.get(len(addresses), (8,) * len(addresses))
        words = [ctypes.string_at(at, size) for at, size in zip(addresses, sizes, strict=True)]
        grid, early = configuration.grid[0], configuration.number
        seen.append((function, grid, early, configuration.stream, words))
        return 0

    monkeypatch.setattr(launch, "_driver_launch", lambda: driver)
    monkeypatch.setattr(_streams, "hold", lambda stream: None)
    monkeypatch.setattr(_moved_layout, "_known_places", {})
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


def given(calls, enqueue) -> list:
    """What the driver is given meanwhile."""
    calls.clear()
    enqueue()
    return list(calls)


def laid_out(calls, lay_out, *key: int) -> list:
    """What it is given by launches that are laid out for these addresses."""
    return given(calls, lambda: [one(key[-1]) for one in lay_out(*key)])


def moved(calls, layout: MovedLayout, *key: int, last=None) -> list:
    return given(calls, lambda: layout.enqueue(key[:-1], key[-1], last))


class Counted:
    """A layout that knows how often it was made."""

    def __init__(self, lay_out):
        self.lay_out, self.made = lay_out, 0

    def __call__(self, *key):
        self.made += 1
        return self.lay_out(*key)


@pytest.mark.parametrize("lay_out", [product, packing])
def test_moved_launches_are_those_that_are_laid_out_there(calls, lay_out):
    counted = Counted(lay_out)
    layout = MovedLayout(counted)
    for place in (HERE, THERE, THERE[::-1], (THERE[0], THERE[0]), HERE):
        assert moved(calls, layout, *place, 9) == laid_out(calls, lay_out, *place, 9)
    assert counted.made == 2


def test_a_launch_takes_another_last_argument(calls):
    layout, other = MovedLayout(product), np.array([(3, 4, 5)], VIEW)
    for place in (HERE, THERE):
        (launch,) = product(*place, 9)
        want = given(calls, lambda: launch.with_last(other)(9))  # noqa: B023
        assert moved(calls, layout, *place, 9, last=Last.of(other)) == want
        assert moved(calls, layout, *place, 9) == laid_out(calls, product, *place, 9)


def test_streams_and_alignments_have_layouts_of_their_own(calls):
    def lay_out(x, out, stream):
        kernel = SimpleNamespace(kernel=SimpleNamespace(ptr=x % 16))
        return [Launch(kernel, 4, 128, 0, [word(x), word(stream)])]

    counted = Counted(lay_out)
    layout = MovedLayout(counted)
    for x in (HERE[0], HERE[0] + 2, HERE[0] + 16, HERE[0] + 18):
        for stream in (8, 9):
            assert moved(calls, layout, x, 0, stream) == laid_out(calls, lay_out, x, 0, stream)
    assert counted.made == 6  # twice for each kernel, once for those like them


def test_a_number_that_looks_like_an_address_stays_one(calls):
    def lay_out(x, number, stream):
        return [Launch(KERNEL, 4, 128, 0, [word(x), word(number), word(stream)])]

    for number, layouts in ((5, 2), (7, 1), (_moved_layout.FIRST + 3, 2), (9, 1), (9, 1)):
        counted = Counted(lambda x, stream, number=number: lay_out(x, number, stream))
        layout = MovedLayout(counted)
        for x in (HERE[0], THERE[0]):
            assert moved(calls, layout, x, 9) == laid_out(calls, lay_out, x, number, 9)
        assert counted.made == layouts


def test_an_array_that_is_left_out_has_no_address(calls):
    def lay_out(x, bias, stream):
        return product(x, bias, stream) if bias else packing(x, x, stream)

    layout = MovedLayout(lay_out)
    for bias in (0, HERE[1], 0):
        for x in (HERE[0], THERE[0]):
            assert moved(calls, layout, x, bias, 9) == laid_out(calls, lay_out, x, bias, 9)


def test_numbers_are_written_as_they_are(calls):
    def lay_out(x, low, high, stream):
        return [Launch(KERNEL, 4, 128, 0, [word(x), word(low), word(high)])]

    counted = Counted(lay_out)
    layout = MovedLayout(counted, numbers=2)
    for numbers in ((0, 0), (7, (1 << 64) - 1), (HERE[0], 3), (0, 5)):
        for x in (HERE[0], THERE[0]):
            key = (x, *numbers, 9)
            assert moved(calls, layout, *key) == laid_out(calls, lay_out, *key)
    assert counted.made == 2


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
        lambda x: [lambda stream: Launch(KERNEL, 4, 128, 0, [word(x >> 7)])(stream)],
    ],
)
def test_other_layouts_are_made_for_each_set_of_addresses(calls, launches):
    counted = Counted(lambda x, stream: launches(x))
    layout = MovedLayout(counted)
    for x in (*HERE, *THERE, *HERE):
        want = given(calls, lambda: [one(9) for one in launches(x)])  # noqa: B023
        assert moved(calls, layout, x, 9) == want
    assert counted.made <= 2 + len({*HERE, *THERE})


def test_those_of_the_latest_addresses_are_remembered(calls, monkeypatch):
    monkeypatch.setattr(_moved_layout, "MOST_ADDRESSES", 2)
    counted = Counted(lambda x, stream: [Launch(KERNEL, 4, 128, 0, [word(x >> 7)])])
    layout = MovedLayout(counted)
    for x in (HERE[0], THERE[0], HERE[0], HERE[1], HERE[0]):
        moved(calls, layout, x, 9)
    assert counted.made == 2 + 4


def test_threads_write_one_after_the_other(calls):
    """Each launch reads the addresses of its own call, though all write to the same arguments."""
    layout, mixed = MovedLayout(product), []

    def enqueue(i: int) -> None:
        for j in range(200):
            place = HERE[0] + 4096 * (200 * i + j)
            layout.enqueue((place, place + (1 << 40)), 9)

    threads = [threading.Thread(target=enqueue, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for *_, (_, _, pointer, view) in calls:
        x, out = (int.from_bytes(argument[:8], "little") for argument in (pointer, view))
        if x - 96 + (1 << 40) != out:
            mixed.append((x, out))
    assert len(calls) == 800
    assert not mixed


@pytest.mark.parametrize("moves", [True, False])
def test_launches_in_turn_stay_together(calls, moves, monkeypatch):
    """One may read what the one before it left in a workspace of the stream."""
    kernels = [SimpleNamespace(kernel=SimpleNamespace(ptr=number)) for number in (1, 2)]
    shift = 0 if moves else 7

    def pair(x: int, stream: int) -> list[Launch]:
        return [Launch(kernel, 4, 128, 0, [word(x >> shift)]) for kernel in kernels]

    def slowly(launch: Launch, stream: int) -> None:
        time.sleep(1e-4)
        enqueue(launch, stream)

    enqueue = Launch.__call__
    monkeypatch.setattr(Launch, "__call__", slowly)
    layouts = [MovedLayout(pair) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(one.enqueue, (HERE[0],), 9) for one in layouts * 20]:
            done.result()
    assert [function for function, *_ in calls] == [1, 2] * 60


def test_one_thread_lays_out_at_a_time(calls):
    """The first layout on a stream makes a workspace that the others then share."""
    inside, most = [], []

    def lay_out(x: int, out: int, stream: int) -> list[Launch]:
        inside.append(x)
        most.append(len(inside))
        time.sleep(0.01)
        inside.pop()
        return product(x, out, stream)

    layouts = [MovedLayout(lay_out) for _ in range(4)]
    threads = [threading.Thread(target=one.enqueue, args=(HERE, 9)) for one in layouts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 5  # twice for the first, then once
    assert len(calls) == 4
