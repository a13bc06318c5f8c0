"""Launches for other addresses than those for which they were laid out.

Laying out the arguments of a product takes 150 to 250 microseconds of Python, most of them for
tensor maps, and a model meets new addresses whenever the allocator hands out memory in another
order.  So a layout is made once, for stand-ins of the addresses; they are found among the words of
the arguments, by a second layout for the first launch of a kernel, and each launch writes its own
in their places, which takes a microsecond.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from sparse24 import _streams
from sparse24._bounded import remember
from sparse24.kernels.launch import Launch

LayOut = Callable[..., Sequence[Any]]

ALIGNED_TO = 16  # bytes
MOST_KINDS = 64
MOST_ADDRESSES = 256  # of what cannot be moved
MOST_KERNELS = 512
# A stand-in for the address of array i: ``FIRST + i * APART``, and as much beyond a boundary as the
# address; in a second layout `SHIFT` further.  An array is smaller than `APART`.
FIRST, APART, SHIFT = 1 << 45, 1 << 36, 1 << 44
_WORD = 8

# Which words were addresses, by kernel and sizes of its arguments.  A second layout has told them
# from numbers that look like stand-ins, of which there were none.
_known_places: dict[Hashable, tuple[int, ...]] = {}

# Held while launches are laid out: kernels whose blocks share a workspace are given that of the
# stream, for which `kernels.stream_rooms` looks before it takes its lock, and two threads must not
# both make the first one.  Also held from the first to the last of several launches: one may leave
# in the workspace what the next one reads (`kernels.block_sums.InTurn`), so another thread's
# launches on the stream must not come between them.
laying_out = threading.RLock()


class Last(NamedTuple):
    """What a launch takes as its last argument, and where that lies."""

    argument: np.ndarray
    address: int

    @classmethod
    def of(cls, argument: np.ndarray) -> Last:
        return cls(argument, argument.ctypes.data)


class MovedLayout:
    """A layout that is made once for each stream and alignment of addresses, and moved.

    Parameters
    ----------
    lay_out : callable
        ``lay_out(*addresses, stream)`` gives launches, one after the other.  Of an address it looks
        at the remainder by `ALIGNED_TO` at most; an address of 0 is of an array that is left out.
        What is no `Launch`, called with a stream, is laid out for each set of addresses.
    numbers : int
        So many of the addresses, the last ones, are numbers: any words of the arguments.
    """

    def __init__(self, lay_out: LayOut, numbers: int = 0):
        self._lay_out, self._numbers = lay_out, numbers
        self._known: dict[Hashable, list[_Laid] | None] = {}
        self._unmoved: dict[tuple[int, ...], Sequence[Any]] = {}  # what cannot be moved

    def enqueue(self, addresses: tuple[int, ...], stream: int, last: Last | None = None) -> None:
        """Launch for these addresses on a stream, without waiting.

        `last` is that of the last launch, which alone has an epilogue.
        """
        if stream not in _streams.held:
            _streams.hold(stream)
        kind: Hashable = stream
        arrays = addresses[: -self._numbers] if self._numbers else addresses
        if _beyond_a_boundary(arrays):
            kind = (stream, *(a and a % ALIGNED_TO + 1 for a in arrays))
        try:
            laid = self._known[kind]
        except KeyError:
            laid = self._remember(kind, addresses, stream)
        if laid is None:
            self._enqueue_unmoved(addresses, stream, last)
            return
        if len(laid) == 1:
            laid[0].enqueue(addresses, stream, last)
            return
        with laying_out:
            for one in laid:
                one.enqueue(addresses, stream, last if one is laid[-1] else None)

    def _remember(
        self, kind: Hashable, addresses: Sequence[int], stream: int
    ) -> list[_Laid] | None:
        with laying_out:
            laid = self._for_stand_ins(addresses, stream)
        return remember(self._known, kind, laid, MOST_KINDS)

    def _for_stand_ins(self, addresses: Sequence[int], stream: int) -> list[_Laid] | None:
        """The launches; None if their arguments do not hold addresses as words."""
        first = [a and FIRST + i * APART + a % ALIGNED_TO for i, a in enumerate(addresses)]
        for i in range(len(first) - self._numbers, len(first)):
            first[i] = FIRST + i * APART
        launches = self._lay_out(*first, stream)
        if not all(isinstance(launch, Launch) for launch in launches):  # a call of cuBLAS
            return None
        alike = [_Laid.like_others(launch, first) for launch in launches]
        if (known := [one for one in alike if one is not None]) and len(known) == len(alike):
            return known
        shifted = self._lay_out(*(a and a + SHIFT for a in first), stream)
        if len(launches) != len(shifted):
            return None
        found = [_Laid.of(*pair, first) for pair in zip(launches, shifted, strict=True)]
        laid = [one for one in found if one is not None]
        return laid if len(laid) == len(found) else None

    def _enqueue_unmoved(self, addresses: tuple[int, ...], stream: int, last: Last | None) -> None:
        """Launch what cannot be moved, which is laid out for these addresses and remembered."""
        key = (*addresses, stream)
        with laying_out:
            launches = self._unmoved.get(key)
            if launches is None:
                launches = remember(self._unmoved, key, self._lay_out(*key), MOST_ADDRESSES)
            for launch in launches:
                given = last if launch is launches[-1] else None
                (launch if given is None else launch.with_last(given.argument))(stream)


def _beyond_a_boundary(addresses: tuple[int, ...]) -> bool:
    """True if an address is not aligned, or that of an array that is left out."""
    together = 0
    for address in addresses:
        together |= address
    return together % ALIGNED_TO > 0 or 0 in addresses


class _Place(NamedTuple):
    """Where an address stands among the words of the arguments."""

    word: int
    array: int  # whose address it is
    beyond: int  # how far it lies within the array


class _Laid(Launch):
    """A launch whose addresses are written into its arguments, which lie one after the other.

    The driver copies the arguments before a launch returns.
    """

    __slots__ = ("_cells", "_given", "_lock", "_own_last", "_places")

    def __init__(
        self, other: Launch, words: np.ndarray, starts: Sequence[int], places: list[_Place]
    ):
        self._kernel, self._function = other._kernel, other._function
        self._sizes, self._early, self._launch = other._sizes, other._early, other._launch
        self._configurations = other._configurations
        self.arguments = (words,) * len(starts)  # which keeps them alive
        self._cells = (ctypes.c_uint64 * len(words)).from_buffer(words)
        begin = words.ctypes.data
        self._addresses = (ctypes.c_void_p * len(starts))(*[begin + start for start in starts])
        self._own_last = begin + starts[-1]
        self._places = places
        self._given: tuple[int, ...] = ()  # the addresses that stand there
        self._lock = threading.Lock()

    @classmethod
    def of(cls, launch: Launch, shifted: Launch, stand_ins: Sequence[int]) -> _Laid | None:
        """By the words in which the launch for shifted stand-ins differs; None if by others."""
        words, starts = _joined(launch.arguments)
        others, other_starts = _joined(shifted.arguments)
        if starts != other_starts or len(words) != len(others) or not _alike(launch, shifted):
            return None
        differ = np.flatnonzero(words != others)
        held = words[differ]
        if (others[differ] - held != SHIFT).any() or not _are_addresses(held, stand_ins).all():
            return None
        if np.array_equal(differ, np.flatnonzero(_are_addresses(words, stand_ins))):
            key = _kind_of(launch, starts, stand_ins)
            remember(_known_places, key, tuple(differ.tolist()), MOST_KERNELS)
        return cls(launch, words, starts, _places(words, differ, stand_ins))

    @classmethod
    def like_others(cls, launch: Launch, stand_ins: Sequence[int]) -> _Laid | None:
        """By the words of an earlier launch of the kernel; None if others look like stand-ins."""
        words, starts = _joined(launch.arguments)
        held = np.flatnonzero(_are_addresses(words, stand_ins))
        if _known_places.get(_kind_of(launch, starts, stand_ins)) != tuple(held.tolist()):
            return None
        return cls(launch, words, starts, _places(words, held, stand_ins))

    def enqueue(self, addresses: tuple[int, ...], stream: int, last: Last | None) -> None:
        cells = self._cells
        with self._lock:  # another thread may launch the same elsewhere
            if addresses != self._given:
                for word, array, beyond in self._places:
                    cells[word] = addresses[array] + beyond
                self._given = addresses
            self._addresses[-1] = self._own_last if last is None else last.address
            self(stream)


def _kind_of(launch: Launch, starts: Sequence[int], stand_ins: Sequence[int]) -> Hashable:
    return launch._function, tuple(starts), len(stand_ins)


def _are_addresses(words: np.ndarray, stand_ins: Sequence[int]) -> np.ndarray:
    """Which words may be stand-ins, or addresses beyond them."""
    return words - np.uint64(FIRST) < np.uint64(len(stand_ins) * APART)


def _places(words: np.ndarray, held: np.ndarray, stand_ins: Sequence[int]) -> list[_Place]:
    """Where addresses stand, for the words that hold them."""
    arrays = ((words[held] - np.uint64(FIRST)) // np.uint64(APART)).astype(np.intp)
    beyond = words[held] - np.array(stand_ins, np.uint64)[arrays]
    facts = zip(held.tolist(), arrays.tolist(), beyond.tolist(), strict=True)
    return [_Place(*fact) for fact in facts]


def _alike(one: Launch, other: Launch) -> bool:
    """Whether two launches have the same kernel and the same grid."""
    return (one._function, one._sizes, one._early) == (other._function, other._sizes, other._early)


def _joined(arguments: Sequence[np.ndarray]) -> tuple[np.ndarray, list[int]]:
    """Copies of arguments as words, and at which bytes they start."""
    held, starts = bytearray(), []
    for argument in arguments:
        starts.append(len(held))
        held += argument.tobytes() + bytes(-argument.nbytes % _WORD)
    return np.frombuffer(held, np.uint64), starts
