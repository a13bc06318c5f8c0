"""Products of a hybrid matrix by kernels that need copies of their operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparse24 import _arrays
from sparse24._hybrid.turned import ReadyTurned
from sparse24._moved_layout import laying_out


class Staged:
    """A product by a kernel that wants its operands in other places: they are copied, at each call.

    Parameters
    ----------
    product : BoundProduct
        Of a kernel that reads rows of `b` by 16 bytes.
    room : bool
        Whether the result is made by rows elsewhere: it is stored by columns, or the kernel
        would write past the ends of its lines (`_memory_order.spills`).
    """

    captured = False  # a graph would not keep the copies

    def __init__(self, product, *, room: bool):
        self._product, self._room = product, room

    def __call__(self, b, out) -> None:
        from sparse24.kernels.hybrid_launch import rows_contiguous

        self.multiply(rows_contiguous(b), room_for(out) if self._room else out, out)

    def ready(self, b, out, allocate: Callable[[], Any]) -> ReadyTurned | None:
        """What repeats it for matrices like these, if all it copies is a b that lies by columns."""
        from sparse24.kernels import transpose

        if self._room or by_rows(b) or not transpose.takes(b.T):
            return None
        return ReadyTurned(self._product, b, out, allocate)

    def multiply(self, b, room, out) -> None:
        """Make the product in `room`, of copies that are there, and move it to `out`."""
        from sparse24.kernels import transpose

        with laying_out:
            self._product(b, room)
        if self._room:
            out[...] = room if by_rows(out) else transpose.launch(room)


def by_rows(x) -> bool:
    """Whether the rows of a matrix are contiguous."""
    return x.shape[1] == 1 or x.strides[1] == x.dtype.itemsize


def room_for(out):
    """An array like `out` whose rows are contiguous."""
    return _arrays.empty_rows(_arrays.namespace(out), out.shape, out.dtype)
