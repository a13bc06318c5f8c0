"""Products of n:m matrices on the CPU.

They share the inner loop of 2:4 for many columns, which asks only for the column of every
stored element.
"""

from __future__ import annotations

import numpy as np

from sparse24 import _check
from sparse24._records import PLAIN, Epilogue
from sparse24.kernels import cpu_batch, cpu_matmul, cpu_operand
from sparse24.kernels._numba import njit
from sparse24.kernels.cpu_n_m import check_stored


@njit
def _write_indices(places, n, m, indices):
    """The column of every stored element, in loops over whole rows, which LLVM vectorises."""
    rows, stored = places.shape
    first = np.empty(stored, np.int32)  # column of the group of each
    for t in range(stored):
        first[t] = t // n * m
    for row in range(rows):
        for t in range(stored):
            indices[row, t] = first[t] + places[row, t]


class _Operand(cpu_operand.Operand):
    """An n:m matrix; its metadata are the places."""

    pattern: tuple[int, int]

    def indices(self, rows: slice) -> np.ndarray:
        indices = np.empty(self.values[rows].shape, np.int32)
        _write_indices(self.metadata[rows], *self.pattern, indices)
        return indices


def matmul_n_m(
    values: np.ndarray,
    places: np.ndarray,
    n: int,
    m: int,
    k: int,
    b: np.ndarray,
    out: np.ndarray,
    epilogue: Epilogue = PLAIN,
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
    dtype, b_dtype = cpu_batch.checked(values, values.shape[-1], k, b, out)
    high = m * -(-k // m)

    def one(values, places, b, out, epilogue):
        work = cpu_matmul.work_type(dtype, few=False)
        a = _Operand(values, places, high, dtype, work)
        a.pattern = (n, m)
        cpu_matmul.multiply(a, b, b_dtype, out, epilogue, cpu_matmul.multiply_many)

    cpu_batch.over_batch(values, places, b, out, epilogue, one)
