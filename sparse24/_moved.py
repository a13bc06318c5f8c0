"""Launches at other addresses than those for which they were laid out.

Laying out the arguments of a product takes 200 microseconds, most of them for tensor maps, and a
training step with tensors of changing sizes meets new addresses at every other launch.  What a
layout does with each address is found once, by laying out again with that address moved; after
that the arguments are copied, and the addresses in them replaced.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from sparse24._errors import DeviceError
from sparse24.kernels import tensor_map
from sparse24.kernels.launch import Launch

LayOut = Callable[..., Sequence[Launch]]

MOVE = 1 << 21  # bytes; a multiple of every alignment that a layout asks for
_LINE, _MAP_BYTES = tensor_map.ALIGNMENT, tensor_map.BYTES
_MAP_WORDS = _MAP_BYTES // 8


class _Block(NamedTuple):
    """The arguments of a launch, one after the other."""

    words: np.ndarray  # of uint64, where a tensor map may lie
    starts: tuple[int, ...]  # of the arguments, in bytes
    sizes: tuple[int, ...]

    def copy(self) -> _Block:
        words = _room(len(self.words))
        words[:] = self.words
        return self._replace(words=words)

    def arguments(self) -> list[np.ndarray]:
        held = self.words.view(np.uint8)
        spans = zip(self.starts, self.sizes, strict=True)
        return [held[start : start + size].view(f"V{size}") for start, size in spans]


class _Moved(Launch):
    """Another launch with other arguments."""

    __slots__ = ()

    def __init__(self, other: Launch, arguments: Sequence[np.ndarray]):
        (grid, _, _), (block, _, _), shared_memory = other._sizes
        super().__init__(other._kernel, grid, block, shared_memory, arguments, early=other._early)

    def is_like(self, other: Launch) -> bool:
        return (self._function, self._sizes, self._early) == (
            other._function, other._sizes, other._early,
        )  # fmt: skip


class _Movable:
    """A launch, and where in its arguments each address is.

    Parameters
    ----------
    launch : Launch
        As laid out for some addresses.
    moved : list of Launch
        As laid out with each of the addresses `MOVE` further.
    """

    def __init__(self, launch: Launch, moved: Sequence[Launch], addresses: Sequence[int]):
        self._launch, self._block = launch, _block_of(launch)
        self._slots: list[int] = []  # which address is in each of the words
        self._words: list[int] = []
        self._maps: list[tuple[int, int]] = []  # the first word of a tensor map, which address
        first_words = self._first_words()
        for slot, other in enumerate(moved):
            differs = np.flatnonzero(_block_of(other).words != self._block.words)
            of_maps = first_words[differs]
            self._maps += [(first, slot) for first in set(of_maps[of_maps >= 0].tolist())]
            plain = differs[of_maps < 0].tolist()
            self._words += plain
            self._slots += [slot] * len(plain)
        own = np.array([addresses[slot] for slot in self._slots], np.uint64)
        self._beyond = self._block.words[self._words] - own  # an address within an array

    def _first_words(self) -> np.ndarray:
        """For each word the first one of the tensor map that it belongs to, or -1."""
        found = np.full(len(self._block.words), -1)
        arguments = zip(self._launch.arguments, self._block.starts, self._block.sizes, strict=True)
        for argument, start, size in arguments:
            if argument.dtype.kind == "V" and not argument.dtype.names and not size % _MAP_BYTES:
                for first in range(start // 8, (start + size) // 8, _MAP_WORDS):
                    found[first : first + _MAP_WORDS] = first
        return found

    def at(self, addresses: Sequence[int]) -> _Moved:
        """The launch for these addresses."""
        block = self._block.copy()
        own = np.array([addresses[slot] for slot in self._slots], np.uint64)
        block.words[self._words] = own + self._beyond
        start = block.words.ctypes.data
        for word, slot in self._maps:
            _replace_address(start + 8 * word, addresses[slot])
        return _Moved(self._launch, block.arguments())

    def is_at(self, addresses: Sequence[int], launch: Launch) -> bool:
        """Whether `at` gives what was laid out for these addresses."""
        found = self.at(addresses)
        return found.is_like(launch) and _same(_block_of(found), _block_of(launch))


def movable(
    lay_out: LayOut, addresses: Sequence[int], stream: int
) -> Callable[[Sequence[int]], list[Launch]] | None:
    """What lays out for other addresses on the same stream; None if a layout is not that simple.

    Parameters
    ----------
    lay_out : callable
        ``lay_out(*addresses, stream)`` gives launches, and nothing else changes by it.
    addresses : sequence of int
        Some of them, of arrays that need not be there; 0 for one that is left out.
    stream : int
    """

    def moved(*steps: int) -> list[int]:
        return [a + MOVE * step if a else 0 for a, step in zip(addresses, steps, strict=True)]

    count = len(addresses)
    first = lay_out(*addresses, stream)
    alone = [
        lay_out(*moved(*(int(i == slot) for i in range(count))), stream) for slot in range(count)
    ]
    elsewhere = moved(*range(3, 3 + 2 * count, 2))
    there = lay_out(*elsewhere, stream)
    if any(_sizes(launches) != _sizes(first) for launches in (*alone, there)):
        return None
    found = [
        _Movable(launch, others, addresses) for launch, *others in zip(first, *alone, strict=True)
    ]
    if not all(one.is_at(elsewhere, launch) for one, launch in zip(found, there, strict=True)):
        return None
    return lambda places: [one.at(places) for one in found]


def _sizes(launches: Sequence[Launch]) -> list[list[int]]:
    """Bytes of the arguments."""
    return [[argument.nbytes for argument in launch.arguments] for launch in launches]


def _block_of(launch: Launch) -> _Block:
    sizes = tuple(argument.nbytes for argument in launch.arguments)
    starts, end = [], 0
    for size in sizes:
        starts.append(end)
        end += -(-size // _LINE) * _LINE
    words = _room(end // 8)
    held = words.view(np.uint8)
    for argument, start, size in zip(launch.arguments, starts, sizes, strict=True):
        held[start : start + size] = np.frombuffer(argument.tobytes(), np.uint8)
    return _Block(words, tuple(starts), sizes)


def _room(words: int) -> np.ndarray:
    """Zeros that begin where a tensor map may."""
    room = np.zeros(8 * words + _LINE, np.uint8)
    skip = -room.ctypes.data % _LINE
    return room[skip : skip + 8 * words].view(np.uint64)


def _same(one: _Block, other: _Block) -> bool:
    return one[1:] == other[1:] and bool((one.words == other.words).all())


@functools.cache
def _replacer():
    replace = ctypes.CDLL("libcuda.so.1").cuTensorMapReplaceAddress
    replace.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    replace.restype = ctypes.c_int
    return replace


def _replace_address(tensor_map_at: int, address: int) -> None:
    status = _replacer()(tensor_map_at, address)
    if status:
        raise DeviceError(f"cuTensorMapReplaceAddress returned CUresult {status}")
