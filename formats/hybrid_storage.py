"""What becomes of a hybrid matrix: its dense form, CSR, copies, parts, sums and its transpose."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Sequence
from typing import Any, Self, cast

from sparse24 import _arrays, _devices, _dtypes, _storage, _table
from sparse24._hybrid import room
from sparse24.formats import (
    convert,
    hybrid_arithmetic,
    hybrid_build,
    hybrid_indexing,
    hybrid_joining,
    hybrid_reductions,
    hybrid_runs,
    hybrid_source,
)
from sparse24.formats import hybrid_tiles as ht
from sparse24.formats.hybrid_listed import ListedRows
from sparse24.formats.hybrid_stored import HybridStored, chooser
from sparse24.kernels.csr import CsrRows


class HybridStorage(HybridStored):
    """The conversions of a `HybridArray`; the products are its own."""

    __slots__ = ()

    def __repr__(self) -> str:
        return (
            f"<HybridArray {self.shape[0]}x{self.shape[1]} {self._dtype.name}, "
            f"{_table.rest(self.density)} zeros, {self.device}>"
        )

    @_devices.on_own_device
    def toarray(self, out=None):
        """The dense matrix on the same device, equal to the input bit for bit (-0.0 as 0.0).

        Parameters
        ----------
        out : array, optional
            Where to write it; shape and dtype of the result.

        Returns
        -------
        array, shape (m, k)
            `out`, if that is given.

        Raises
        ------
        ShapeError, DTypeError, ArgumentError
            If `out` does not fit or is read-only.
        DeviceError
            If the dense matrix does not fit the memory of the device; also a `MemoryError`.
        """
        with self._room_for("the dense matrix", self._dtype.itemsize):
            return _storage.dense_into(
                out, lambda: hybrid_build.decode(self.stored), self.shape, self._dtype,
                like=self.stored.elements[0],
            )  # fmt: skip

    def _room_for(self, what: str, itemsize: int) -> contextlib.AbstractContextManager[None]:
        way_out = (
            "take parts such as H[:1000], or .tocsr() and .tocoo(), which list the non-zeros and "
            "their places"
        )
        return room.refusing(what, self.shape, itemsize, self.device, way_out)

    @_devices.on_own_device
    def tocsr(self, dtype=None):
        """The matrix as `scipy.sparse.csr_array` (`cupyx.scipy.sparse.csr_matrix` on the GPU).

        Nothing becomes dense of a matrix of which at least three quarters are zeros.  `dtype` is
        that of `NMArray.tocsr`, which also waits for the device.
        """
        starts, columns, bits = self.held()
        values = bits.view(self._dtype.logical).copy()  # the caller may write them
        return convert.csr_of(starts, columns, values, self.shape, dtype)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function in hybrid_joining.JOINS:
            return hybrid_joining.JOINS[function](*args, **kwargs)
        return super().__array_function__(function, types, args, kwargs)

    @_devices.on_own_device
    def _joined(self, matrices: Sequence[HybridStored], axis: int) -> Self:
        """Matrices of this one's type and device joined along an axis."""
        (m, k), total = self.shape, sum(matrix.shape[axis] for matrix in matrices)
        shape = (total, k) if axis == 0 else (m, total)
        tiles = hybrid_runs.joined(matrices, shape, axis)
        if tiles is not None:
            return type(self)(tiles, sum(matrix.nnz for matrix in matrices), self.n_hint)
        rows = hybrid_joining.joined_rows(matrices, shape, axis)
        return self._of_rows(rows, shape, shared=False)

    def _of_rows(self, rows: CsrRows, shape: tuple[int, int], *, shared: bool) -> Self:
        """Non-zeros row by row as a matrix of this one's type and device."""
        form = hybrid_build.Form(shape, self._dtype, _arrays.namespace(rows.bits))
        choose = chooser(self._dtype, _arrays.is_cupy(rows.bits), self.n_hint)
        made = hybrid_build.of_rows(form, rows, choose, shared=shared)
        return type(self)(*made, self.n_hint)

    def _elements(self):
        return self._tiles.source.elements

    def _fields(self):
        return self.stored, self._nnz, self.n_hint

    @_devices.on_own_device
    def copy(self) -> Self:
        """A deep copy."""
        return type(self)(self.stored.map(lambda x: x.copy()), self.nnz, self.n_hint)

    def _moved(self, mover) -> Self:
        return type(self)(self.stored.map(mover), self.nnz, self.n_hint)

    def _astype(self, dtype: _dtypes.DType) -> Self:
        hybrid_source.type_of(dtype.name)  # the ways below would store any
        if self._tiles.source.is_listed:
            stored = cast(ListedRows, self.stored)
            elements = _storage.converted(stored.elements[0][None], self._dtype, dtype)[0]
            left = stored.with_values(elements, dtype)
            return type(self)(left, left.nnz, self.n_hint)
        if self.device == "cpu" and isinstance(self._tiles, ht.Tiles):
            return hybrid_arithmetic.converted(self, dtype)
        return type(self).build(self._source(), n_hint=self.n_hint, dtype=dtype)

    @_devices.on_own_device
    def __getitem__(self, key) -> Any:
        """A part, built anew; where it has one axis or none, dense.

        On the CPU slices that cut no tile copy tiles.
        Of rows, and on the CPU columns, by a number or a slice nothing is made dense but their
        tiles, and nothing at all of large matrices on the CPU where CSR takes less memory, unless
        the key pairs arrays.
        """
        return hybrid_indexing.part_of(self, key)

    def _factor(self, factor):
        sparse = hybrid_arithmetic.sparse_factor(self, factor) if self.is_less_as_csr else None
        return super()._factor(factor) if sparse is None else sparse

    def _elementwise(self, ufunc, factor, result) -> Self:
        return hybrid_arithmetic.elementwise(self, ufunc, factor, result)

    def _for_reduction(self, axis) -> Any:
        by_csr = self.is_less_as_csr
        return hybrid_reductions.Elements(self) if by_csr else super()._for_reduction(axis)

    @_devices.on_own_device
    def mask(self):
        """Boolean array (m, k): true where elements are not zero.

        Raises
        ------
        DeviceError
            If it does not fit the memory of the device beside the dense matrix, which is made
            for it; also a `MemoryError`.
        """
        with self._room_for("the mask, beside the dense matrix,", self._dtype.itemsize + 1):
            return _arrays.not_zero(hybrid_build.decode(self.stored), self._dtype)

    @property
    def T(self) -> Self:
        """The transposed matrix; its tiles are built where they are first needed, and kept.

        ``x @ H.T`` does not need them: it multiplies with those of ``H``.
        """
        other = self._transpose_of and self._transpose_of()
        if other is not None:
            return other
        return self.prepared("transposed", self._transposed_anew)

    def _transposed_anew(self) -> Self:
        """Make the transposed matrix; it refers back weakly, so the two form no reference cycle."""
        with self._lock:
            source = self._tiles.source  # itself, unless it is only transposed so far
            tiles = ht.Transposed(source) if self._tiles is source else source
        return type(self)(tiles, self._nnz, self._n_hint, _transpose_of=weakref.ref(self))

    @property
    def mT(self) -> Self:
        """The same as `T`: there are no batches."""
        return self.T
