"""What a hybrid matrix is built from: a matrix of any library that hands out its rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from tqdm import tqdm

from sparse24 import _arrays, _dtypes, _foreign
from sparse24._errors import DTypeError, ShapeError
from sparse24.formats import convert
from sparse24.formats import hybrid_tiles as ht
from sparse24.kernels.csr import CsrRows

STEP_ELEMENTS = 1 << 25  # dense elements that are held at a time
BAR_FROM = 1 << 28  # elements above which a progress bar is shown


def type_of(dtype: Any, *, argument: str = "dtype") -> _dtypes.DType:
    """The element type of a hybrid matrix that is named; others are refused."""
    found = _dtypes.lookup(dtype, argument=argument, known=ht.DTYPES)
    if found.name not in ht.DTYPES:
        way_out = "convert it first, for example with .astype('float16')"
        raise DTypeError(
            f"{argument} must be one of {', '.join(ht.DTYPES)} for a hybrid matrix, got "
            f"{found.name}; {'name one of these' if argument == 'dtype' else way_out}"
        )
    return found


class Source:
    """A matrix that hands out its rows; wraps NumPy, CuPy, scipy and cupyx matrices."""

    def __init__(self, w: Any, dtype=None):
        self.sparse = _arrays.is_sparse_matrix(w)
        if not self.sparse:
            w, _ = _foreign.take(w, argument="w")
        if w.ndim != 2:
            raise ShapeError(
                f"w must be a matrix with two axes (m, k), got shape {tuple(w.shape)}; "
                "build one hybrid matrix for each matrix of a stack"
            )
        given, argument = (w.dtype, "w.dtype") if dtype is None else (dtype, "dtype")
        self.dtype = type_of(given, argument=argument)
        _arrays.check_real(w, argument="w")
        self.matrix = convert.checked(w, argument="w").tocsr() if self.sparse else w
        self.shape = (int(w.shape[0]), int(w.shape[1]))
        on_gpu = _arrays.is_cupyx_sparse(w) or _arrays.is_cupy(w)
        if self.sparse:
            self.matrix = convert.seen_anew(self.matrix)
        self.xp = _arrays.cupy_module() if on_gpu else np
        early = self.sparse and not on_gpu and self.dtype.name in ("float32", "float64")
        if early and self.matrix.has_canonical_format:  # else SciPy adds up in its own type first
            self.matrix = self.matrix.astype(self.dtype.logical, copy=False)  # not its zeros

    def csr_rows(self) -> CsrRows | None:
        """The non-zeros of a sparse matrix row by row, or None of a dense one."""
        if not self.sparse:
            return None
        matrix = self.matrix if self.matrix.has_canonical_format else self._in_order()
        columns = matrix.indices.astype(convert.column_type(self.shape[1]), copy=False)
        bits = self._in_dtype(matrix.data).view(self.dtype.storage)
        return CsrRows(matrix.indptr.astype(np.int64, copy=False), columns, bits)

    def _in_order(self):
        """A copy with ascending columns, and what stands twice added up in the matrix's type."""
        matrix = self.matrix.copy()
        if self.xp is np:
            matrix.sort_indices()
            if matrix.has_canonical_format:
                return matrix
            matrix = self.matrix.tocsc().tocsr()  # which keeps the order of equal places
        matrix.sum_duplicates()
        return matrix

    def bits(self, first: int, last: int):
        """Rows [first, last) of a dense matrix as unsigned integers, each row contiguous."""
        rows = self.xp.ascontiguousarray(self._in_dtype(self.matrix[first:last]))
        return rows.view(self.dtype.storage)

    def _in_dtype(self, rows):
        """The rows in the matrix's type; int8 rounds to even and saturates, as in `compress`."""
        from sparse24.kernels import reference

        if rows.dtype.kind in "iu" and self.dtype.name == "bfloat16":
            rows = rows.astype(_dtypes.holding(rows.dtype, self.dtype))
        if self.xp is np and rows.dtype == np.float64 and self.dtype.name == "bfloat16":
            return reference.to_dtype(rows, self.dtype.logical)  # rounds once
        if self.dtype.name != "int8" or rows.dtype == self.dtype.logical:
            return rows.astype(self.dtype.logical, copy=False)
        wide = rows if rows.dtype.kind == "f" else rows.astype(np.float64)
        return reference.to_dtype(wide, self.dtype.logical)

    def steps(self, task: str):
        """(first row, last row) of a few bands at a time, with a bar on long builds."""
        m, k = self.shape
        rows = max(1, STEP_ELEMENTS // max(1, k * ht.TILE)) * ht.TILE
        pieces = [(at, min(m, at + rows)) for at in range(0, m, rows)] if k else []
        return tqdm(pieces, desc=f"sparse24.hybrid: {task}", disable=m * k < BAR_FROM, unit="step")
