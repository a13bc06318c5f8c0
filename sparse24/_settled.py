"""Whether all that wrote a stored matrix has ended, so that kernels may read it early.

A kernel may start while the one before it in the stream ends (programmatic dependent launch), but
before it reads what that one may have written, it has to wait.  Arrays are immutable.  So once the
making of a matrix has ended, a product can read it at once, and only waits before it reads its
other operand.

The first product of a matrix is enqueued after all that makes it, on whatever stream that was.
With the product goes an event, which is looked at when a later one is planned; nothing waits for
it.
"""

from __future__ import annotations

from typing import Any

from sparse24 import _arrays, _streams
from sparse24._records import MAKING, Compressed24, Operand24


class Making:
    """Whether all work that makes a matrix has ended, as far as is known.

    Parameters
    ----------
    event : cupy.cuda.Event or None
        Behind it; None if it may be made anew.

    Attributes
    ----------
    may_end : bool
        False if it may be made anew.
    """

    __slots__ = ("_event", "_has_ended", "may_end")

    def __init__(self, event: Any):
        self._event, self._has_ended, self.may_end = event, False, event is not None

    @classmethod
    def before_now(cls) -> Making:
        """The `Making` of a matrix that is made before whatever CuPy's current stream does next.

        While that is captured the matrix may be made by the graph, anew at every replay.
        """
        return MADE_ANEW if _arrays.is_capturing() else cls(_recorded())

    def has_ended(self) -> bool:
        event = self._event  # once: another thread may find that it has passed
        if event is not None:
            with _streams.relaxed():
                if event.done:
                    self._has_ended, self._event = True, None
        return self._has_ended


MADE_ANEW = Making(None)


def note_capture(operand: Operand24) -> None:
    """Have the stored matrices of a new array never settle if a graph that is captured makes it."""
    for record in (operand.rows, operand.columns):
        if record is None or MAKING in record.derived or not _arrays.is_cupy(record.values):
            continue
        if _arrays.is_capturing():
            record.derived[MAKING] = MADE_ANEW


def is_settled(record: Compressed24) -> bool:
    """Whether the making of a matrix is known to have ended."""
    making = record.derived.get(MAKING)
    return making is not None and making.has_ended()


def will_settle(record: Compressed24) -> bool:
    """Whether a later call may find a matrix settled that CuPy's current stream multiplies next."""
    if MAKING not in record.derived:
        record.derived[MAKING] = Making.before_now()
    return record.derived[MAKING].may_end


def _recorded() -> Any:
    """An event after all that is enqueued on CuPy's current stream."""
    event = _arrays.cupy_module().cuda.Event(disable_timing=True)
    event.record()
    return event
