"""Arrays on a GPU as an address and a layout, which launches read; they keep no memory alive."""

from __future__ import annotations

from typing import Any


class View:
    """An address and a layout: what a `Launcher` needs of an array."""

    __slots__ = ("dtype", "itemsize", "ndim", "ptr", "shape", "size", "strides")

    def __init__(self, array: Any):
        self.ptr, self.shape, self.strides = array.data.ptr, array.shape, array.strides
        self.dtype, self.itemsize = array.dtype, array.dtype.itemsize
        self.ndim, self.size = array.ndim, array.size

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
