"""Products of hybrid matrices on the CPU: the non-zeros row by row."""

from __future__ import annotations

import functools

import numpy as np

from sparse24 import _replay
from sparse24._hybrid_layouts import layout
from sparse24._ready_cpu import ReadyOnCpu

OVERLAP = "out shares memory with b; pass another array"


def multiply(h, b, out) -> None:
    """out = h @ b for matrices."""
    _multiply(layout(h, "cpu"), h.tiles.dtype.accumulator, b, out)


def _multiply(rows, accumulator, b, out) -> None:
    from sparse24.kernels import cpu_epilogue, cpu_hybrid_rows

    wide = np.ascontiguousarray(b if b.dtype == accumulator else b.astype(accumulator))
    direct = out.dtype == accumulator
    sums = out if direct else np.empty(out.shape, accumulator)
    cpu_hybrid_rows.matmul(rows, wide, sums)
    if not direct:
        cpu_epilogue.store(sums, out)


def remember(h, key: tuple, b: np.ndarray, product: np.ndarray) -> None:
    """Keep what repeats ``h @ b`` for a matrix or a vector, neither of them empty."""
    if b.ndim > 2 or not (b.size and product.size):
        return
    multiply = functools.partial(_multiply, layout(h, "cpu"), h.tiles.dtype.accumulator)
    _replay.keep(h._plans, key, ReadyOnCpu(multiply, None, product, overlap=OVERLAP))
