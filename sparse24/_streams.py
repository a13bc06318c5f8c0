"""CUDA streams on which products run: none of CuPy's ends while its work may still run.

Workspaces of a stream, and what it has waited for, are known by its address.  CuPy destroys a
stream together with its object, also while its work still runs, and the driver gives the address
to the next stream, whose products would use the same workspace at the same time.  So objects are
held here until their work has ended, and nobody else has them.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
import threading
from collections.abc import Iterator
from typing import Any

from sparse24 import _arrays

RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED (cuda.h)
# In `held`, in `_let_go`, and of the question itself.  If others are not seen, a stream is only let
# go too early, when it is idle, and held again by its next launch.
OWN_REFERENCES = 3

held: dict[int, Any] = {}  # address -> CuPy's object; None for a stream that others made
_lock = threading.Lock()


def hold(address: int) -> None:
    """Hold CuPy's current stream, if it is the one of this address.

    For callers that found `held` without the address, where they look at every launch.
    """
    cuda = _arrays.cupy_module().cuda
    stream = cuda.get_current_stream()
    is_cupys = type(stream) is cuda.Stream and stream.ptr == address
    with _lock:
        _let_go()
        held.setdefault(address, stream if is_cupys else None)


def hold_current() -> None:
    """Hold CuPy's current stream."""
    address = _arrays.cupy_module().cuda.get_current_stream().ptr
    if address not in held:
        hold(address)


def _let_go() -> None:
    """Forget streams whose work has ended and that nobody else has; they are destroyed."""
    for address in list(held):
        stream = held[address]
        if stream is not None and sys.getrefcount(stream) <= OWN_REFERENCES:
            with relaxed():
                done = stream.done
            if done:
                del held[address]


@contextlib.contextmanager
def relaxed() -> Iterator[None]:
    """A context in which this thread may ask whether work has ended, also during a capture."""
    exchange, mode = _exchange_mode(), ctypes.c_int(RELAXED)
    exchange(ctypes.byref(mode))
    try:
        yield
    finally:
        exchange(ctypes.byref(mode))


@functools.cache
def _exchange_mode() -> Any:
    return ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode
