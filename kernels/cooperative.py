"""Launches whose blocks wait for one another, however many streams multiply at the same time."""

from __future__ import annotations

import ctypes
import functools

from sparse24._errors import DeviceError
from sparse24.kernels.launch import _EARLY, Launch, _Attribute, _Configuration

COOPERATIVE = 2  # CUlaunchAttributeID (cuda.h)
_COOPERATIVE = _Attribute(COOPERATIVE, 0, 1)


class CooperativeLaunch(Launch):
    """A `Launch` of which either all blocks run at the same time, or none yet.

    It costs some tenths of a microsecond, and is refused if the device has not room for all
    blocks.  Source: CUDA driver API, CU_LAUNCH_ATTRIBUTE_COOPERATIVE.
    """

    __slots__ = ()

    def _configure(self, stream: int) -> _Configuration:
        configuration = super()._configure(stream)
        attributes = (_EARLY, _COOPERATIVE) if self._early else (_COOPERATIVE,)
        configuration.attributes = (_Attribute * len(attributes))(*attributes)
        configuration.number = len(attributes)
        return configuration


def may_wait_for_ever(blocks: int, multiprocessors: int) -> bool:
    """Whether ordinary launches may never end in which so many blocks wait for one another.

    Blocks start in order, and a launch of higher priority takes the multiprocessors that become
    free.  So of each priority one launch may have started in part, with all but one of the blocks
    that wait for one another.  If such launches fill the device, none of them goes on.
    """
    return (blocks - 1) * _priorities() >= multiprocessors


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
