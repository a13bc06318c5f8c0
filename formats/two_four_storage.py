"""The stored records of a 2:4 array, what is derived from them, and arrays of their parts."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from sparse24 import (
    _arrays,
    _devices,
    _elementwise,
    _excess,
    _record_parts,
    _storage,
)
from sparse24._records import Compressed24, Operand24
from sparse24.formats import reductions
from sparse24.formats.indexing import Indexing, is_slice
from sparse24.formats.joining import Joining
from sparse24.formats.products_24 import Products24
from sparse24.formats.transposes import KeptTranspose


class Sparse24Storage(KeptTranspose, Joining, Indexing, Products24):
    """The records of a `Sparse24Array`; dense forms and products are its own."""

    __slots__ = ("_cache", "_operand", "_plans", "_status", "_transpose")

    _cache: dict[str, Any]
    _status: Any

    def __init__(self, operand: Operand24, status: Any = None):
        self._take(operand, maker="sparse24.compress(x)")
        object.__setattr__(self, "_status", status)
        object.__setattr__(self, "_cache", {})  # metadata in the other order, made at first use

    # --- what it is ---------------------------------------------------------------------

    @property
    def transposable(self) -> bool:
        return self._operand.rows is not None and self._operand.columns is not None

    @property
    @_devices.on_own_device
    def nnz(self) -> int:
        """Number of non-zero elements (waits for the device)."""
        return int(_arrays.not_zero(self._operand.stored.values, self._dtype).sum())

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays held: both orientations, a kept dense matrix, and derived layouts."""
        records = (self._operand.rows, self._operand.columns)
        arrays = [self._operand.dense, *self._cache.values()]
        other = self._known_transpose()
        if self.transposable and other is not None:
            arrays += other._cache.values()
        arrays += [x for record in records if record for x in _storage.arrays(record)]
        return sum(x.nbytes for x in arrays if x is not None)

    @property
    def values(self):
        """Stored elements (..., m, 2 * ceil(k / 4)); fp8 as ``uint8`` on the GPU.

        Of the transposed matrix if `axis` is -2.  On the CPU a view that cannot be written to.
        """
        return _arrays.read_only(self._operand.stored.values)

    @property
    def metadata(self):
        """Canonical codes, uint8 (..., m, ceil(k / 8)), two per byte: see :ref:`layout`."""
        return self._converted("metadata", _storage.canonical)

    @property
    def packed(self):
        """The codes in the order of the tensor cores, uint8 (..., K atoms, M atoms, 1024)."""
        return self._converted("packed", _storage.packed)

    def _converted(self, name: str, convert):
        record = self._operand.stored
        there = getattr(record, name)
        if there is not None:
            return _arrays.read_only(there)
        found = self._cache.get(name)
        if found is None:
            with _devices.on_device(self.device):
                found = convert(record)
                if _arrays.is_cupy(found) and _arrays.is_capturing():
                    return found  # which holds nothing until the graph runs
                _arrays.settle(found)
            self._cache[name] = found
        return _arrays.read_only(found)

    def _for_reduction(self, axis) -> Any:
        return reductions.OfRows.of(self, axis) or super()._for_reduction(axis)

    def check(self) -> None:
        """Raise the `PatternError` that ``compress(check="deferred")`` put off.

        A part of an array raises that of the whole.  Waits for the device.
        """
        _excess.refuse(self._status, self._operand.stored.shape, axis=self.axis)

    @property
    def mT(self) -> Self:
        """The array with its last two axes exchanged; nothing is copied."""
        return self._kept_transpose(self._transposed)

    def _transposed(self) -> Self:
        transposed = type(self)(self._operand.transposed(), status=self._status)
        if not self.transposable:  # then what is stored is the same
            object.__setattr__(transposed, "_cache", self._cache)
        return transposed

    @_devices.on_own_device
    def copy(self) -> Self:
        """A deep copy."""
        return self._map(_storage.copy, self._dtype, dense=lambda d: d.copy())

    def _moved(self, mover) -> Self:
        return self._map(lambda record: _storage.move(record, mover), self._dtype, dense=mover)

    def _map(self, record_function, dtype, *, dense=None) -> Self:
        old = self._operand
        apply = lambda record: None if record is None else record_function(record)  # noqa: E731
        kept = dense(old.dense) if dense is not None and old.dense is not None else None
        rows, columns = apply(old.rows), apply(old.columns)
        return type(self)(Operand24(rows, columns, kept, old.shape, dtype), status=self._status)

    def _elements(self):
        return (self._operand.stored.values,)

    def _fields(self):
        return self._operand, _excess.waited(self._status)

    @_devices.on_own_device
    def _matrices(self, key) -> Self:
        picked = self._map(lambda record: _record_parts.of_batch(record, key), self._dtype)
        old = picked._operand
        shape = (*old.stored.shape[:-2], *self.shape[-2:])
        status = _excess.of_whole(self._status, self._operand.stored.shape)
        return type(self)(Operand24(old.rows, old.columns, None, shape, self._dtype), status)

    @_devices.on_own_device
    def _stored_rows(self, rows) -> Self:
        stored = self._operand.stored
        if self.ndim > 2 or not is_slice(rows):
            return self._part(_record_parts.rows_at(stored, rows))
        start, stop, _ = rows.indices(stored.m)
        return self._part(_record_parts.rows(stored, start, max(start, stop)))

    @_devices.on_own_device
    def _stored_groups(self, start: int, stop: int) -> Self:
        return self._part(_record_parts.groups(self._operand.stored, start, stop))

    @_devices.on_own_device
    def _joined(self, arrays, axis: int, *, new: bool) -> Self:
        for array in arrays:
            array.check()  # the result has no check to make up
        stored = [array._operand.stored for array in arrays]
        record = _record_parts.joined(stored, axis, new=new)
        return type(self)(Operand24(record, None, None, record.shape, self._dtype))

    def _part(self, record: Compressed24) -> Self:
        status = _excess.of_whole(self._status, self._operand.stored.shape)
        return type(self)(Operand24(record, None, None, record.shape, self._dtype), status)

    @_devices.on_own_device
    def _elementwise(self, ufunc, factor, result) -> Self:
        old = self._operand
        transposed = factor.swapaxes(-1, -2) if np.ndim(factor) else factor
        rows, columns = (
            None if record is None else _elementwise.of_record(ufunc, record, by, result)
            for record, by in ((old.rows, factor), (old.columns, transposed))
        )
        return type(self)(Operand24(rows, columns, None, old.shape, result), self._status)
