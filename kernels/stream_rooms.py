"""Workspaces that blocks of a launch share, such as for partial sums: one for every stream."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from sparse24._errors import UnsupportedError


class StreamRooms:
    """Workspaces ("rooms") of one kind.  Launches that may run concurrently must not share one.

    A room is kept for good, because a captured graph may hold its address.  A graph uses
    the room of the stream on which it was captured.

    Parameters
    ----------
    allocate : callable
        Makes a room on the current device, ready for every stream: the argument of a
        kernel, an array of size 1, and the arrays behind it.
    """

    def __init__(self, allocate: Callable[[], tuple]):
        self._allocate = allocate
        self._rooms: dict[tuple[int, int], tuple] = {}  # (device, stream) -> a room
        self._spare: dict[int, tuple] = {}  # device -> a room for the next new stream
        self._lock = threading.Lock()

    def reserve(self) -> None:
        """Have room ready for the next new stream, so that a capture need not allocate.

        Waits for the current stream the first time.
        """
        import cupy

        device = cupy.cuda.runtime.getDevice()
        with self._lock:
            if device not in self._spare and not cupy.cuda.get_current_stream().is_capturing():
                self._spare[device] = self._allocate()

    def of_stream(self, address: int) -> np.ndarray:
        """The room of the current stream, whose address is given: an argument of size 1.

        Raises
        ------
        UnsupportedError
            If a capture on a stream without room finds none to spare.
        """
        import cupy

        device = cupy.cuda.runtime.getDevice()
        found = self._rooms.get((device, address))
        if found is None:
            capturing = cupy.cuda.get_current_stream().is_capturing()
            with self._lock:
                found = self._rooms[device, address] = self._assign(device, capturing=capturing)
        return found[0]

    def _assign(self, device: int, *, capturing: bool) -> tuple:
        room = self._spare.pop(device, None)
        if capturing and room is None:
            raise UnsupportedError(
                "this stream has no room for partial sums yet and cannot allocate it while a "
                "graph is captured; run the product once on the stream before the capture"
            )
        if not capturing:
            self._spare[device] = self._allocate()
        return room or self._allocate()
