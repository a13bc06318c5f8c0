"""A hybrid matrix with hardly any elements, or a large one with few: its rows, and no tiles.

Most tiles of the former are empty, and would take more memory than its non-zeros; those of the
latter would be lists of non-zeros, too, but in an order that no path reads.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from sparse24 import _arrays, _dtypes
from sparse24._hybrid.cost import PLACE_BYTES, rows_below
from sparse24._storage import MOST_OF_AN_AXIS
from sparse24.formats import convert
from sparse24.formats.hybrid_tiles import TABLE_BYTES, grid_of
from sparse24.kernels.csr import CsrRows


@dataclasses.dataclass(frozen=True)
class ListedRows:
    """The non-zeros of a matrix row by row, all NumPy or all CuPy.

    Attributes
    ----------
    shape : tuple of int
        (m, k).
    dtype : DType
        Element type.
    csr : CsrRows
        Without zeros.  Columns are uint32 on the CPU, and int32 on a GPU.
    """

    shape: tuple[int, int]
    dtype: _dtypes.DType
    csr: CsrRows

    is_listed = True

    @property
    def grid(self) -> tuple[int, int]:
        """Tiles down and across, if they were built."""
        return grid_of(self.shape)

    @property
    def source(self) -> ListedRows:
        """Itself, as of `Tiles`: these rows are what is stored."""
        return self

    @property
    def home(self) -> Any:
        """An array on the device of all of them."""
        return self.csr.bits

    @property
    def nnz(self) -> int:
        return int(self.csr.bits.size)

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for x in self.csr)

    @property
    def elements(self) -> tuple[Any, ...]:
        """Arrays of all stored elements."""
        return (self.csr.bits.view(self.dtype.logical),)

    @property
    def bytes_in_tiles(self) -> int:
        """Bytes that tiles would take, if they were built."""
        return math.prod(self.grid) * TABLE_BYTES + self.nnz * (self.dtype.itemsize + PLACE_BYTES)

    def filled(self) -> int:
        """Tiles that would not be empty, at most."""
        return min(self.nnz, math.prod(self.grid))

    def map(self, function: Callable[[Any], Any]) -> ListedRows:
        """The record with `function` applied to every array."""
        csr = _with_columns_of_device(CsrRows(*(function(x) for x in self.csr)))
        return dataclasses.replace(self, csr=csr)

    def to_numpy(self) -> ListedRows:
        return self.map(_arrays.to_numpy)

    def with_values(self, values: Any, dtype: _dtypes.DType) -> ListedRows:
        """Other elements in the same places; those that are zero are left out."""
        csr = self.csr._replace(bits=values.view(dtype.storage))
        return dataclasses.replace(self, dtype=dtype, csr=_without_zeros(csr, dtype))

    def rows(self, first: int, last: int) -> ListedRows:
        """The rows [first, last); shares the elements."""
        csr = rows_between(self.csr, first, last)
        return dataclasses.replace(self, shape=(last - first, self.shape[1]), csr=csr)

    def row_numbers(self) -> Any:
        """The row of each element."""
        return row_numbers(self.csr.starts, self.nnz)

    def toarray(self) -> Any:
        """The dense matrix, on the same device."""
        xp = _arrays.namespace(self.home)
        out = xp.zeros(self.shape, self.dtype.storage)
        if self.nnz:
            out[self.row_numbers(), self.csr.columns] = self.csr.bits
        return out.view(self.dtype.logical)


def rows_between(csr: CsrRows, first: int, last: int) -> CsrRows:
    """The rows [first, last); shares the elements."""
    starts = csr.starts[first : last + 1]
    low, high = int(starts[0]), int(starts[-1])
    return CsrRows(starts - low, csr.columns[low:high], csr.bits[low:high])


def row_numbers(starts: Any, count: int) -> Any:
    """The row of each of `count` elements, from where the rows start; does not wait."""
    xp = _arrays.namespace(starts)
    if xp is np:
        return of_each(np.arange(starts.size - 1), starts, count)
    return xp.searchsorted(starts, xp.arange(count), side="right") - 1


def of_each(by_row: Any, starts: Any, count: int) -> Any:
    """What belongs to the row of each of `count` elements; does not wait."""
    if isinstance(by_row, np.ndarray):
        return np.repeat(by_row, np.diff(starts))
    return by_row[row_numbers(starts, count)]


def are_worth_listing(elements: int, shape: tuple[int, int]) -> bool:
    """Whether a matrix of that many elements is kept by its rows, and not in tiles."""
    size = math.prod(shape)
    return elements < rows_below(size) * size and max(shape) <= MOST_OF_AN_AXIS


def listed(
    csr: CsrRows, shape: tuple[int, int], dtype: _dtypes.DType, *, shared: bool
) -> ListedRows:
    """The rows, copied if others share their arrays; zeros among them are left out."""
    csr = CsrRows(*(x.copy() for x in csr)) if shared else csr
    csr = csr._replace(bits=csr.bits.view(dtype.storage))
    return ListedRows(shape, dtype, _with_columns_of_device(_without_zeros(csr, dtype)))


def _without_zeros(csr: CsrRows, dtype: _dtypes.DType) -> CsrRows:
    """The non-zeros alone: neither 0.0 nor -0.0.  Of a GPU this waits."""
    kept = _arrays.not_zero(csr.bits.view(dtype.logical), dtype)
    if bool(kept.all()):
        return csr
    return CsrRows(*convert.kept_of(*csr, kept))


def _with_columns_of_device(csr: CsrRows) -> CsrRows:
    """Columns in the type that the device's kernels read."""
    wanted = np.int32 if _arrays.is_cupy(csr.columns) else np.uint32
    return with_columns(csr, wanted)


def with_columns(csr: CsrRows, wanted: Any) -> CsrRows:
    """Columns in a type that holds them; shared if it has the same bits."""
    columns = csr.columns
    same_bits = columns.dtype.itemsize == np.dtype(wanted).itemsize
    return csr._replace(columns=columns.view(wanted) if same_bits else columns.astype(wanted))
