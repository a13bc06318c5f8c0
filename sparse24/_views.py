"""Arrays on a GPU as an address and a layout, which launches read; they keep no memory alive."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


class View:
    """An address and a layout: what a `Launcher` needs of an array."""

    __slots__ = ("dtype", "itemsize", "ndim", "ptr", "shape", "size", "strides")

    def __init__(self, array: Any):
        self.ptr, self.shape, self.strides = array.data.ptr, array.shape, array.strides
        self.dtype, self.itemsize = array.dtype, array.dtype.itemsize
        self.ndim, self.size = array.ndim, array.size

    @classmethod
    def of(cls, address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype) -> View:
        """Memory that is no array yet; strides in bytes."""
        view = object.__new__(cls)
        view.ptr, view.shape, view.strides = address, shape, strides
        view.dtype, view.itemsize = np.dtype(dtype), np.dtype(dtype).itemsize
        view.ndim, view.size = len(shape), math.prod(shape)
        return view

    @property
    def data(self) -> View:
        """Itself, so that ``view.data.ptr`` reads as that of a CuPy array."""
        return self

    def at(self, address: int) -> View:
        """The same layout elsewhere."""
        moved = object.__new__(View)  # a tenth of the time of `copy.copy`
        moved.ptr, moved.shape, moved.strides = address, self.shape, self.strides
        moved.dtype, moved.itemsize = self.dtype, self.itemsize
        moved.ndim, moved.size = self.ndim, self.size
        return moved

    def turned(self) -> View:
        """The transposed matrix, or stack of such."""
        other = self.at(self.ptr)
        other.shape = (*self.shape[:-2], self.shape[-1], self.shape[-2])
        other.strides = (*self.strides[:-2], self.strides[-1], self.strides[-2])
        return other

    def matrix(self, index: tuple[int, ...]) -> View:
        """One matrix of a stack."""
        lead = zip(index, self.strides, strict=False)
        part = self.at(self.ptr + sum(i * stride for i, stride in lead))
        part.shape, part.strides, part.ndim = self.shape[-2:], self.strides[-2:], 2
        part.size = part.shape[0] * part.shape[1]
        return part

    def repeated(self, rows: int) -> View:
        """A matrix each of whose rows is this vector."""
        full = self.at(self.ptr)
        full.shape, full.strides, full.ndim = (rows, *self.shape), (0, *self.strides), 2
        full.size = rows * self.size
        return full
