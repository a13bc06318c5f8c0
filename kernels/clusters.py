"""How many clusters of thread blocks the device in use runs at a time."""

from __future__ import annotations

import ctypes
from typing import Any

from sparse24._errors import DeviceError
from sparse24.kernels.launch import _Configuration


def most_clusters(kernel: Any, size: int, block: int, shared_memory: int) -> int:
    """Clusters that run at the same time.

    A cluster lies within one part of the chip (GPC), of whose multiprocessors some may be left
    over: an H200 of 132 may run 30 clusters of four.

    Parameters
    ----------
    kernel : cupy.RawKernel
        Compiled for clusters of `size` blocks.
    block : int
        Threads of a block.
    shared_memory : int
        Dynamic shared memory of a block in bytes.
    """
    configuration = _Configuration((size, 1, 1), (block, 1, 1), shared_memory, None, None, 0)
    found = ctypes.c_int()
    ask = ctypes.CDLL("libcuda.so.1").cuOccupancyMaxActiveClusters
    function = ctypes.c_void_p(kernel.kernel.ptr)
    status = ask(ctypes.byref(found), function, ctypes.byref(configuration))
    if status:
        raise DeviceError(
            f"cuOccupancyMaxActiveClusters returned CUresult {status}; see the driver's manual"
        )
    return found.value
