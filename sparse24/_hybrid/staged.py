"""Products of a hybrid matrix by kernels that need copies of their operands."""

from __future__ import annotations

import contextlib
from typing import Any

from sparse24 import _arrays, _replay
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


class _Memory:
    """What only captured graphs still use."""

    def __init__(self):
        self.pieces: list[Any] = []

    @property
    def nbytes(self) -> int:
        return sum(piece.mem.size for piece in self.pieces)


@contextlib.contextmanager
def kept_for_graphs(h, x):
    """Where a graph is captured, keep what is allocated in this context with the matrix `h`.

    The graph reads the matrix too, so it must not outlive it.  A graph that torch captures
    has a pool of its own.
    """
    if not (_arrays.is_cupy(x) and _replay.capturing(x)):
        yield
        return
    cuda, pieces = _arrays.cupy_module().cuda, h.prepared("memory of graphs", _Memory).pieces
    usual = cuda.get_allocator()

    def allocate(size: int):
        pieces.append(usual(size))
        return pieces[-1]

    with cuda.using_allocator(allocate):
        yield
