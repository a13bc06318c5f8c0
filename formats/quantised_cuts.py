"""Rows, columns and matrices of quantised arrays, and several joined into one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from sparse24 import _arrays, _devices, _quantised, _spec
from sparse24._errors import ArgumentError, ShapeError
from sparse24._quantised import GROUP, Parts
from sparse24._records import Compressed24, Operand24
from sparse24.formats.indexing import Indexing, is_slice
from sparse24.formats.joining import Joining
from sparse24.kernels.bricks import ROWS

_FOURS = GROUP // _spec.GROUP  # groups of four that share a scale


class QuantisedCuts(Joining, Indexing):
    """What `Indexing` and `Joining` ask of a format of bricks, which stay whole where they can."""

    __slots__ = ()

    _operand: Operand24
    bits: Any
    dequantise: Any
    device: Any
    _oriented: Any
    _dtype: Any

    @classmethod
    def _of(cls, record: Compressed24) -> Self:
        return cls(Operand24(record, None, None, record.shape, record.dtype))  # type: ignore[call-arg]

    def _made_of(self, parts: Parts, shape: tuple[int, ...]) -> Self:
        return self._of(_quantised.record_of(parts, shape, self.bits, self._dtype))

    def _parts(self) -> Parts:
        return _quantised.parts_of(self._operand.stored)

    @_devices.on_own_device
    def _matrices(self, key) -> Self:
        return self._oriented(_quantised.matrices(self._operand.stored, key))

    @_devices.on_own_device
    def _stored_rows(self, rows) -> Self:
        record = self._operand.stored
        if is_slice(rows):  # only the blocks that it meets are taken apart
            start, stop, _ = rows.indices(record.m)
            stop, first = max(start, stop), start // ROWS
            record = _quantised.row_blocks(record, first, -(-stop // ROWS))
            if start % ROWS == 0 and record.m == stop - start:
                return self._of(record)
            rows = slice(start - first * ROWS, stop - first * ROWS)
        parts = Parts(*(x[..., rows, :] for x in _quantised.parts_of(record)))
        return self._made_of(parts, (*parts.integers.shape[:-1], record.k))

    @_devices.on_own_device
    def _stored_groups(self, start: int, stop: int) -> Any:
        first, whole = start // _FOURS, self._operand.stored
        cut = self._of(_quantised.column_blocks(whole, first, -(-stop // _FOURS)))
        start, stop = start - first * _FOURS, stop - first * _FOURS
        if start == 0 and stop * _spec.GROUP >= cut.shape[-1]:
            return cut
        return cut.dequantise()._stored_groups(start, stop)

    @_devices.on_own_device
    def _joined(self, arrays: Sequence[Self], axis: int, *, new: bool) -> Self:
        if len({array.bits for array in arrays}) > 1:
            raise ArgumentError(
                "arrays with integers of 4 and of 8 bits cannot be joined; quantise them with the "
                "same bits="
            )
        if axis < -2:
            return self._of(_quantised.stacked([x._operand.stored for x in arrays], axis, new=new))
        if axis == -1 and any(array.shape[-1] % GROUP for array in arrays[:-1]):
            raise ShapeError(
                f"along the groups arrays are joined whose columns are multiples of {GROUP}, as "
                f"so many share a scale, got shapes {[array.shape for array in arrays]}; join what "
                "their .dequantise() gives"
            )
        xp = _arrays.namespace(arrays[0]._operand.stored.values)
        each = [array._parts() for array in arrays]
        parts = Parts(*(xp.concatenate(part, axis=axis) for part in zip(*each)))
        shape = list(arrays[0].shape)
        shape[axis] = sum(array.shape[axis] for array in arrays)
        return self._made_of(parts, tuple(shape))
