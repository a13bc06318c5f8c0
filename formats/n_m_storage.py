"""The stored parts of an n:m array, its dense form, and other arrays derived from the parts."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from sparse24 import _arrays, _devices, _dtypes, _elementwise, _record_parts, _row_blocks, _storage
from sparse24.formats import n_m_parts, reductions
from sparse24.formats.base import SparseArray, made_by
from sparse24.formats.indexing import Indexing
from sparse24.formats.joining import Joining
from sparse24.formats.transposes import KeptTranspose


class NMStorage(KeptTranspose, Joining, Indexing, SparseArray):
    """The parts of an `NMArray`; the products are its own."""

    __slots__ = (
        "_axis", "_cache", "_dtype", "_indices", "_pattern", "_plans", "_rows_shape", "_transpose",
        "_values",
    )  # fmt: skip

    _axis: int
    _cache: dict[str, Any]
    _indices: Any
    _pattern: tuple[int, int]
    _plans: dict[Any, Any]
    _rows_shape: tuple[int, ...]
    _values: Any

    def __init__(
        self, values, indices=None, shape=None, pattern=None, dtype: Any = None, axis: int = -1
    ):
        if type(dtype) is not _dtypes.DType:
            raise made_by(self, values, "sparse24.compress(x, pattern=(n, m))")
        fields = {
            "_values": values,
            "_indices": indices,
            "_rows_shape": tuple(shape),  # (..., m, k), groups along the last axis
            "_pattern": tuple(pattern),
            "_dtype": dtype,
            "_axis": axis,
            "_cache": {},  # the forms that products take, made at first use
            "_plans": {},  # prepared products, by signature of the other operand
            "_transpose": None,
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    # --- what it is ---------------------------------------------------------------------

    @property
    def pattern(self) -> tuple[int, int]:
        return self._pattern

    @property
    def axis(self) -> int:
        return self._axis

    @property
    def shape(self) -> tuple[int, ...]:
        *batch, rows, k = self._rows_shape
        return (*batch, rows, k) if self._axis == -1 else (*batch, k, rows)

    @property
    def values(self):
        return _arrays.read_only(self._values)

    @property
    def indices(self):
        return _arrays.read_only(self._indices)

    @property
    def device(self) -> str:
        return _arrays.device_of(self._values)

    @property
    @_devices.on_own_device
    def nnz(self) -> int:
        """Number of non-zero elements (waits for the device)."""
        return int(_arrays.not_zero(self._values, self._dtype).sum())

    @property
    def nbytes(self) -> int:
        """Bytes of values and indices, and of the layouts that products have derived from them."""
        other = self._known_transpose()
        views = (self,) if other is None else (self, other)
        made = sum(array.nbytes for view in views for array in tuple(view._cache.values()))
        return self._values.nbytes + self._indices.nbytes + made

    def __repr__(self) -> str:
        n, m = self._pattern
        return (
            f"<NMArray: pattern {n}:{m}, shape {self.shape}, dtype {self._dtype.name}, axis "
            f"{self._axis}, on {self.device}, {self.nbytes} bytes "
            f"(dense: {self.size * self._dtype.itemsize})>"
        )

    def _for_reduction(self, axis) -> Any:
        return reductions.OfRows.of(self, axis) or super()._for_reduction(axis)

    # --- conversions --------------------------------------------------------------------

    @_devices.on_own_device
    def toarray(self, out=None):
        """Return the dense array (..., m, k), on the same device.

        Parameters
        ----------
        out : array, optional
            Where to write it; shape and dtype of the result.

        Returns
        -------
        array, shape (..., m, k)
            `out`, if that is given; fp8 on a GPU as bits (``uint8``).

        Raises
        ------
        ShapeError, DTypeError, ArgumentError
            If `out` does not fit or is read-only.
        """
        return _storage.dense_into(
            out, self._decompressed, self.shape, self._dtype, like=self._values
        )

    def _decompressed(self):
        dense = n_m_parts.decompress(
            self._values, self._indices, self._dtype, self._pattern, self._rows_shape[-1]
        )
        return dense if self._axis == -1 else dense.swapaxes(-1, -2)

    @property
    def mT(self) -> Self:
        """The array with its last two axes exchanged; nothing is copied."""
        return self._kept_transpose(lambda: self._with(axis=-3 - self._axis))

    def _astype(self, dtype: _dtypes.DType) -> Self:
        return self._with(values=_storage.converted(self._values, self._dtype, dtype), dtype=dtype)

    @_devices.on_own_device
    def copy(self) -> Self:
        """A deep copy."""
        return self._with(values=self._values.copy(), indices=self._indices.copy())

    def _moved(self, mover) -> Self:
        values = _storage.move_values(self._values, self._dtype, mover)
        return self._with(values=values, indices=mover(self._indices))

    def _elements(self):
        return (self._values,)

    def _fields(self):
        shape, dtype = self._rows_shape, self._dtype
        return self._values, self._indices, shape, self._pattern, dtype, self._axis

    @_devices.on_own_device
    def _matrices(self, key) -> Self:
        return self._part(_record_parts.picked(self._values, key), self._indices[key])

    @_devices.on_own_device
    def _stored_rows(self, rows) -> Self:
        values, indices = self._values[..., rows, :], self._indices[..., rows, :]
        return self._part(values if isinstance(rows, slice) else _storage.in_rows(values), indices)

    @_devices.on_own_device
    def _stored_groups(self, start: int, stop: int) -> Self:
        (n, m), xp = self._pattern, _arrays.namespace(self._values)
        values, indices = (x[..., n * start : n * stop] for x in (self._values, self._indices))
        k = min(m * stop, self._rows_shape[-1]) - m * start
        return self._part(_storage.in_rows(values), xp.ascontiguousarray(indices), k)

    @_devices.on_own_device
    def _joined(self, arrays, axis: int, *, new: bool) -> Self:
        xp = _arrays.namespace(self._values)
        join = xp.stack if new else xp.concatenate
        values = join([x._values for x in arrays], axis)
        indices = join([x._indices for x in arrays], axis)
        k = sum(x._rows_shape[-1] for x in arrays) if axis == -1 else None
        return self._part(_storage.in_rows(values), indices, k)

    def _part(self, values, indices, k: int | None = None) -> Self:
        shape = (*values.shape[:-1], self._rows_shape[-1] if k is None else k)
        return self._with(values=values, indices=indices, shape=shape)

    @_devices.on_own_device
    def _elementwise(self, ufunc, factor, result) -> Self:
        if np.ndim(factor) and self._axis == -2:
            factor = factor.swapaxes(-1, -2)
        values = _elementwise.of_stored(
            ufunc, self._values, self._dtype, factor, result, self._at_places
        )
        return self._with(values=values, dtype=result)

    def _at_places(self, factor):
        """The factor of each stored element, from one that has the shape of what is stored."""
        (n, m), xp = self._pattern, _arrays.namespace(self._indices)
        starts = xp.arange(self._indices.shape[-1]) // n * m
        if xp is not np:
            return _elementwise.at_columns(factor, self._indices + starts)
        taken = np.empty(self._indices.shape, factor.dtype)
        # The columns of all elements at once would take 8 bytes each.
        for rows in _row_blocks.blocks_of_rows(taken.shape):
            taken[rows] = _elementwise.at_columns(factor[rows], self._indices[rows] + starts)
        return taken

    def _with(self, *, values=None, indices=None, shape=None, dtype=None, axis=None) -> Self:
        return type(self)(
            self._values if values is None else values,
            self._indices if indices is None else indices,
            shape or self._rows_shape,
            self._pattern,
            dtype or self._dtype,
            axis=axis or self._axis,
        )
