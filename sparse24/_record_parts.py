"""Parts of a `Compressed24`: rows, groups, matrices of a batch; and the columns of its elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparse24 import _arrays, _check, _spec, _storage
from sparse24._records import Compressed24


def rows(record: Compressed24, start: int, stop: int) -> Compressed24:
    """Rows start:stop of a matrix; values and canonical metadata are views."""
    values = record.values[start:stop]
    if record.packed is not None and start % _spec.ATOM_M == 0:
        atoms = slice(start // _spec.ATOM_M, -(-stop // _spec.ATOM_M))
        xp = _arrays.namespace(record.packed)
        packed_part = xp.ascontiguousarray(record.packed[:, atoms])
    else:
        packed_part = None
    metadata = record.metadata
    if metadata is None and packed_part is None:
        metadata = _storage.canonical(record)
    metadata_part = None if metadata is None else metadata[start:stop]
    shape = (stop - start, record.k)
    part = Compressed24(values, metadata_part, packed_part, shape, record.dtype)
    return _storage.native(part) if packed_part is None else part


def rows_at(record: Compressed24, index: Any) -> Compressed24:
    """Rows by a slice or an array of their numbers, copied."""
    return _copied(record, record.values[..., index, :], _storage.canonical(record)[..., index, :])


def groups(record: Compressed24, start: int, stop: int) -> Compressed24:
    """Groups start:stop of every row, copied; canonical codes are two a byte."""
    values = record.values[..., _spec.KEPT * start : _spec.KEPT * stop]
    codes = _storage.canonical(record)
    xp = _arrays.namespace(codes)
    each = xp.stack((codes & 0xF, codes >> 4), axis=-1)
    each = each.reshape(*codes.shape[:-1], _spec.CODES_PER_BYTE * codes.shape[-1])
    taken = each[..., start:stop]
    count = _spec.CODES_PER_BYTE * -(-taken.shape[-1] // _spec.CODES_PER_BYTE)
    even = xp.full((*taken.shape[:-1], count), _spec.EMPTY_CODE, taken.dtype)
    even[..., : taken.shape[-1]] = taken
    k = min(_spec.GROUP * stop, record.k) - _spec.GROUP * start
    return _copied(record, values, even[..., ::2] | even[..., 1::2] << 4, k=k)


def _copied(record: Compressed24, values: Any, metadata: Any, *, k: int | None = None) -> Any:
    xp = _arrays.namespace(values)
    shape = (*values.shape[:-1], record.k if k is None else k)
    values, metadata = _storage.in_rows(values), xp.ascontiguousarray(metadata)
    return _storage.native(Compressed24(values, metadata, None, shape, record.dtype))


def of_batch(record: Compressed24, key: tuple) -> Compressed24:
    """Matrices of a batch, by a key of NumPy for its batch axes."""
    metadata, packed = (None if x is None else x[key] for x in (record.metadata, record.packed))
    values = picked(record.values, key)
    shape = (*values.shape[:-2], *record.shape[-2:])
    return Compressed24(values, metadata, packed, shape, record.dtype)


def picked(values: Any, key: tuple) -> Any:
    """Stored elements by a key for leading axes: views, or copies in rows as kernels read them."""
    is_view = all(isinstance(entry, slice) or _check.is_index(entry) for entry in key)
    return values[key] if is_view else _storage.in_rows(values[key])


def columns_of(codes: Any, stored: int, dtype: Any = np.int64) -> Any:
    """Column of each of the `stored` elements of a row, by its canonical codes of 2:4.

    Two bits an element, its place in the group, low bits first.  That of filler may be beyond the
    last one.
    """
    xp = _arrays.namespace(codes)
    bits = xp.arange(0, 8, 2, dtype=np.uint8)
    places = (codes[..., None] >> bits & 3).reshape(*codes.shape[:-1], 4 * codes.shape[-1])
    return places[..., :stored] + xp.arange(stored, dtype=dtype) // _spec.KEPT * _spec.GROUP
