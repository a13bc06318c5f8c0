"""The rows of a CSR matrix as kernels read them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class CsrRows(NamedTuple):
    """A CSR matrix whose columns ascend in each row, without duplicates; all NumPy or all CuPy.

    Attributes
    ----------
    starts : array of int64, shape (m + 1,)
        Where the elements of each row begin.
    columns : array of int32, or of int64 on the CPU, shape (elements,)
    bits : array, shape (elements,)
        The elements as unsigned integers of their width; zeros may be among them.
    """

    starts: Any
    columns: Any
    bits: Any


def turned(rows: CsrRows, k: int) -> CsrRows:
    """The rows of the transposed matrix, which are the `k` columns of this one, on a GPU."""
    import cupy

    order = cupy.argsort(rows.columns, kind="stable")
    starts = cupy.searchsorted(rows.columns[order], cupy.arange(k + 1))
    row = cupy.searchsorted(rows.starts, order, side="right") - 1
    return CsrRows(starts.astype(np.int64), row.astype(np.int32), rows.bits[order])
