"""Workspace through which blocks of a launch exchange partial sums (``include/partial_sums.cuh``).

It takes 26 MB on an H200.
"""

from __future__ import annotations

import numpy as np

from sparse24.kernels import loader
from sparse24.kernels.stream_rooms import StreamRooms

_VIEW = np.dtype([("sums", "u8"), ("flags", "u8")])
NONE = loader.by_value(np.zeros(1, _VIEW))  # the argument of a kernel that shares nothing
MOST_SUMS = 256 * 192  # of a tile that blocks share
MOST_CONSUMERS = 2  # warpgroups that give sums of a tile, each with a flag


def _allocate() -> tuple:
    import cupy

    sms = cupy.cuda.Device().attributes["MultiProcessorCount"]
    sums = cupy.empty(sms * MOST_SUMS, np.float32)
    flags = cupy.zeros(sms * MOST_CONSUMERS, np.uint32)
    cupy.cuda.get_current_stream().synchronize()  # the flags are zero for every stream
    return loader.by_value(np.array([(sums.data.ptr, flags.data.ptr)], _VIEW)), sums, flags


rooms = StreamRooms(_allocate)
