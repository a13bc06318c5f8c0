"""Sums and extremes of a hybrid matrix on the CPU, in time and memory for its non-zeros."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparse24 import _dtypes, _elementwise, _storage

FLOAT32 = _dtypes.TABLE["float32"]


class Elements:
    """The dense array of a `HybridArray` for `sum`, `mean`, `max` and `min`, as NumPy has them."""

    def __init__(self, h: Any):
        self._h = h

    def sum(self, axis=None, dtype=None, out=None, *, keepdims=False):
        if dtype is None:
            sums = np.add.reduce(np.empty(0, _number_type(self._h._dtype).logical))
            dtype = sums.dtype if out is None else out.dtype
        return self._reduced(np.add, axis, dtype, out, keepdims)

    def max(self, axis=None, out=None, *, keepdims=False):
        return self._reduced(np.maximum, axis, None, out, keepdims)

    def min(self, axis=None, out=None, *, keepdims=False):
        return self._reduced(np.minimum, axis, None, out, keepdims)

    def mean(self, axis=None, dtype=None, out=None, *, keepdims=False):
        own = self._h.dtype
        wide = {"int8": np.float64, "float16": np.float32}.get(own.name)
        total = self.sum(axis, wide if dtype is None else dtype, out, keepdims=keepdims)
        found = np.asarray(total)
        np.true_divide(found, self._h.size // found.size, out=found, casting="unsafe")
        if out is not None:
            return out
        narrow = own == np.float16 and dtype is None
        return (found.astype(own) if narrow else found)[()]

    def _reduced(self, ufunc: np.ufunc, axis, dtype, out, keepdims):
        left = np.zeros((2, 2)).sum(axis=axis, keepdims=True).shape  # refuses what is no axis
        axes = tuple(i for i in (0, 1) if left[i] == 1)
        if not axes:
            found = self._h.astype(_number_type(self._h._dtype).logical).toarray()
        elif len(axes) == 2:  # there are zeros beside the elements
            found = np.asarray(ufunc.reduce(_rows(self._h)[1], dtype=dtype, initial=0))
        else:
            found = _of_rows(ufunc, self._h if axes == (1,) else self._h.T, dtype)
        found = np.expand_dims(found, axes) if keepdims else found
        return ufunc.reduce(found[None], dtype=dtype, out=out)  # which looks whether `out` fits


def _number_type(row: _dtypes.DType) -> _dtypes.DType:
    """The type in which NumPy computes with elements."""
    return row if _elementwise.is_native(row) else FLOAT32


def _rows(h: Any) -> tuple[np.ndarray, np.ndarray]:
    """Where rows start, and their elements, as numbers."""
    starts, _, bits = h.held()
    values, work = bits.view(h.dtype), _number_type(h._dtype)
    return starts, values if work is h._dtype else _storage.converted(values, h._dtype, work)


def _of_rows(ufunc: np.ufunc, h: Any, dtype) -> np.ndarray:
    starts, values = _rows(h)
    counts = np.diff(starts)
    kept = counts > 0
    found = np.zeros(counts.size, values.dtype if dtype is None else dtype)
    if values.size:
        found[kept] = ufunc.reduceat(values, starts[:-1][kept], dtype=dtype)
    some_zero = counts < h.shape[1]
    found[some_zero] = ufunc(found[some_zero], found.dtype.type(0))
    return found
