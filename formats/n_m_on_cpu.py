"""Products of n:m matrices on the CPU, and the calls that an array remembers."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from sparse24 import _arrays, _dtypes
from sparse24._records import PLAIN, Multiply


class PreparedProduct:
    """``A @ x``, or ``x @ A``, for operands like those of the first call.

    Parameters
    ----------
    array : NMArray
        A matrix.
    x : ndarray, at most two axes
        Of a type that sums in the same type as the array, or of floats beside int8.
    result : str
        The type of the result, or of the sums.
    left : bool
        Whether the array is the left operand.
    """

    captured = True  # there are no graphs on the CPU

    def __init__(self, array: Any, x: np.ndarray, result: str, *, left: bool):
        self._left, self._vector = left, x.ndim == 1
        b = self._matrix(x)
        multiply = along
        if array.axis != (-1 if left else -2):
            by_rows = adds_rows(b.shape[1], array, _arrays.logical_dtype(b))
            multiply = rows_by_rows if by_rows else across
        self._multiply = multiply(array if left else array.mT, b)
        self._shape = array.shape[0 if left else 1], b.shape[1]
        self._dtype = _dtypes.numpy_dtype(result)
        self._order: Any = "F" if multiply is across and not left else "C"

    def __call__(self, x: np.ndarray, out: None = None) -> np.ndarray:
        result = np.empty(self._shape, self._dtype, self._order)
        self._multiply(self._matrix(x), result, PLAIN)
        if self._vector:
            return result[:, 0]
        return result if self._left else result.T

    def _matrix(self, x: np.ndarray) -> np.ndarray:
        if self._vector:
            return x[:, None]
        return x if self._left else x.T


def along(array: Any, b: np.ndarray) -> Multiply:
    """What multiplies an array with groups along its rows."""
    from sparse24.kernels import cpu

    k, (n, m) = array.shape[1], array.pattern
    dtype = cpu.beside(array._dtype, _arrays.logical_dtype(b))
    if cpu.few_columns_pay(n, m, b.shape[1], dtype):
        return cpu.FewColumns(array._values, _masks(array), -(-k // m) * m, b)
    return cpu.many_columns(array._values, array._indices, (n, m), k, b)


def adds_rows(columns: int, array: Any, its: _dtypes.DType) -> bool:
    """Whether products across the groups by that many columns, of a type, add up stored rows."""
    from sparse24.kernels import cpu

    return cpu.few_rows_pay(columns, cpu.beside(array._dtype, its), array.pattern)


def rows_by_rows(array: Any, b: np.ndarray) -> Multiply:
    """What multiplies an array whose groups run along its columns with few columns."""
    from sparse24.kernels import cpu

    rows = array.mT
    return cpu.FewRows(rows._values, _masks(rows), rows.pattern, rows.shape[1], b)


def across(array: Any, b: np.ndarray) -> Multiply:
    """What multiplies it with many columns, by BLAS; neither operand is empty."""
    from sparse24.kernels import cpu

    rows = array.mT
    masks = functools.partial(_masks, rows)
    values, places = (np.require(x, None, ["C", "A"]) for x in (rows._values, rows._indices))
    return cpu.AcrossOfNM(values, places, masks, rows.pattern, rows.shape[1], b)


def _masks(array: Any) -> np.ndarray:
    """The columns of the stored elements as bits, made once."""
    from sparse24.kernels import cpu

    (n, m), k = array.pattern, array.shape[1]
    return array._converted("masks", lambda: cpu.masks_of(array._indices, n, m, k))
