"""How blocks pass sums to one another through global memory (``cuda/include/block_sums.cuh``).

The workspace takes 17 MB on an H200.
"""

from __future__ import annotations

import ctypes
import enum
import functools
from typing import NamedTuple

import numpy as np

from sparse24._errors import DeviceError
from sparse24.kernels import loader
from sparse24.kernels.chip import multiprocessors
from sparse24.kernels.launch import Launch
from sparse24.kernels.stream_rooms import StreamRooms

_VIEW = np.dtype([("slots", "u8")])
NONE = loader.by_value(np.zeros(1, _VIEW))  # the argument of a kernel that shares nothing
MOST_SUMS = 64 * 256  # of a block in one slot: of 512 threads with 32 each, or 256 with 64
MISSING = 0xFFFFFFFF  # kMissing of the header


def _allocate() -> tuple:
    import cupy

    slots = cupy.full((multiprocessors(), 2, MOST_SUMS), MISSING, np.uint32)
    cupy.cuda.get_current_stream().synchronize()  # on every stream, all sums are missing now
    return loader.by_value(np.array([(slots.data.ptr,)], _VIEW)), slots


rooms = StreamRooms(_allocate)


class Sharing(enum.IntEnum):
    """How blocks add up the sums of rows that they share; as in the header."""

    FEW, MANY, APART = range(3)


FEW = 4  # blocks, kBlocks of the header


def sharing(blocks: int, most_waiting: int) -> Sharing:
    """How so many blocks add up, of which at most `most_waiting` may wait for one another."""
    if blocks > most_waiting:
        return Sharing.APART
    return Sharing.FEW if blocks <= FEW else Sharing.MANY


def most_waiting(device: int | None = None) -> int:
    """How many blocks of a launch may wait for one another on a device, by default the current one.

    Blocks start in order, and a launch of higher priority takes the multiprocessors that become
    free.  So of each priority one launch may have started in part, with all but one of the blocks
    that wait for one another.  If such launches filled the device, none of them would go on.
    Cooperative launches do not help: on an H100, three of different priorities starved one another.
    """
    return most_of(multiprocessors(device), _priorities())


def most_of(multiprocessors: int, priorities: int) -> int:
    """`most_waiting` on such a device."""
    return (multiprocessors - 1) // priorities + 1


@functools.cache
def _priorities() -> int:
    """How many priorities a stream can have."""
    least, greatest = ctypes.c_int(), ctypes.c_int()
    ask = ctypes.CDLL("libcuda.so.1").cuCtxGetStreamPriorityRange
    status = ask(ctypes.byref(least), ctypes.byref(greatest))
    if status:
        raise DeviceError(
            f"cuCtxGetStreamPriorityRange returned CUresult {status}; see the driver's manual"
        )
    return least.value - greatest.value + 1


class InTurn(NamedTuple):
    """Two launches: the blocks of one give their sums, the other adds them up."""

    launches: tuple[Launch, Launch]

    def __call__(self, stream: int) -> None:
        """Enqueue both on the stream of this address, without waiting."""
        for launch in self.launches:
            launch(stream)
