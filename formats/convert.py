"""From and to the sparse formats of SciPy and cupyx."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sparse24 import _arrays, _check, _dtypes, _record_parts, _storage
from sparse24._errors import ArgumentError, DTypeError, FormatError
from sparse24._hybrid import room
from sparse24._promotion import promote

FLOAT32 = _dtypes.TABLE["float32"]
# What SciPy's and cupyx's sparse arrays take; other types go through float32.
_SCIPY_KINDS = "biufc"
_CUPYX_TYPES = ("bool", "float32", "float64", "complex64", "complex128")
# Operands of a product that are made dense: those of few elements, or with one non-zero in so many.
_SMALL = 1 << 22
_NEARLY_EMPTY = 20
_AT_A_TIME = 1 << 18  # dense elements among which places are found together


def densify(m: Any, *, argument: str):
    """Dense NumPy (scipy.sparse) or CuPy (cupyx) array of any sparse matrix."""
    if _arrays.is_sparse_matrix(m):
        device = "cpu" if _arrays.is_scipy_sparse(m) else _arrays.device_of(m.data)
        way_out = "sparse24.hybrid stores its non-zeros alone"
        with room.refusing(f"{argument}, made dense,", m.shape, m.dtype.itemsize, device, way_out):
            return checked(m, argument=argument).toarray()
    raise ArgumentError(
        f"{argument} must be a scipy.sparse or cupyx.scipy.sparse matrix, got {type(m).__name__}; "
        "dense arrays and those of sparse24 go to sparse24.compress"
    )


def as_numbers(m: Any, dtype) -> Any:
    """A sparse matrix of bytes as float32 where a type is asked for: they are no bits of fp8."""
    if dtype is None or not _arrays.is_sparse_matrix(m) or m.dtype != np.uint8:
        return m
    return m.astype(np.float32)


def checked(m: Any, *, argument: str) -> Any:
    """A SciPy matrix after a look at its indices, which SciPy itself follows out of bounds."""
    if not _arrays.is_scipy_sparse(m) or m.format not in ("csr", "csc", "bsr", "coo", "lil"):
        return m
    from scipy import sparse

    try:
        if m.format == "coo":  # which looks when it is made
            sparse.coo_array((m.data, m.coords), shape=m.shape)
            return m
        rows = m.tocsr() if m.format == "lil" else m  # lists of which no array looks at the ends
        view = getattr(sparse, f"{rows.format}_array")
        view((rows.data, rows.indices, rows.indptr), shape=m.shape).check_format(full_check=True)
    except ValueError as error:
        raise FormatError(
            f"{argument} is not a valid {m.format} matrix: {error}; rebuild it, for "
            "example with scipy.sparse.coo_array, which checks indices"
        ) from error
    return rows


def as_hybrid(m: Any, size: int) -> Any:
    """A large, nearly empty SciPy matrix of more than `size` elements as a `HybridArray`.

    All else is returned as it is: to make it dense takes less time than to build the other.
    """
    if not _arrays.is_scipy_sparse(m) or m.ndim != 2 or m.dtype not in _dtypes.LOGICAL:
        return m
    if math.prod(m.shape) <= max(size, _SMALL, _NEARLY_EMPTY * m.nnz):
        return m
    from sparse24.formats.hybrid import HybridArray

    return HybridArray.build(checked(m, argument="the operand"))


def dense_beside(array: Any, other: Any) -> Any:
    """A sparse array made dense for a product with `other`, which is one as well.

    fp8 on a GPU, whose dense form is bits, has the type of the product.
    """
    if array._dtype.is_float8 and array.device != "cpu":
        array = array.astype(promote(array._dtype, other._dtype)[0].name)
    return array.toarray()


def seen_anew(csr: Any) -> Any:
    """A view of a CSR matrix, which finds out again whether its columns are in order.

    SciPy and cupyx keep the answer, which is wrong once somebody has written to `indices`.
    """
    if _arrays.is_cupyx_sparse(csr):
        from cupyx.scipy.sparse import csr_matrix as make
    else:
        from scipy.sparse import csr_array as make
    return make((csr.data, csr.indices, csr.indptr), shape=csr.shape)


def to_csr(dense, dtype=None):
    """CSR matrix of a dense 2-D array, on the array's device."""
    if dense.ndim != 2:
        raise ArgumentError(
            f"only a matrix converts to CSR, got {dense.ndim} axes; slice a batch first"
        )
    on_gpu = _arrays.is_cupy(dense)
    dense = _stored(dense, dtype, _fits_cupyx if on_gpu else _fits_scipy)
    if on_gpu:
        from cupyx.scipy import sparse as cupyx_sparse

        return cupyx_sparse.csr_matrix(dense)
    return _csr_by_rows(dense)


