"""Arithmetic that keeps zeros, of a hybrid matrix: in its tiles where that is possible."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from sparse24 import _arrays, _elementwise, _storage
from sparse24._dtypes import DType
from sparse24._errors import DTypeError
from sparse24.formats import convert, hybrid_build
from sparse24.formats import hybrid_tiles as ht
from sparse24.formats.hybrid_listed import of_each, row_numbers


@dataclasses.dataclass(frozen=True)
class SparseFactor:
    """A factor of the shape of the matrix, in canonical CSR without zeros; nothing becomes dense.

    SciPy may hold it in a wider type than its own, `dtype`.
    """

    csr: Any
    dtype: np.dtype
    ndim = 2

    def at(self, starts: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """The elements at the places of another matrix in CSR; most may be zeros."""
        theirs = self.csr.indptr, self.csr.indices
        if np.array_equal(starts, theirs[0]) and np.array_equal(columns, theirs[1]):
            return self.csr.data.astype(self.dtype, copy=False)
        (number, is_ours), (place, is_theirs) = (
            _numbered(at, across, self.csr.shape) for at, across in ((starts, columns), theirs)
        )
        found = np.zeros(columns.size, self.dtype)
        at_both = place.multiply(is_ours).data - 1
        found[number.multiply(is_theirs).data - 1] = self.csr.data[at_both]
        return found


def _numbered(starts: np.ndarray, columns: np.ndarray, shape: tuple[int, int]) -> tuple[Any, Any]:
    """Matrices in CSR: of the numbers of its elements, from 1 on, and of True at their places."""
    from scipy import sparse

    count = columns.size
    index = sparse.get_index_dtype(maxval=max(count, *shape))
    places = columns.astype(index), starts.astype(index)
    of_each = np.arange(1, count + 1, dtype=index), np.ones(count, bool)
    numbers, marks = (sparse.csr_array((x, *places), shape=shape) for x in of_each)
    return numbers, marks


def sparse_factor(h: Any, factor: Any) -> SparseFactor | None:
    """A factor that is sparse as well, on the CPU and of the shape of `h`; None of any other."""
    if isinstance(factor, type(h)) and factor.shape == h.shape and factor.is_less_as_csr:
        return SparseFactor(factor.tocsr(), factor.dtype)
    if not _arrays.is_scipy_sparse(factor) or factor.shape != h.shape:
        return None
    csr = convert.seen_anew(convert.checked(factor, argument="the factor").tocsr()).copy()
    csr.sum_duplicates()
    csr.eliminate_zeros()
    return SparseFactor(csr, csr.dtype)


def elementwise(h: Any, ufunc: np.ufunc, factor: Any, result: DType) -> Any:
    """`ufunc` of the elements of a `HybridArray` `h` and a factor; by CSR where that is less."""
    dtype = h._dtype
    if result.name not in ht.DTYPES:
        raise DTypeError(
            f"elements of {dtype.name} and the factor give {result.name}, which a hybrid matrix "
            "does not hold; convert one of them with .astype(...)"
        )
    if h._tiles.source.is_listed:
        return _of_listed(h, ufunc, factor, result)
    if result is dtype and (h.device == "cpu" or not np.ndim(factor)):
        in_tiles = _in_tiles(h, ufunc, factor)
        if in_tiles is not None:
            return in_tiles
    if h.is_less_as_csr:
        source = _in_csr(h, ufunc, factor, result)
    else:
        source = _elementwise.of_values(ufunc, h.toarray(), dtype, factor, result)
    return type(h).build(source, n_hint=h.n_hint, dtype=result)


def _of_listed(h: Any, ufunc: np.ufunc, factor: Any, result: DType) -> Any:
    """The result of a matrix of which the rows are stored: nothing becomes dense, nor a tile."""
    stored = h.stored
    if np.ndim(factor):
        factor = _of_csr(factor, stored.csr.starts, stored.csr.columns)
        factor = factor[None]
    made = _elementwise.of_values(ufunc, stored.elements[0][None], h._dtype, factor, result)[0]
    left = stored.with_values(made, result)
    return type(h)(left, left.nnz, h.n_hint)


def _in_tiles(h: Any, ufunc: np.ufunc, factor: Any) -> Any | None:
    """The result in tiles of the same kinds, unless an element becomes zero."""
    tiles, dtype = h.tiles, h._dtype
    stored = (tiles.values, tiles.overflow_values)
    factors = _at_places(tiles, factor) if np.ndim(factor) else (factor, factor)
    values, overflow = (
        _elementwise.of_values(ufunc, held[None], dtype, by, dtype)[0]
        for held, by in zip(stored, factors, strict=True)
    )
    made = _of_same_kinds(h, values, overflow, dtype)
    return made if made.nnz == h.nnz else None


def converted(h: Any, dtype: DType) -> Any:
    """The matrix in another type, on the CPU; tiles are built anew if an element becomes zero."""
    values, overflow = (_storage.converted(x, h._dtype, dtype) for x in h.tiles.elements)
    made = _of_same_kinds(h, values, overflow, dtype)
    if made.nnz == h.nnz:
        return made
    source = made.tocsr() if made.is_less_as_csr else made.toarray()
    return type(h).build(source, n_hint=h.n_hint, dtype=dtype)


def _of_same_kinds(h: Any, values: Any, overflow: Any, dtype: DType) -> Any:
    """The matrix with other elements in place of its own, of which some may be zeros."""
    left = sum(int(_arrays.not_zero(x, dtype).sum()) for x in (values, overflow))
    tiles = dataclasses.replace(h.tiles, dtype=dtype, values=values, overflow_values=overflow)
    return type(h)(tiles, left, h.n_hint)


def _at_places(tiles: ht.Tiles, factor: Any) -> tuple[np.ndarray, np.ndarray]:
    """The factors of stored values, and those of overflow, on the CPU; 1 for stored zeros.

    Unless there is one for each row, or for each column, tiles are read row by row with numbers in
    place of their elements, which say where the factor of each place of the matrix belongs.
    """
    from sparse24.kernels import cpu_hybrid_held

    if not isinstance(factor, SparseFactor) and factor.size and 0 in factor.strides:
        by_row = factor.strides[1] == 0
        line = np.ascontiguousarray(factor[:, 0] if by_row else factor[0])
        return cpu_hybrid_held.factors_of(hybrid_build.as_bits(tiles), line, by_row=by_row)
    kept = np.concatenate([_arrays.not_zero(x, tiles.dtype) for x in tiles.elements])
    first_of_overflow = tiles.values.size
    numbers = np.arange(1, kept.size + 1, dtype=np.min_scalar_type(max(kept.size, 1 << 16)))
    numbers[~kept] = 0
    values, overflow = numbers[:first_of_overflow], numbers[first_of_overflow:]
    numbered = dataclasses.replace(tiles, values=values, overflow_values=overflow)
    starts, columns, number = cpu_hybrid_held.held(numbered)
    of_each = np.ones(kept.size + 1, factor.dtype)  # the first is of no element
    of_each[number] = _of_csr(factor, starts, columns)
    return of_each[1 : first_of_overflow + 1], of_each[first_of_overflow + 1 :]


def _of_csr(factor: Any, starts: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """The factors of elements in CSR."""
    if isinstance(factor, SparseFactor):
        return factor.at(starts, columns)
    if factor.strides[0] == 0:  # broadcast along an axis, so no pairs of places are looked up
        return factor[:1].reshape(-1).take(columns)
    if factor.strides[1] == 0 and factor.size:
        return of_each(factor[:, 0], starts, columns.size)
    return factor[row_numbers(starts, columns.size), columns]


def _in_csr(h: Any, ufunc: np.ufunc, factor: Any, result: DType) -> Any:
    """The result in SciPy's CSR, for which nothing is made dense."""
    starts, columns, bits = h.held()
    if np.ndim(factor):
        factor = _of_csr(factor, starts, columns)
    values = bits.view(h._dtype.logical)
    made = _elementwise.of_values(ufunc, values, h._dtype, factor, result)
    return convert.csr_of(starts, columns, made, h.shape)
