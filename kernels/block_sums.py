"""Workspace through which blocks pass sums to one another (``cuda/include/block_sums.cuh``).

It takes 17 MB on an H200.
"""

from __future__ import annotations

import numpy as np

from sparse24.kernels import loader
from sparse24.kernels.chip import multiprocessors
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