def _csr_by_rows(dense: np.ndarray) -> Any:
    """As SciPy makes it, which finds the places of all elements at once, in 16 bytes each."""
    from scipy import sparse

    m, k = dense.shape
    starts = np.concatenate(([0], np.cumsum(np.count_nonzero(dense, axis=1))))
    index = sparse.get_index_dtype(maxval=max(starts[-1], m, k))
    columns, values = np.empty(starts[-1], index), np.empty(starts[-1], dense.dtype)
    step = max(1, _AT_A_TIME // max(1, k))
    for first in range(0, m, step):
        rows = np.ascontiguousarray(dense[first : first + step])
        here = slice(starts[first], starts[first + len(rows)])
        found = np.flatnonzero(rows)
        values[here] = rows.reshape(-1).take(found)
        counts = np.diff(starts[first : first + len(rows) + 1])
        columns[here] = found - np.repeat(k * np.arange(len(rows)), counts)
    csr = sparse.csr_array((values, columns, starts.astype(index)), shape=dense.shape)
    csr.has_canonical_format = True
    return csr


def csr_of(starts, columns, values, shape, dtype=None):
    """CSR matrix from where its rows start and the elements of each, in order, on their device."""
    from scipy import sparse

    if _arrays.is_cupy(values):
        from cupyx.scipy.sparse import csr_matrix as make

        fits = _fits_cupyx
    else:
        make, fits = sparse.csr_array, _fits_scipy
    values = _stored(values, dtype, fits)
    kept = values != 0  # neither -0.0 nor what a narrower type rounds to zero
    if not kept.all():
        starts, columns, values = kept_of(starts, columns, values, kept)
    index = sparse.get_index_dtype(maxval=max(values.size, *shape))
    csr = make((values, columns.astype(index), starts.astype(index)), shape=shape)
    csr.has_canonical_format = True
    return csr


def column_type(k: int) -> Any:
    """The type that holds the numbers of `k` columns."""
    return np.int32 if k <= np.iinfo(np.int32).max else np.int64


def kept_of(starts, columns, values, kept) -> tuple[Any, Any, Any]:
    """CSR arrays of only the elements that `kept` marks: starts, columns and values."""
    xp = _arrays.namespace(values)
    starts = xp.concatenate((starts[:1], xp.cumsum(kept)))[starts]
    return starts, columns[kept], values[kept]


def csr_of_24(values, metadata, shape, dtype):
    """CSR matrix from the canonical values and metadata of a 2:4 matrix, NumPy arrays."""
    from scipy import sparse

    stored = values.shape[-1]
    values = _stored(values, dtype, _fits_scipy)
    columns = _record_parts.columns_of(metadata, stored, sparse.get_index_dtype(maxval=shape[1]))
    kept = values != 0
    starts = np.concatenate(([0], np.cumsum(np.count_nonzero(kept, axis=1))))
    return csr_of(starts, columns[kept], values[kept], shape)


def _stored(values, dtype, fits):
    """The values in a type that the library's sparse matrices store, by default their own."""
    wanted = values.dtype if fits(values.dtype) else np.dtype(np.float32)
    wanted = wanted if dtype is None else _stored_type(dtype, fits)
    if wanted == np.float32 and values.dtype in _dtypes.LOGICAL:
        own = _dtypes.lookup(values.dtype)
        return values if own.logical == wanted else _storage.converted(values, own, FLOAT32)
    return values.astype(wanted, copy=False)


def _stored_type(dtype, fits) -> np.dtype:
    """The type that was asked for, if the library's sparse matrices store it."""
    found = _dtypes.of_numpy(_dtypes.by_name(dtype))
    if found is None or not fits(found):
        raise DTypeError(
            f"dtype must be one that sparse matrices store, such as float32 or float64, got "
            f"{_check.shown(dtype)}; without dtype= what they do not store becomes float32"
        )
    return found


def _fits_cupyx(dtype: np.dtype) -> bool:
    return dtype.name in _CUPYX_TYPES


def _fits_scipy(dtype: np.dtype) -> bool:
    known = dtype.kind in _SCIPY_KINDS and dtype.isnative
    return known and not (dtype.kind == "f" and dtype.itemsize < 4)
