"""Sums and extremes of a hybrid matrix on the CPU, in time and memory for its non-zeros."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparse24 import _storage
from sparse24.formats import hybrid_tiles as ht
from sparse24.formats.reductions import Reductions, number_type

_AT_A_TIME = 1 << 16  # elements that are added up together, by numbers of 16 bytes each


class Elements(Reductions):
    """Reductions of a `HybridArray`, by its elements in place of the dense array."""

    def _reduced(self, ufunc: np.ufunc, axis, dtype, out, keepdims):
        left = np.zeros((2, 2)).sum(axis=axis, keepdims=True).shape  # refuses what is no axis
        axes = tuple(i for i in (0, 1) if left[i] == 1)
        if not axes:
            found = self._array.astype(number_type(self._array._dtype).logical).toarray()
        elif len(axes) == 2:  # there are zeros beside the elements
            found = np.asarray(ufunc.reduce(_stored(self._array), dtype=dtype, initial=0))
        else:
            found = _of_rows(ufunc, self._array if axes == (1,) else self._array.T, dtype)
        found = np.expand_dims(found, axes) if keepdims else found
        return ufunc.reduce(found[None], dtype=dtype, out=out)  # which looks whether `out` fits


def _stored(h: Any) -> np.ndarray:
    """All stored elements, zeros among them, as numbers."""
    return _numbers(np.concatenate(h._elements()), h)


def _rows(h: Any) -> tuple[np.ndarray, np.ndarray]:
    """Where rows start, and their elements in the type of sums."""
    starts, _, bits = h.held()
    return starts, _numbers(bits.view(h.dtype), h)


def _numbers(elements: np.ndarray, h: Any) -> np.ndarray:
    """Elements in the type of sums."""
    work = number_type(h._dtype)
    return elements if work is h._dtype else _storage.converted(elements, h._dtype, work)


def _of_rows(ufunc: np.ufunc, h: Any, dtype) -> np.ndarray:
    if isinstance(h._tiles, ht.Transposed) and ufunc is np.add and _adds_in_float64(h, dtype):
        return _sums_of_columns(h).astype(dtype)
    starts, values = _rows(h)
    counts = np.diff(starts)
    kept = counts > 0
    found = np.zeros(counts.size, values.dtype if dtype is None else dtype)
    if values.size:
        found[kept] = ufunc.reduceat(values, starts[:-1][kept], dtype=dtype)
    some_zero = counts < h.shape[1]
    found[some_zero] = ufunc(found[some_zero], found.dtype.type(0))
    return found


def _adds_in_float64(h: Any, dtype) -> bool:
    """Whether sums in float64, rounded once, are as exact as those in the type asked for."""
    wanted = np.dtype(dtype)
    return wanted in (np.float32, np.float64) or (h.dtype == np.int8 and wanted == np.int64)


def _sums_of_columns(h: Any) -> np.ndarray:
    """The sums of the rows of a transposed matrix, which are columns of what is stored.

    Elements are added where they are; to order them by columns takes several times as long.
    """
    _, columns, bits = h.T.held()
    size = h.shape[0]
    sums, step = np.zeros(size), max(_AT_A_TIME, size)
    for first in range(0, bits.size, step):
        here = slice(first, first + step)
        values = _numbers(bits[here].view(h.dtype), h)
        sums += np.bincount(columns[here], weights=values, minlength=size)
    return sums
