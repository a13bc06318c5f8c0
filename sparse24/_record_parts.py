"""Parts of a `Compressed24`: some of its rows, some of its groups, some matrices of a batch."""

from __future__ import annotations

from typing import Any

from sparse24 import _arrays, _spec, _storage
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
    each = xp.stack((codes & 0xF, codes >> 4), axis=-1).reshape(*codes.shape[:-1], -1)
    taken = each[..., start:stop]
    count = _spec.CODES_PER_BYTE * -(-taken.shape[-1] // _spec.CODES_PER_BYTE)
    even = xp.full((*taken.shape[:-1], count), _spec.EMPTY_CODE, taken.dtype)
    even[..., : taken.shape[-1]] = taken
    k = min(_spec.GROUP * stop, record.k) - _spec.GROUP * start
    return _copied(record, values, even[..., ::2] | even[..., 1::2] << 4, k=k)


def _copied(record: Compressed24, values: Any, metadata: Any, *, k: int | None = None) -> Any:
    xp = _arrays.namespace(values)
    values = _storage.in_rows(xp.ascontiguousarray(values))
    shape = (*values.shape[:-1], record.k if k is None else k)
    metadata = xp.ascontiguousarray(metadata)
    return _storage.native(Compressed24(values, metadata, None, shape, record.dtype))


def of_batch(record: Compressed24, key: Any) -> Compressed24:
    """Matrices of a batch, by a key of NumPy for its batch axes; views."""
    whole: tuple[Any, ...] = (record.values, record.metadata, record.packed)
    values, metadata, packed = (None if x is None else x[key] for x in whole)
    assert values is not None
    shape = (*values.shape[:-2], *record.shape[-2:])
    return Compressed24(values, metadata, packed, shape, record.dtype)
