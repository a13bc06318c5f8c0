"""Prepared products of kernels that read rows of an operand which lies by columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from sparse24._moved_layout import MovedLayout
from sparse24._ready import by_address, out_on_b
from sparse24._ready_scratch import ReadyInScratch


class ReadyTurned(ReadyInScratch):
    """One launch copies b by rows to scratch memory, and the next one, or two, multiply.

    Parameters
    ----------
    product : BoundProduct
        Of a kernel that reads rows of b.
    b, out : cupy.ndarray
        Matrices like those of calls; b lies by columns.
    allocate : callable
        Makes a result.
    """

    def __init__(self, product, b, out, allocate: Callable[[], Any]):
        from sparse24.kernels import transpose_bound

        rows, self.scratch_bytes = transpose_bound.rows_of(b)

        def bind(b, out, rows, stream: int) -> _InTurn:
            turn, multiply = transpose_bound.bind(b, rows), product.bind(rows, out, stream)
            return _InTurn((turn, *getattr(multiply, "launches", (multiply,))))

        layout = MovedLayout(by_address(bind, b, out, rows))
        super().__init__(layout, allocate, captured=False, refusals=[out_on_b(b, out)])


class _InTurn(NamedTuple):
    launches: tuple
