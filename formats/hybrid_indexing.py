"""Parts of a hybrid matrix by NumPy's keys: of its dense form, or, where that is large, of CSR."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sparse24 import _arrays, _check
from sparse24._errors import ArgumentError
from sparse24.formats import convert, hybrid_build, hybrid_runs, indexing
from sparse24.formats import hybrid_tiles as ht
from sparse24.formats.hybrid_listed import ListedRows, row_numbers, rows_between, with_columns
from sparse24.kernels.csr import CsrRows

Stored = ht.Tiles | ListedRows

# Places that are made dense in the time that SciPy's indexing takes, and those of which also a
# matrix is built again in that time (measured from 1 to 20 % non-zeros).
DECODED, REBUILT = 1 << 20, 1 << 13
# A smaller part of a matrix than one in so many is found sooner in its own tiles than in the rows
# that products read.
SMALL_PART = 8


def part_of(h: Any, key: Any) -> Any:
    """``h[key]``: a hybrid matrix, or a dense array where it has one axis or none."""
    _refuse_more_axes(_axes_of(key))  # before there is an array of all of them
    taken = hybrid_runs.part(h, key)
    if taken is not None:
        return type(h)(*taken, h.n_hint)
    try:
        part = _of_ready_rows(h, key) if h.is_less_as_csr else None
        part = _of_stored(h, key) if part is None else part
    except IndexError as error:
        raise indexing.out_of_range(error) from error
    is_built = isinstance(part, type(h)) or part.ndim < 2
    return part if is_built else type(h).build(part, n_hint=h.n_hint)


def _of_ready_rows(h: Any, key: Any) -> Any | None:
    """A large part of rows that products have made and read; None where there are none."""
    ready, entries = h.read_by_products(), _of_both_axes(key)
    if ready is None or entries is None:
        return None
    cuts = [_cut(entry, size) for entry, size in zip(entries, h.shape, strict=True)]
    places = math.prod(n if c is None else c[1] - c[0] for c, n in zip(cuts, h.shape, strict=True))
    if places * SMALL_PART < h.size or places <= _most_decoded(entries):
        return None
    return _of_csr(h, CsrRows(*ready), h.shape, entries)


def _of_stored(h: Any, key: Any) -> Any:
    """A part of the tiles or the rows that are stored; a matrix may be dense."""
    stored, key = _stored_at(h.stored, key)
    places, entries = math.prod(stored.shape), _of_both_axes(key) if h.is_less_as_csr else None
    if entries is not None and places > _most_decoded(entries):
        return _of_csr(h, hybrid_build.rows_on_cpu(stored), stored.shape, entries)
    if h.is_less_as_csr and places > DECODED:
        return _at_places(h, stored, key)
    return hybrid_build.decode(stored)[key]


def _most_decoded(entries: tuple[Any, Any]) -> int:
    """Places up to which a part by keys of both axes is taken from the dense form."""
    return DECODED if any(map(_check.is_index, entries)) else REBUILT


def _refuse_more_axes(ndim: int) -> None:
    if ndim > 2:
        raise ArgumentError(
            f"a hybrid matrix has two axes, and the key gives {ndim}; use .toarray()[...]"
        )


def _axes_of(key: Any) -> int:
    """How many axes a part by a key of NumPy's has, if there is one."""
    entries = key if isinstance(key, tuple) else (key,)
    indexing.check_kinds(entries)
    given = [x for x in entries if x is not None and x is not Ellipsis]
    picked = [_axes_and_kind(x) for x in given if not isinstance(x, slice)]
    taken = sum(axes if keeps else 1 for axes, keeps in picked)
    made = max((1 if keeps else axes for axes, keeps in picked), default=0)
    return max(0, 2 - taken) + made + sum(x is None for x in entries)


def _axes_and_kind(entry: Any) -> tuple[int, bool]:
    """The axes of an entry that is no slice, and whether it holds booleans."""
    index = entry if _arrays.is_cupy(entry) else np.asarray(entry)
    return index.ndim, index.dtype == bool


def _stored_at(stored: Stored, key: Any) -> tuple[Stored, Any]:
    """The tiles or rows that hold the elements of a key of NumPy's, and the key for these alone.

    All along an axis, unless its entry is a number or a slice; all columns of listed rows, and on
    a GPU.
    """
    entries: tuple[Any, ...] = key if isinstance(key, tuple) else (key,)
    rows = _cut(entries[0], stored.shape[0]) if entries else None
    both = len(entries) == 2 and not _adds_an_axis(entries[0])
    columns = _cut(entries[1], stored.shape[1]) if both else None
    if rows is not None:
        first, last, here = rows
        stored, entries = stored.rows(first, last), (here, *entries[1:])
    if columns is not None and isinstance(stored, ht.Tiles) and not _arrays.is_cupy(stored.kinds):
        first, last, here = columns
        stored, entries = stored.columns(first, last), (entries[0], here)
    return stored, entries


def _adds_an_axis(entry: Any) -> bool:
    """Whether an entry stands for a new axis, so that the one behind it is that of rows."""
    return entry is None or (np.ndim(entry) == 0 and np.asarray(entry).dtype == bool)


