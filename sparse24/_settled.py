"""Whether all that wrote a stored matrix has ended, so that kernels may read it early.

A kernel may start while the one before it in the stream ends (programmatic dependent launch), but
before it reads what that one may have written, it has to wait.  Arrays are immutable.  So once the
making of a matrix has ended, a product can read it at once, and only waits before it reads its
other operand.

The first product of a matrix is enqueued behind all that makes it, on whatever stream that was.
Behind the product comes an event.  When a later one is planned the event is looked at, without
waiting.
"""

from __future__ import annotations

from typing import Any

from sparse24 import _arrays
from sparse24._records import MAKING, Compressed24


def is_settled(record: Compressed24, x: Any) -> bool:
    """Whether the making of a matrix is known to have ended; while a graph is captured, from `x`'s
    stream, what was known before."""
    state = record.derived.get(MAKING)
    if state is None or isinstance(state, bool):
        return state is True
    if _arrays.captures_work_on(x) or not state.done:
        return False
    record.derived[MAKING] = True
    return True


def will_settle(record: Compressed24) -> bool:
    """Whether a later call may find the matrix settled; behind a product on CuPy's current stream.

    Never if its first product is captured: then a graph may make it, anew at every replay.
    """
    if MAKING not in record.derived:
        record.derived[MAKING] = False if _arrays.is_capturing() else _event()
    return record.derived[MAKING] is not False


def _event() -> Any:
    """An event behind all that is enqueued on CuPy's current stream."""
    event = _arrays.cupy_module().cuda.Event(disable_timing=True)
    event.record()
    return event
