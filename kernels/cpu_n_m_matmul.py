"""Products of n:m matrices on the CPU.

They share the inner loop of 2:4 for many columns, which asks only for the column of every
stored element.
"""

from __future__ import annotations

import numpy as np

from sparse24 import _check
from sparse24._records import PLAIN, Fused, Multiply
from sparse24.kernels import cpu_batch, cpu_matmul, cpu_operand
from sparse24.kernels._numba import njit
from sparse24.kernels.cpu_n_m import check_stored
from sparse24.kernels.cpu_operand import pack_tiles
from sparse24.kernels.cpu_panels import multiply_many


@njit
def _rows_of_step(places, n, m, step, found):
    """The rows of b of every stored element, counted from the first that its step may read."""
    rows, stored = places.shape
    first = np.empty(stored, np.int64)  # column of the group of each
    for t in range(stored):
        first[t] = (t // n - t // step * step // n) * m
    for row in range(rows):
        for t in range(stored):
            found[row, t] = first[t] + places[row, t]


class _Operand(cpu_operand.Operand):
    """An n:m matrix; its metadata are the places."""

    def _pack_places(self, rows: slice, high: int, step: int, places: np.ndarray) -> None:
        found = np.empty(self.values[rows].shape, np.uint16)
        _rows_of_step(self.metadata[rows], *self.pattern, step, found)
        pack_tiles(found, high, step, places)


def matmul_n_m(
    values: np.ndarray,
    places: np.ndarray,
    n: int,
    m: int,
    k: int,
    b: np.ndarray,
    out: np.ndarray,
    epilogue: Fused = PLAIN,
) -> None:
    """Write ``epilogue(A @ b)`` of an n:m matrix A into `out`.

    Parameters
    ----------
    values, places : ndarray, shape (..., rows, n * groups)
        As `compress_n_m` returns them.
    n, m, k : int
        The pattern, and the columns of A.
    b, out, epilogue
        As for `cpu_matmul.matmul`.
    """
    n, m = _check.pattern((n, m))
    check_stored(values, n, m, k)
    cpu_batch.checked(values, values.shape[-1], k, b, out)

    def one(values, places, b, out, epilogue):
        many_columns(values, places, (n, m), k, b)(b, out, epilogue)

    cpu_batch.over_batch(values, places, b, out, epilogue, one)


def many_columns(
    values: np.ndarray, places: np.ndarray, pattern: tuple[int, int], k: int, b: np.ndarray
) -> Multiply:
    """The product of one matrix with many `b` like this one."""
    dtype, b_dtype = cpu_batch.types_of(values, b)
    work = cpu_matmul.work_type(dtype, few=False)
    a = _Operand(values, places, pattern[1] * -(-k // pattern[1]), dtype, work)
    a.pattern = pattern
    return lambda b, out, epilogue: cpu_matmul.multiply(a, b, b_dtype, out, epilogue, multiply_many)
