"""Products on the CPU that add up across the groups of an n:m matrix: ``A.T @ b`` and ``x @ A``.

As for 2:4 a few rows of A at a time are expanded and multiplied by BLAS (``cpu_across.py``).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sparse24 import _arrays
from sparse24.kernels import cpu_across, cpu_n_m
from sparse24.kernels._simd_expand import AVAILABLE, lanes_of
from sparse24.kernels.cpu_n_m_few import WORD, expand_rows
from sparse24.kernels.cpu_operand import Operand


class Across(cpu_across.Across):
    """``out = epilogue(A.T @ b)`` for one n:m matrix A (k, m), and many `b` (k, n).

    Parameters
    ----------
    values, places : ndarray, shape (k, n * groups), C order
    masks : callable
        Makes what `cpu_n_m_few.masks_of` returns, called where vectors are spread by it.
    pattern : tuple of int
    m : int
        Columns of A.
    b : ndarray, shape (k, n)
        Only its type and shape count.
    """

    def __init__(
        self, values: np.ndarray, places: np.ndarray, masks: Callable[[], np.ndarray],
        pattern: tuple[int, int], m: int, b: np.ndarray,
    ):  # fmt: skip
        self._pattern = pattern
        dtype = _arrays.logical_dtype(values, argument="values")
        work = np.dtype(np.float64 if dtype.name == "float64" else np.float32)
        self._read = None
        if work.name in AVAILABLE:
            self._read = Operand(values, masks(), m, dtype, work)
        super().__init__(values, places, m, b)

    def _width(self, m: int) -> int:
        unit = self._pattern[1] if self._read is None else WORD
        return -(-m // unit) * unit

    def _expand_rows(self, rows: slice, room: np.ndarray, wide: np.ndarray) -> None:
        if self._read is None:
            super()._expand_rows(rows, room, wide)
            return
        values, lanes = self._read.as_read(self._read.values[rows]), lanes_of(wide.itemsize)
        count = wide.shape[1] // lanes
        expand_rows(values, self._read.metadata[rows], 0, len(wide), count, lanes, wide)

    def _scatter(self, rows: slice, room: np.ndarray) -> None:
        places = self._metadata[rows].reshape(-1)
        cpu_n_m.scatter(self._values[rows].reshape(-1), places, *self._pattern, room.reshape(-1))
