"""Room in which blocks of one launch exchange partial sums (``cuda/include/partial_sums.cuh``).

Two launches that may run at the same time must not share it, so there is one for every
stream.  It is kept for good, because a captured graph may hold its address: 17 MB on an
H200.  A graph uses the room of the stream on which it was captured.
"""

from __future__ import annotations

import threading

import numpy as np

from sparse24._errors import UnsupportedError
from sparse24.kernels import loader

_VIEW = np.dtype([("sums", "u8"), ("flags", "u8")])
NONE = loader.by_value(np.zeros(1, _VIEW))  # the argument of a kernel that shares nothing
MOST_SUMS = 128 * 256  # of a tile that blocks share
MOST_CONSUMERS = 3

_rooms: dict[tuple[int, int], tuple] = {}  # (device, stream) -> view, and the arrays behind it
_spare: dict[int, tuple] = {}  # device -> a room for the next new stream
_lock = threading.Lock()


def _allocate() -> tuple:
    import cupy

    sms = cupy.cuda.Device().attributes["MultiProcessorCount"]
    sums = cupy.empty(sms * MOST_SUMS, np.float32)
    flags = cupy.zeros(sms * MOST_CONSUMERS, np.uint32)
    cupy.cuda.get_current_stream().synchronize()  # the flags are zero for every stream
    return loader.by_value(np.array([(sums.data.ptr, flags.data.ptr)], _VIEW)), sums, flags


def reserve() -> None:
    """Have room ready for the next new stream, so that a capture need not allocate.

    Waits for the current stream the first time.
    """
    import cupy

    device = cupy.cuda.runtime.getDevice()
    with _lock:
        if device not in _spare and not cupy.cuda.get_current_stream().is_capturing():
            _spare[device] = _allocate()


def of_stream(address: int) -> np.ndarray:
    """The room of the current stream, whose address is given: an argument of size 1.

    Raises
    ------
    UnsupportedError
        If a capture on a stream without room finds none to spare.
    """
    import cupy

    device = cupy.cuda.runtime.getDevice()
    found = _rooms.get((device, address))
    if found is None:
        capturing = cupy.cuda.get_current_stream().is_capturing()
        with _lock:
            found = _rooms[device, address] = _assign(device, capturing=capturing)
    return found[0]


def _assign(device: int, *, capturing: bool) -> tuple:
    room = _spare.pop(device, None)
    if capturing and room is None:
        raise UnsupportedError(
            "this stream has no room for partial sums yet and cannot allocate it while a "
            "graph is captured; run the product once on the stream before the capture"
        )
    if not capturing:
        _spare[device] = _allocate()
    return room or _allocate()
