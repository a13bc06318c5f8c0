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
    _bound(h)(b, out)


def _bound(h):
    from sparse24.kernels import cpu_hybrid_rows

    return functools.partial(cpu_hybrid_rows.multiply, layout(h, "cpu"))


class _ReadyRows:
    """``x @ h.T``: the kernel writes rows of ``h @ x.T``, and the result is a view of those."""

    captured = True  # there are no graphs on the CPU

    def __init__(self, multiply, product: np.ndarray):
        self._multiply, self._dtype = multiply, product.dtype
        self._shape = product.shape[::-1]

    def __call__(self, x: np.ndarray, out: None) -> np.ndarray:
        rows = np.empty(self._shape, self._dtype)
        self._multiply(x.T, rows)
        return rows.T


def remember(h, key: tuple, b: np.ndarray, product: np.ndarray, *, rows: bool = False) -> None:
    """Keep what repeats ``h @ b`` for a matrix or a vector, neither of them empty.

    With `rows`, ``b @ h.T``.
    """
    if b.ndim > 2 or not (b.size and product.size):
        return
    bound = _bound(h)
    if rows and b.ndim == 2:
        _replay.keep(h._plans, key, _ReadyRows(bound, product))
        return
    again = ReadyOnCpu(lambda b, out, _: bound(b, out), None, product, overlap=OVERLAP)
    _replay.keep(h._plans, key, again)
