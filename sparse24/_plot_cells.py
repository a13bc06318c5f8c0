"""Matrices as figures show them: the cells of an image, and non-zeros by group.

Sparse matrices are not made dense for that.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sparse24 import _arrays, _spec
from sparse24._errors import ShapeError
from sparse24.formats import convert
from sparse24.formats.base import SparseArray
from sparse24.formats.hybrid import HybridArray

MOST = 2048  # cells along a side of an image that is made of non-zeros; screens show no more


def matrix_of(a: Any) -> Any:
    """A NumPy matrix of an array; of one that stores non-zeros alone a `scipy.sparse.coo_array`."""
    if isinstance(a, SparseArray):
        a = a.to_device("cpu")  # on a GPU fp8 would be bits
    if not (isinstance(a, HybridArray) or _arrays.is_sparse_matrix(a)):
        a = _arrays.to_numpy(a.toarray() if hasattr(a, "toarray") else a, argument="a")
    if len(a.shape) != 2:
        raise ShapeError(
            f"a must be a matrix with two axes, got shape {a.shape}; pick one, such as a[0]"
        )
    if isinstance(a, np.ndarray):
        return a
    if isinstance(a, HybridArray):
        return a.tocoo()
    return _without_zeros(a.get() if _arrays.is_cupyx_sparse(a) else a)


def _without_zeros(m: Any) -> Any:
    """The elements of a SciPy matrix, each once."""
    from scipy import sparse

    coo = sparse.coo_array(convert.checked(m, argument="a"), copy=True)
    coo.sum_duplicates()
    coo.eliminate_zeros()
    return coo


def image(matrix: Any, *, values: bool) -> np.ndarray:
    """The cells of a figure: values, or where a matrix is not zero.

    Of non-zeros alone there are at most `MOST` along a side, each with the element of the largest
    magnitude among those that it stands for.
    """
    real = np.float64 if matrix.dtype == np.float64 else np.float32
    if isinstance(matrix, np.ndarray):
        return matrix.astype(real) if values else matrix != 0
    cells = np.zeros([min(size, MOST) for size in matrix.shape], real if values else bool)
    pairs = zip(matrix.coords, cells.shape, matrix.shape, strict=True)
    places = tuple(at.astype(np.int64) * count // size for at, count, size in pairs)
    if not values:
        cells[places] = True
        return cells
    data = matrix.data.astype(real)  # int8 has no magnitude of -128
    order = np.argsort(np.abs(data))  # the last one that is written to a cell stays
    cells[tuple(at[order] for at in places)] = data[order]
    return cells


def counts_by_group(matrix: Any) -> np.ndarray:
    """How many groups of four along the rows hold 0, 1, 2, 3 and 4 non-zeros."""
    m, k = matrix.shape
    groups = _spec.groups(k)
    if isinstance(matrix, np.ndarray):
        padded = np.zeros((m, _spec.GROUP * groups), bool)
        padded[:, :k] = matrix != 0
        held = padded.reshape(-1, _spec.GROUP).sum(1)
    else:
        row, column = (at.astype(np.int64) for at in matrix.coords)
        held = np.unique(row * groups + column // _spec.GROUP, return_counts=True)[1]
    counts = np.bincount(held, minlength=_spec.GROUP + 1)
    counts[0] += m * groups - counts.sum()  # those of which nothing is stored
    return counts
