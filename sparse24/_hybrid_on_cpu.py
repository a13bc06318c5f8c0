"""Products of hybrid matrices on the CPU: the non-zeros row by row, or the dense matrix by BLAS."""

from __future__ import annotations

import functools

import numpy as np

from sparse24 import _replay
from sparse24._hybrid_cost import bucket
from sparse24._hybrid_layouts import layout
from sparse24._ready_cpu import ReadyOnCpu

OVERLAP = "out shares memory with b; pass another array"
# Columns from which BLAS is at full speed, and the share of non-zeros with which it then takes as
# long as the path cpu, as it does with one column.  Measured on AVX2 with one thread: of matrices
# that are half full it is 1.1 to 2.9 times as fast, of those with 30 % mostly slower; with 4 to 16
# columns it is slower in both cases where the matrix is larger than the L2 cache.
MANY_COLUMNS, EVEN_DENSITY = 64, 0.4


def gain_of_blas(h, n: int) -> float | None:
    """How many times as fast BLAS is taken to be; None where it is no candidate, as of integers."""
    known = bucket(n)
    if h._dtype.name == "int8" or 1 < known < MANY_COLUMNS:
        return None
    return h.density / EVEN_DENSITY


def choose(h, n: int) -> str:
    """The path for n columns, by counts: tiles of a transposed matrix need not be built."""
    return "blas" if (gain_of_blas(h, n) or 0) > 1 else "cpu"


def multiply(h, b, out, path: str) -> None:
    """out = h @ b for matrices."""
    _bound(h, path)(b, out)


def _bound(h, path: str):
    from sparse24.kernels import cpu_hybrid_rows

    return functools.partial(cpu_hybrid_rows.multiply, layout(h, path))


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


def remember(
    h, key: tuple, b: np.ndarray, product: np.ndarray, algorithm: str = "auto", *,
    rows: bool = False,
) -> None:  # fmt: skip
    """Keep what repeats ``h @ b`` for a matrix or a vector, neither of them empty.

    With `rows`, ``b @ h.T``.
    """
    if b.ndim > 2 or not (b.size and product.size):
        return
    n = 1 if b.ndim == 1 else b.shape[0 if rows else 1]
    bound = _bound(h, choose(h, n) if algorithm == "auto" else algorithm)
    if rows and b.ndim == 2:
        _replay.keep(h._plans, key, _ReadyRows(bound, product))
        return
    again = ReadyOnCpu(lambda b, out, _: bound(b, out), None, product, overlap=OVERLAP)
    _replay.keep(h._plans, key, again)
