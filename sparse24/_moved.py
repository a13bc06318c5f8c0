"""Launches for other addresses than those for which they were laid out.

Laying out the arguments of a product takes 150 to 250 microseconds of Python, most of them for
tensor maps, and a model meets new addresses whenever the allocator hands out memory in another
order.  So a layout is made once, for stand-ins of the addresses; they are found among the words of
the arguments, and a launch elsewhere is a copy with these words replaced.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from sparse24.kernels.launch import Launch

LayOut = Callable[..., Sequence[Launch]]

ALIGNED_TO = 16  # bytes
MOST_KINDS = 64
# A stand-in for the address of array i: ``FIRST + i * APART``, and as much beyond a boundary as the
# address; in a second layout `SHIFT` further.  An array is smaller than `APART`.
FIRST, APART, SHIFT = 1 << 45, 1 << 36, 1 << 44
_WORD = 8


class MovedLayout:
    """A layout that is made once for each stream and alignment of addresses, and moved.

    Parameters
    ----------
    lay_out : callable
        ``lay_out(*addresses, stream)`` gives launches, one after the other.  Of an address it looks
        at the remainder by `ALIGNED_TO` at most; an address of 0 is of an array that is left out.
        What is no `Launch` is laid out at each address.
    """

    def __init__(self, lay_out: LayOut):
        self._lay_out = lay_out
        self._known: dict[tuple[int, ...], list[_Laid] | None] = {}

    def __call__(self, *key: int) -> Sequence[Launch]:
        """The same as `lay_out`."""
        *addresses, stream = key
        kind = (stream, *(a and a % ALIGNED_TO + 1 for a in addresses))
        if kind not in self._known:
            if len(self._known) >= MOST_KINDS:
                self._known.clear()
            self._known[kind] = self._for_stand_ins(addresses, stream)
        laid = self._known[kind]
        if laid is None:
            return self._lay_out(*key)
        own = np.array(addresses, np.uint64)
        return [one.at(own) for one in laid]

    def _for_stand_ins(self, addresses: Sequence[int], stream: int) -> list[_Laid] | None:
        """The launches; None if their arguments do not hold addresses as words."""
        first = [a and FIRST + i * APART + a % ALIGNED_TO for i, a in enumerate(addresses)]
        launches = self._lay_out(*first, stream)
        if not all(isinstance(launch, Launch) for launch in launches):  # a call of cuBLAS
            return None
        shifted = self._lay_out(*(a and a + SHIFT for a in first), stream)
        if len(launches) != len(shifted):
            return None
        found = [_Laid.of(*pair, first) for pair in zip(launches, shifted, strict=True)]
        laid = [one for one in found if one is not None]
        return laid if len(laid) == len(found) else None


class _Laid(NamedTuple):
    """A launch whose arguments are for stand-ins."""

    launch: Launch
    words: np.ndarray  # all arguments, one after the other
    starts: list[int]  # of the arguments, in bytes
    places: np.ndarray  # of the addresses among the words
    arrays: np.ndarray  # whose addresses they are
    beyond: np.ndarray  # how far they lie within the arrays

    @classmethod
    def of(cls, launch: Launch, shifted: Launch, stand_ins: Sequence[int]) -> _Laid | None:
        """By the words in which the launch for shifted stand-ins differs; None if by others."""
        words, starts = _joined(launch.arguments)
        others, other_starts = _joined(shifted.arguments)
        if starts != other_starts or len(words) != len(others) or not _alike(launch, shifted):
            return None
        places = np.flatnonzero(words != others)
        held = words[places]
        arrays = ((held - np.uint64(FIRST)) // np.uint64(APART)).astype(np.intp)
        if (others[places] - held != SHIFT).any() or (arrays >= len(stand_ins)).any():
            return None
        beyond = held - np.array(stand_ins, np.uint64)[arrays]
        return cls(launch, words, starts, places, arrays, beyond)

    def at(self, addresses: np.ndarray) -> Launch:
        words = self.words.copy()
        words[self.places] = addresses[self.arrays] + self.beyond
        return _Moved(self.launch, words, self.starts)


class _Moved(Launch):
    """Another launch with arguments that lie one after the other."""

    __slots__ = ()

    def __init__(self, other: Launch, words: np.ndarray, starts: Sequence[int]):
        self._kernel, self._function = other._kernel, other._function
        self._sizes, self._early, self._launch = other._sizes, other._early, other._launch
        self._configurations = other._configurations
        self.arguments = (words,) * len(starts)  # which keeps them alive
        begin = words.ctypes.data
        self._addresses = (ctypes.c_void_p * len(starts))(*[begin + start for start in starts])


def _alike(one: Launch, other: Launch) -> bool:
    """Whether two launches have the same kernel and the same grid."""
    return (one._function, one._sizes, one._early) == (other._function, other._sizes, other._early)


def _joined(arguments: Sequence[np.ndarray]) -> tuple[np.ndarray, list[int]]:
    """Copies of arguments as words, and at which bytes they start."""
    held, starts = bytearray(), []
    for argument in arguments:
        starts.append(len(held))
        held += argument.tobytes() + bytes(-argument.nbytes % _WORD)
    return np.frombuffer(bytes(held), np.uint64), starts
