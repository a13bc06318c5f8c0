"""Sums and extremes on the CPU, of what is stored of an array: it does not become dense."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from sparse24 import _dtypes, _elementwise

FLOAT32 = _dtypes.TABLE["float32"]


class Reductions(ABC):
    """The dense array of a sparse one for `sum`, `mean`, `max` and `min`, as NumPy has them."""

    def __init__(self, array: Any):
        self._array = array

    def sum(self, axis=None, dtype=None, out=None, *, keepdims=False):
        if dtype is None:
            own = number_type(self._array._dtype).logical
            sums = np.add.reduce(np.empty(0, own)).dtype
            # In the type of `out` alone, integers would take elements without their fractions.
            # NumPy refuses an `out` that is no array, below.
            dtype = sums if out is None else _common(own, getattr(out, "dtype", own))
        return self._reduced(np.add, axis, dtype, out, keepdims)

    def max(self, axis=None, out=None, *, keepdims=False):
        return self._reduced(np.maximum, axis, None, out, keepdims)

    def min(self, axis=None, out=None, *, keepdims=False):
        return self._reduced(np.minimum, axis, None, out, keepdims)

    def mean(self, axis=None, dtype=None, out=None, *, keepdims=False):
        own = self._array.dtype
        wide = {"int8": np.float64, "float16": np.float32}.get(own.name)
        total = self.sum(axis, wide if dtype is None else dtype, out, keepdims=keepdims)
        found = np.asarray(total)
        count = np.intp(self._array.size // found.size)  # a number of Python is infinite in float16
        np.true_divide(found, count, out=found, casting="unsafe")
        if out is not None:
            return out
        narrow = own == np.float16 and dtype is None
        return (found.astype(own) if narrow else found)[()]

    @abstractmethod
    def _reduced(self, ufunc: np.ufunc, axis, dtype, out, keepdims):
        """``ufunc.reduce`` of the dense array."""


class OfRows(Reductions):
    """Reductions of whole rows of a 2:4 or n:m array (columns, if its groups run along these).

    Only stored elements are looked at, and one zero that stands for the rest of the row.
    """

    @classmethod
    def of(cls, array: Any, axis: Any) -> OfRows | None:
        """None if `axis` lacks the one of the groups, or all elements of a row may be stored."""
        if array.device != "cpu" or not array.size:
            return None
        left = np.zeros((2,) * array.ndim).sum(axis=axis, keepdims=True)  # refuses what is no axis
        if left.shape[array.axis] != 1 or array.values.shape[-1] >= array.shape[array.axis]:
            return None
        return cls(array.astype(number_type(array._dtype).logical))

    def _reduced(self, ufunc: np.ufunc, axis, dtype, out, keepdims):
        values = self._array.values if self._array.axis == -1 else self._array.values.mT
        return ufunc.reduce(values, axis=axis, dtype=dtype, out=out, keepdims=keepdims, initial=0)


def _common(own: np.dtype, wanted: np.dtype) -> np.dtype:
    """The type in which elements are summed for an `out` of another type: one that holds both."""
    try:
        return np.result_type(own, wanted)
    except np.exceptions.DTypePromotionError:  # float16 and a type of ml_dtypes
        return np.result_type(own, np.float32)


def number_type(dtype: _dtypes.DType) -> _dtypes.DType:
    """The type in which NumPy computes with elements."""
    return dtype if _elementwise.is_native(dtype) else FLOAT32
