"""The rows of a CSR matrix as kernels read them."""

from __future__ import annotations

from typing import Any, NamedTuple


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
