"""Shared by the kernels of hybrid matrices: operands in the layouts they need, and launches."""

from __future__ import annotations

import abc
from typing import Any

import numpy as np

from sparse24 import _arrays
from sparse24.kernels import tensor_map, transpose
from sparse24.kernels.launch import Launch, current_stream

RIGHT = np.dtype([("b", "u8"), ("k", "i8"), ("n", "i8"), ("row", "i8"), ("column", "i8")])
OUT = np.dtype([("to", "u8"), ("row", "i8"), ("column", "i8")])


def right(b) -> np.ndarray:
    """A dense CuPy matrix of 16-bit elements, of any strides, as the kernels' argument `Right`."""
    row, column = (s // 2 for s in b.strides)
    return np.array([(b.data.ptr, *b.shape, row, column)], RIGHT)


def result(out) -> np.ndarray:
    """A CuPy matrix of 16-bit elements, of any strides, as the kernels' argument `Product`."""
    row, column = (s // 2 for s in out.strides)
    return np.array([(out.data.ptr, row, column)], OUT)


def readable(b: Any) -> bool:
    """Whether the TMA can read b: its rows are contiguous, on 16-byte boundaries."""
    contiguous = b.strides[1] == 2 or b.shape[1] == 1
    return contiguous and tensor_map.addressable(b.data.ptr, (b.strides[0],))


def rows_contiguous(b: Any):
    """b, or a copy of it whose rows are contiguous and start on 16-byte boundaries."""
    if readable(b):
        return b
    if b.strides[1] != 2 and b.shape[1] > 1 and transpose.takes(b.T):
        return transpose.launch(b.T).T
    k, n = b.shape
    wide = _arrays.cupy_module().zeros((k, _arrays.row_pitch(n, 2)), np.uint16)
    wide[:, :n] = b.view(np.uint16)  # the rest of 16 bytes, which are read at once, is zeros
    return wide[:, :n].view(b.dtype)


def matrix_map(x: Any, inner: int, outer: int, box: tuple[int, int]) -> np.ndarray:
    """The tensor map of a matrix of 16-bit elements; `inner` is its contiguous axis."""
    extents = (x.shape[inner], x.shape[outer], 1)
    pitch = x.strides[outer] if x.shape[outer] > 1 else -(-x.shape[inner] * 2 // 16) * 16
    return tensor_map.tiled(x.data.ptr, extents, (pitch, pitch * x.shape[outer]), box, 2)


class BoundProduct(abc.ABC):
    """One way of running a product with a matrix; called with ``(b, out)``, it enqueues it.

    Launches are remembered by the addresses of the operands and keep no operand alive.  The
    kernel may read the matrix before the preceding work of the stream has ended (programmatic
    dependent launch), so whoever makes a layout waits until it is complete.
    """

    REMEMBERED = 1024
    per_stream = False  # whether the arguments depend on the stream
    captured = True  # whether a graph can hold it

    def __init__(self) -> None:
        self._launches: dict[tuple, Launch] = {}

    @abc.abstractmethod
    def bind(self, b, out, stream: int) -> Launch:
        """Lay out the arguments for these operands."""

    def __call__(self, b, out) -> None:
        stream = current_stream()
        key = (
            b.data.ptr, b.shape, b.strides, out.data.ptr, out.strides,
            stream if self.per_stream else 0,
        )  # fmt: skip
        launch = self._launches.get(key)
        if launch is None:
            launch = self.bind(b, out, stream)
            while len(self._launches) >= self.REMEMBERED:
                self._launches.pop(next(iter(self._launches)), None)
            self._launches[key] = launch
        launch(stream)


class CutLayout(abc.ABC):
    """A matrix in the order in which a kernel reads it, with the ways to cut up its products.

    A subclass says how to cut up a product, and what then runs it.
    """

    def __init__(self, shape: tuple[int, int], arrays: Any):
        self.shape, self.arrays = shape, arrays
        self._launches: dict[tuple, Any] = {}
        self._configs: dict[int, Any] = {}

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for x in self.arrays)

    def copied(self) -> Any:
        """The arrays elsewhere in memory."""
        arrays = type(self.arrays)(*(x.copy() for x in self.arrays))
        settle()
        return arrays

    @abc.abstractmethod
    def cut(self, n: int) -> Any:
        """The way in which a product with `n` columns is cut up."""

    @abc.abstractmethod
    def compiled(self, n: int, load: int, config: Any) -> Any:
        """The product with `n` columns, cut up in such a way."""

    def config(self, n: int) -> Any:
        """What `cut` has found, kept for the next time."""
        found = self._configs.get(n)
        if found is None:
            found = self._configs[n] = self.cut(n)
        return found

    def launch(self, n: int, load: int, config: Any) -> Any:
        """What `compiled` made at the first use, kept."""
        key = (n, load, config)
        found = self._launches.get(key)
        if found is None:
            found = self._launches[key] = self.compiled(n, load, config)
        return found


def settle() -> None:
    """Wait until what the current stream has written can be read by any kernel."""
    import cupy

    cupy.cuda.get_current_stream().synchronize()
