"""`Sparse24Array`: a matrix, or a batch, with at most two non-zeros in every group of four."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparse24 import (
    _arrays,
    _check,
    _devices,
    _dtypes,
    _elementwise,
    _foreign,
    _product,
    _record_parts,
    _storage,
)
from sparse24._errors import ArgumentError, DeviceError
from sparse24._options import NO_OPTIONS
from sparse24._records import Compressed24, Operand24
from sparse24.formats import convert
from sparse24.formats.base import SparseArray, densified, made_by
from sparse24.formats.indexing import Indexing
from sparse24.formats.joining import Joining


class Sparse24Array(Joining, Indexing, SparseArray):
    """A 2:4 sparse array on the CPU or a GPU.  Immutable.

    Made by `sparse24.compress`, `sparse24.asarray`, `sparse24.from_scipy` or
    `sparse24.random`; not by its constructor.  Elements are float16, bfloat16, float32, float64,
    int8, float8_e4m3fn or float8_e5m2.

    Attributes
    ----------
    shape : tuple of int
        Logical shape (..., m, k).
    dtype : numpy.dtype
        Logical element type; fp8 types too, though a GPU carries them as ``uint8``.
    pattern : tuple of int
        ``(2, 4)``.
    axis : int
        The axis that the groups run along: -1, or -2 for the transpose of such an array.
    transposable : bool
        True if groups obey the pattern along both axes and both are stored.

    Notes
    -----
    A product is sparse where the groups run along the contracted axis: ``A @ b`` for
    ``axis=-1``, ``x @ A`` for ``axis=-2`` (so ``x @ A.T`` for a weight compressed along
    its rows), and both for a transposable array.  Otherwise the array is decompressed and the
    product is dense; on the CPU, with up to 16 columns, stored rows are added up instead.

    ``A[rows]``, ``A[:, i:j]`` for whole groups of columns, and matrices of a batch are sparse; a
    single row, column or element is dense.  The values of ``A[i:j]`` are views.  Parts of a
    transposable array, which can be cut along either axis, are stored in one orientation.
    `numpy.concatenate` and `numpy.stack` join arrays of one type, on either device.

    ``A * f``, ``A / f``, ``-A`` and ``abs(A)`` keep zeros, for a factor that is a number, or an
    array that broadcasts to the shape of A; the result has NumPy's type.  `sum`, `mean`, `max` and
    `min` go over the dense array.

    Work goes to CuPy's current stream.  `nnz`, `density`, `check`, `tocsr`, `tocoo` and a move to
    the CPU wait for the device; products, `toarray`, `mask`, `astype` and views do not.

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> A = s24.compress(np.array([[0, 1, 0, 2, 3, 0, 0, 0]], np.float32))
    >>> A
    <Sparse24Array: shape (1, 8), dtype float32, axis -1, on cpu, 17 bytes (dense: 32)>
    >>> A.values, A.metadata
    (array([[1., 2., 3., 0.]], dtype=float32), array([[205]], dtype=uint8))
    >>> A @ np.ones(8, np.float32)
    array([6.], dtype=float32)
    """

    __slots__ = ("_cache", "_operand", "_plans", "_status", "_turned")

    _cache: dict[str, Any]
    _operand: Operand24
    _plans: dict[Any, Any]
    _status: Any
    _turned: Any  # the transposed view, a Sparse24Array, or None

    def __init__(self, operand: Operand24, status: Any = None):
        if type(operand) is not Operand24:
            raise made_by(self, operand, "sparse24.compress(x)")
        object.__setattr__(self, "_operand", operand)
        object.__setattr__(self, "_status", status)
        object.__setattr__(self, "_cache", {})  # metadata in the other order, made at first use
        object.__setattr__(self, "_plans", {})  # prepared launches, by signature of b
        object.__setattr__(self, "_turned", None)  # the transposed view, made at first use

    # --- what it is ---------------------------------------------------------------------

    @property
    def _dtype(self) -> _dtypes.DType:  # type: ignore[override]
        return self._operand.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self._operand.shape

    @property
    def pattern(self) -> tuple[int, int]:
        return (2, 4)

    @property
    def axis(self) -> int:
        return -1 if self._operand.rows is not None else -2

    @property
    def transposable(self) -> bool:
        return self._operand.rows is not None and self._operand.columns is not None

    @property
    def device(self) -> str:
        return _arrays.device_of(self._operand.stored.values)

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
        if self.transposable and self._turned is not None:
            arrays += self._turned._cache.values()
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
        if name not in self._cache:
            with _devices.on_device(self.device):
                self._cache[name] = convert(record)
        return _arrays.read_only(self._cache[name])

    def __repr__(self) -> str:
        dense = self.size * self._dtype.itemsize
        return (
            f"<Sparse24Array: shape {self.shape}, dtype {self._dtype.name}, axis {self.axis}, "
            f"on {self.device}, {self.nbytes} bytes (dense: {dense})>"
        )

    # --- conversions --------------------------------------------------------------------

    def check(self) -> None:
        """Raise the `PatternError` that ``compress(check="deferred")`` put off.

        A part of an array raises that of the whole.  Waits for the device.
        """
        _storage.raise_excess(self._status, self._operand.stored.shape, axis=self.axis)

    @_devices.on_own_device
    def toarray(self, out=None):
        """Return the dense array (..., m, k), on the same device.

        Parameters
        ----------
        out : array, optional
            Where to write it; shape and dtype of the result.  Also a tensor of torch.

        Returns
        -------
        array, shape (..., m, k)
            `out`, if that is given; fp8 on a GPU as bits (``uint8``).

        Raises
        ------
        ShapeError, DTypeError, ArgumentError
            If `out` does not fit or is read-only.
        """
        record = self._operand.stored
        swap = self.axis == -2
        if out is None:
            dense = _storage.decompress(record)
            return dense.swapaxes(-1, -2) if swap else dense
        with _foreign.stream_of(out):
            target = _storage.check_out(out, self.shape, self._dtype, like=record.values)
            _storage.decompress(record, target.swapaxes(-1, -2) if swap else target)
        return out

    def tocsr(self, dtype=None):
        """The matrix as `scipy.sparse.csr_array` (`cupyx.scipy.sparse.csr_matrix` on the GPU).

        As `NMArray.tocsr`, but on the CPU nothing becomes dense.
        """
        if self.device != "cpu" or self.ndim > 2:
            return super().tocsr(dtype)
        stored = self._operand.stored
        csr = convert.csr_of_24(stored.values, _storage.canonical(stored), stored.shape, dtype)
        return csr.T.tocsr() if self.axis == -2 else csr

    @_devices.on_own_device
    def mask(self):
        """Boolean array (..., m, k): true where elements are not zero."""
        return _arrays.not_zero(self.toarray(), self._dtype)

    @property
    def mT(self) -> Sparse24Array:
        """The array with its last two axes exchanged; nothing is copied."""
        if self._turned is None:
            turned = Sparse24Array(self._operand.transposed(), status=self._status)
            object.__setattr__(turned, "_turned", self)
            if not self.transposable:  # then what is stored is the same
                object.__setattr__(turned, "_cache", self._cache)
            object.__setattr__(self, "_turned", turned)
        return self._turned

    @_devices.on_own_device
    def astype(self, dtype) -> Sparse24Array:
        """Convert the stored elements; the codes stay."""
        row = _dtypes.lookup(dtype)
        if row is self._dtype:
            return self
        return self._map(lambda record: _storage.cast(record, row), row)

    @_devices.on_own_device
    def copy(self) -> Sparse24Array:
        """A deep copy."""
        return self._map(_storage.copy, self._dtype, dense=lambda d: d.copy())

    def _moved(self, mover) -> Sparse24Array:
        return self._map(lambda record: _storage.move(record, mover), self._dtype, dense=mover)

    def _map(self, record_function, row, *, dense=None) -> Sparse24Array:
        old = self._operand
        apply = lambda record: None if record is None else record_function(record)  # noqa: E731
        kept = dense(old.dense) if dense is not None and old.dense is not None else None
        rows, columns = apply(old.rows), apply(old.columns)
        return Sparse24Array(Operand24(rows, columns, kept, old.shape, row), status=self._status)

    def _fields(self):
        return self._operand, _storage.waited(self._status)

    @_devices.on_own_device
    def _matrices(self, key) -> Sparse24Array:
        picked = self._map(lambda record: _record_parts.of_batch(record, key), self._dtype)
        old = picked._operand
        shape = (*old.stored.shape[:-2], *self.shape[-2:])
        status = _storage.of_whole(self._status, self._operand.stored.shape)
        return Sparse24Array(Operand24(old.rows, old.columns, None, shape, self._dtype), status)

    @_devices.on_own_device
    def _stored_rows(self, rows) -> Sparse24Array:
        stored = self._operand.stored
        if self.ndim > 2 or not _check.is_slice(rows):
            return self._part(_record_parts.rows_at(stored, rows))
        start, stop, _ = rows.indices(stored.m)
        return self._part(_record_parts.rows(stored, start, max(start, stop)))

    @_devices.on_own_device
    def _stored_groups(self, start: int, stop: int) -> Sparse24Array:
        return self._part(_record_parts.groups(self._operand.stored, start, stop))

    @_devices.on_own_device
    def _joined(self, arrays, axis: int, *, new: bool) -> Sparse24Array:
        for array in arrays:
            array.check()  # the result has no check to make up
        stored = [array._operand.stored for array in arrays]
        record = _record_parts.joined(stored, axis, new=new)
        return Sparse24Array(Operand24(record, None, None, record.shape, self._dtype))

    def _part(self, record: Compressed24) -> Sparse24Array:
        status = _storage.of_whole(self._status, self._operand.stored.shape)
        return Sparse24Array(Operand24(record, None, None, record.shape, self._dtype), status)

    @_devices.on_own_device
    def _elementwise(self, ufunc, factor, result) -> Sparse24Array:
        old = self._operand
        turned = factor.swapaxes(-1, -2) if np.ndim(factor) else factor
        rows, columns = (
            None if record is None else _elementwise.of_record(ufunc, record, by, result)
            for record, by in ((old.rows, factor), (old.columns, turned))
        )
        return Sparse24Array(Operand24(rows, columns, None, old.shape, result), self._status)

    # --- products -----------------------------------------------------------------------

    def _multiply(self, other, out=None, call=NO_OPTIONS):
        if type(other) is not np.ndarray and isinstance(other, SparseArray):
            call = call._replace(other_dtype=other.dtype)  # its dense form may be fp8 bits
        other = _dense_operand(other, self)
        return _product.multiply(self._operand, other, out, call, self._plans)

    def _multiply_from_left(self, other, out=None, call=NO_OPTIONS):
        if type(other) is not np.ndarray and isinstance(other, SparseArray):
            call = call._replace(other_dtype=other.dtype)
        other = _dense_operand(other, self)
        return _product.multiply(self._operand, other, out, call, self._plans, from_left=True)


def _dense_operand(other, sparse: Sparse24Array):
    """The other operand as a dense array; sparse ones are made dense."""
    both_on_cpu = type(other) is type(sparse._operand.elements) is np.ndarray
    if both_on_cpu or _arrays.is_cupy(other):
        return other
    other = densified(other)
    if _check.is_scalar(other):
        raise ArgumentError(
            "@ needs an array on either side, got a scalar; factors go to alpha= of sparse24.matmul"
        )
    if sparse.device != "cpu" and isinstance(other, np.ndarray):
        raise DeviceError(
            f"the array is on {sparse.device}, the other operand on the cpu; "
            "move one: A.to_device('cpu') or cupy.asarray(x)"
        )
    return other
