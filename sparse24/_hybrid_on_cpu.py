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


def remember(h, key: tuple, b: np.ndarray, product: np.ndarray) -> None:
    """Keep what repeats ``h @ b`` for a matrix or a vector, neither of them empty."""
    if b.ndim <= 2 and b.size and product.size:
        bound = _bound(h)
        again = ReadyOnCpu(lambda b, out, _: bound(b, out), None, product, overlap=OVERLAP)
        _replay.keep(h._plans, key, again)
