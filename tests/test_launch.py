"""Launches through the driver: the arguments arrive as they were laid out."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

from sparse24._errors import DeviceError
from sparse24.kernels import block_sums, launch

attributes = []  # of the launches, in turn


@pytest.fixture
def calls(monkeypatch):
    """Record what the driver is given, each argument read from its address."""
    seen = []
    attributes.clear()

    def driver(c, function, addresses, extra):
        values = [ctypes.c_uint64.from_address(address).value for address in addresses]
        attributes.append([(c.attributes[i].id, c.attributes[i].value) for i in range(c.number)])
        sizes = (*c.grid, *c.block, c.shared_memory)
        seen.append((function, sizes, c.stream, values, extra))
        return 0 if function == 77 else 400

    monkeypatch.setattr(launch, "_driver_launch", lambda: driver)
    return seen


def kernel(address):
    return SimpleNamespace(kernel=SimpleNamespace(ptr=address))


def block(value):
    return np.array([value], np.uint64)


def test_arguments_sizes_and_stream_reach_the_driver(calls):
    launch.Launch(kernel(77), 132, 384, 2048, [block(5), block(6)])(9)
    assert calls == [(77, (132, 1, 1, 384, 1, 1, 2048), 9, [5, 6], None)]


def test_early_launches_say_so_and_streams_are_kept_apart(calls):
    early = launch.Launch(kernel(77), 1, 32, 0, [block(5)], early=True)
    for stream in (9, 8, 9):
        early(stream)
    early.with_last(block(6))(7)
    launch.Launch(kernel(77), 1, 32, 0, [block(5)])(9)
    assert attributes == [[(launch.PROGRAMMATIC_STREAM_SERIALIZATION, 1)]] * 4 + [[]]
    assert [call[2] for call in calls] == [9, 8, 9, 7, 9]


def test_a_launch_is_followed_by_the_one_that_adds_up(calls):
    add = launch.Launch(kernel(77), 3, 32, 0, [block(6)])
    product = launch.Launch(kernel(77), 3, 64, 512, [block(5)], early=True)
    block_sums.InTurn((product, add))(9)
    assert [(sizes, values) for _, sizes, _, values, _ in calls] == [
        ((3, 1, 1, 64, 1, 1, 512), [5]), ((3, 1, 1, 32, 1, 1, 0), [6]),
    ]  # fmt: skip
    assert attributes == [[(launch.PROGRAMMATIC_STREAM_SERIALIZATION, 1)], []]


@pytest.mark.parametrize("multiprocessors", [16, 132, 144])
@pytest.mark.parametrize("priorities", [1, 2, 6])
def test_launches_that_have_started_in_part_leave_room(monkeypatch, multiprocessors, priorities):
    monkeypatch.setattr(block_sums, "multiprocessors", lambda device: multiprocessors)
    monkeypatch.setattr(block_sums, "_priorities", lambda: priorities)
    most = block_sums.most_waiting(0)
    waiting = most - 1  # of a launch that lacks one block
    assert waiting * priorities < multiprocessors <= most * priorities
    ways = [block_sums.sharing(blocks, most) for blocks in range(1, multiprocessors + 1)]
    assert ways == sorted(ways)
    assert ways.count(block_sums.Sharing.APART) == multiprocessors - most


def test_the_last_argument_can_be_exchanged(calls):
    first = launch.Launch(kernel(77), 1, 32, 0, [block(5), block(6)])
    first.with_last(block(7))(0)
    first(0)
    assert [values for *_, values, _ in calls] == [[5, 7], [5, 6]]


def test_a_refused_launch_is_an_error(calls):
    with pytest.raises(DeviceError, match="cuLaunchKernelEx returned CUresult 400"):
        launch.Launch(kernel(1), 1, 32, 0, [block(5)])(0)
