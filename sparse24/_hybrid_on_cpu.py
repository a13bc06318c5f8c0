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
    from sparse24.kernels import cpu_hybrid_rows

    wide = np.ascontiguousarray(b.astype(accumulator, copy=False))
    direct = out.dtype == accumulator
    acc = out if direct else np.empty(out.shape, accumulator)
    cpu_hybrid_rows.matmul(rows, wide, acc)
    if not direct:
        with np.errstate(over="ignore"):
            out[...] = acc


def remember(h, key: tuple, b: np.ndarray, product: np.ndarray) -> None:
    """Keep what repeats ``h @ b`` for a matrix or a vector, neither of them empty."""
    from sparse24.kernels import cpu_again

    if b.ndim > 2 or not (b.size and product.size):
        return
    rows, accumulator = layout(h, "cpu"), h.tiles.dtype.accumulator
    again = None
    if product.size == h.shape[0] and product.dtype == accumulator:
        again = cpu_again.vector_of_rows(rows)
    multiply = again or functools.partial(_multiply, rows, accumulator)
    _replay.keep(h._plans, key, ReadyOnCpu(multiply, None, product, overlap=OVERLAP))
