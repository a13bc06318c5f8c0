"""Parts of a `Compressed24`, and several joined; the columns of its elements.

Parts are rows, groups, and matrices of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    a_byte, codes = _spec.CODES_PER_BYTE, _storage.canonical(record)
    each = _one_by_one(codes[..., start // a_byte : -(-stop // a_byte)])
    each = each[..., start % a_byte :][..., : stop - start]
    k = min(_spec.GROUP * stop, record.k) - _spec.GROUP * start
    return _copied(record, values, _in_bytes(each), k=k)


def _one_by_one(codes: Any) -> Any:
    """Canonical codes, a byte each."""
    xp, a_byte = _arrays.namespace(codes), _spec.CODES_PER_BYTE
    each = xp.stack((codes & 0xF, codes >> 4), axis=-1)
    return each.reshape(*codes.shape[:-1], a_byte * codes.shape[-1])


def _in_bytes(each: Any) -> Any:
    """The inverse: two codes a byte, the last one beside that of an empty group."""
    xp, a_byte, count = _arrays.namespace(each), _spec.CODES_PER_BYTE, each.shape[-1]
    even = xp.full((*each.shape[:-1], a_byte * -(-count // a_byte)), _spec.EMPTY_CODE, each.dtype)
    even[..., :count] = each
    return even[..., ::2] | even[..., 1::2] << 4


def joined(records: Sequence[Compressed24], axis: int, *, new: bool) -> Compressed24:
    """Records one after another along an axis, counted from the end, or along a new one.

    Along the last axis all but the last record consist of whole groups.
    """
    first, xp = records[0], _arrays.namespace(records[0].values)
    join = xp.stack if new else xp.concatenate
    values, codes = join([x.values for x in records], axis), [*map(_storage.canonical, records)]
    if axis != -1:
        return _copied(first, values, join(codes, axis))
    each = [_one_by_one(c)[..., : _spec.groups(x.k)] for c, x in zip(codes, records, strict=True)]
    k = sum(x.k for x in records)
    return _copied(first, values, _in_bytes(xp.concatenate(each, axis)), k=k)


def _copied(record: Compressed24, values: Any, metadata: Any, *, k: int | None = None) -> Any:
    xp = _arrays.namespace(values)
    shape = (*values.shape[:-1], record.k if k is None else k)
    values, metadata = _storage.in_rows(values), xp.ascontiguousarray(metadata)
    return _storage.native(Compressed24(values, metadata, None, shape, record.dtype))


def of_batch(record: Compressed24, key: tuple) -> Compressed24:
    """Matrices of a batch, by a key of NumPy for its batch axes.

    Packed codes follow one another: a `Launcher` knows them by their address, and would take those
    of ``A[::2]`` for those of ``A[:2]`` where values, or pieces of them, do not tell these apart.
    """
    metadata, packed = (None if x is None else x[key] for x in (record.metadata, record.packed))
    if packed is not None:
        packed = _arrays.namespace(packed).ascontiguousarray(packed)
    values = picked(record.values, key)
    shape = (*values.shape[:-2], *record.shape[-2:])
    return Compressed24(values, metadata, packed, shape, record.dtype)


def picked(values: Any, key: tuple) -> Any:
    """Stored elements by a key for leading axes: views, or copies in rows as kernels read them.

    Kernels of a GPU do not step backwards through a batch, so there a reversed one is copied, too.
    """
    is_view = all(isinstance(entry, slice) or _check.is_index(entry) for entry in key)
    part = values[key]
    backwards = _arrays.is_cupy(part) and min(part.strides) < 0
    return part if is_view and not backwards else _storage.in_rows(part)


def columns_of(codes: Any, stored: int, dtype: Any = np.int64) -> Any:
    """Column of each of the `stored` elements of a row, by its canonical codes of 2:4.

    Two bits an element, its place in the group, low bits first.  That of filler may be beyond the
    last one.
    """
    xp = _arrays.namespace(codes)
    bits = xp.arange(0, 8, 2, dtype=np.uint8)
    places = (codes[..., None] >> bits & 3).reshape(*codes.shape[:-1], 4 * codes.shape[-1])
    return places[..., :stored] + xp.arange(stored, dtype=dtype) // _spec.KEPT * _spec.GROUP