def _cut(entry: Any, size: int) -> tuple[int, int, Any] | None:
    """Between which places the elements of an entry lie, from the start of a tile on, and the
    entry for these alone; None for what is no number and no slice, or empty.
    """
    if isinstance(entry, slice):
        indexing.check_slice(entry)
        taken = range(size)[entry]
    elif _check.is_index(entry) and -size <= entry < size:
        taken = range(size)[entry:][:1]
    else:
        return None
    if not taken:
        return None
    low, high = sorted((taken[0], taken[-1]))
    first = low // ht.TILE * ht.TILE
    here: Any = taken.start - first
    if isinstance(entry, slice):
        stop = taken.stop - first
        here = slice(here, stop if stop >= 0 else None, taken.step)
    return first, high + 1, here


def _of_both_axes(key: Any) -> tuple[Any, Any] | None:
    """The key of rows and that of columns, if an element's row and column depend on one each.

    None for other keys, and for two numbers beside an ellipsis: these give an array without axes,
    and no number.
    """
    entries = key if isinstance(key, tuple) else (key,)
    dots = [i for i, entry in enumerate(entries) if entry is Ellipsis]
    if len(dots) > 1 or len(entries) - len(dots) > 2:
        return None
    at = dots[0] if dots else len(entries)
    missing = 2 - (len(entries) - len(dots))
    entries = (*entries[:at], *(indexing.ALL,) * missing, *entries[at + 1 :])
    if dots and all(map(_check.is_index, entries)):
        return None
    shapes = [np.shape(x) for x in entries if not (isinstance(x, slice) or _check.is_index(x))]
    match shapes:
        case [] | [(_,)]:
            return entries
        case [(_, 1), (_,) | (1, _)] if not any(np.asarray(x).dtype == bool for x in entries):
            return np.ravel(entries[0]), np.ravel(entries[1])  # as `numpy.ix_` makes them
    return None


def _at_places(h: Any, stored: Stored, key: Any) -> Any:
    """The elements of any key as a dense array or a number; their places are found by NumPy."""
    m, k = stored.shape
    rows = np.broadcast_to(np.arange(m)[:, None], stored.shape)[key]
    columns = np.broadcast_to(np.arange(k), stored.shape)[key]
    values = np.zeros(rows.shape, h.dtype)
    if rows.size:  # SciPy has no such part
        bits = _in_scipy(hybrid_build.rows_on_cpu(stored), stored.shape)
        found = np.asarray(bits[rows.ravel(), columns.ravel()])
        values.reshape(-1)[:] = found.view(h.dtype)
    return values if isinstance(rows, np.ndarray) else values[()]


def _in_scipy(csr: CsrRows, shape: tuple[int, int]) -> Any:
    """A CSR array of the bits of the elements, as SciPy knows no bfloat16; shares them."""
    from scipy import sparse

    csr = with_columns(csr, convert.column_type(shape[1]))
    return sparse.csr_array((csr.bits, csr.columns, csr.starts), shape=shape)


def _of_csr(h: Any, csr: CsrRows, shape: tuple[int, int], entries: tuple[Any, Any]) -> Any:
    """A part by keys of rows and columns, of which nothing becomes dense."""
    m, k = shape
    rows, across = _taken(entries[0], m), _taken(entries[1], k)
    if isinstance(rows, slice) and rows.step in (None, 1):
        first, last, _ = rows.indices(m)
        m = max(0, last - first)
        csr, rows = rows_between(csr, first, first + m), indexing.ALL
    whole = rows is indexing.ALL and across is indexing.ALL
    csr, shape = (csr, (m, k)) if whole else _picked(csr, (m, k), rows, across)
    dropped = tuple(0 if _check.is_index(x) else indexing.ALL for x in entries)
    if dropped == (indexing.ALL, indexing.ALL):
        csr = with_columns(csr, convert.column_type(shape[1]))
        return h._of_rows(csr, shape, shared=whole)
    dense = np.zeros(shape, h.dtype)
    dense[row_numbers(csr.starts, csr.bits.size), csr.columns] = csr.bits.view(h.dtype)
    return dense[dropped]


def _picked(
    csr: CsrRows, shape: tuple[int, int], rows: Any, across: Any
) -> tuple[CsrRows, tuple[int, int]]:
    """Rows, columns or both of non-zeros, in new arrays, and their shape."""
    from sparse24.kernels import cpu_hybrid_held

    m, k = shape
    if rows is not indexing.ALL:  # first, so that others take no time
        rows = np.arange(m)[rows] if isinstance(rows, slice) else rows
        csr, m = CsrRows(*cpu_hybrid_held.rows_at(*csr, rows)), rows.size
    if across is indexing.ALL:
        return csr, (m, k)
    if isinstance(across, np.ndarray) and across.size == 1:  # in no time for the other columns
        at = np.flatnonzero(csr.columns == across[0])
        none = np.zeros(at.size, csr.columns.dtype)
        return CsrRows(np.searchsorted(at, csr.starts), none, csr.bits[at]), (m, 1)
    found = _in_scipy(csr, (m, k))[:, across]
    found.sort_indices()
    return CsrRows(found.indptr.astype(np.int64), found.indices, found.data), found.shape


def _taken(entry: Any, size: int) -> Any:
    """An entry of a key as a slice, `indexing.ALL` if of all, or an array of numbers."""
    if isinstance(entry, slice):
        return indexing.ALL if range(size)[entry] == range(size) else entry
    if _check.is_index(entry) and -size <= entry < size:
        return np.atleast_1d(range(size)[entry])  # of a long axis no array is made
    return np.atleast_1d(np.arange(size)[entry if _check.is_index(entry) else _index(entry)])


def _index(entry: Any) -> np.ndarray:
    index = np.asarray(entry)
    return index.astype(np.intp) if not index.size and index.dtype != bool else index
