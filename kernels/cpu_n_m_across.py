"""Products on the CPU that add up across the groups of an n:m matrix: ``A.T @ b`` and ``x @ A``.

As for 2:4 a few rows of A at a time are expanded and multiplied by BLAS (``cpu_across.py``).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sparse24.kernels import cpu_across, cpu_n_m


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
        self.pattern = pattern
        super().__init__(values, places, m, b)
        if self._read is not None:
            self._bits = masks()

    def _unit(self) -> int:
        return self.pattern[1] if self._read is None else super()._unit()

    def _masks(self, rows: slice) -> np.ndarray:
        return self._bits[rows]

    def _scatter(self, rows: slice, room: np.ndarray) -> None:
        places = self._metadata[rows].reshape(-1)
        cpu_n_m.scatter(self._values[rows].reshape(-1), places, *self.pattern, room.reshape(-1))
