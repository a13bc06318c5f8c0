"""From compressed arrays to the parts of them that files hold, and back."""

from __future__ import annotations

import numpy as np

from sparse24 import _arrays, _excess, _quantised, _storage
from sparse24._errors import ArgumentError
from sparse24._records import Compressed24, Operand24
from sparse24.formats.base import SparseArray
from sparse24.formats.hybrid import HybridArray
from sparse24.formats.hybrid_parts import HybridParts, HybridRowsParts
from sparse24.formats.n_m import NMArray
from sparse24.formats.parts import Parts
from sparse24.formats.quantised import Quantised24Array, of_parts
from sparse24.formats.quantised_parts import QuantisedParts
from sparse24.formats.two_four import Sparse24Array

AnyParts = Parts | HybridParts | QuantisedParts


def parts_of(array: SparseArray, *, argument: str = "array") -> AnyParts:
    """The parts of a compressed array, on the host."""
    if isinstance(array, NMArray):
        return _parts_n_m(array)
    if isinstance(array, HybridArray):
        stored = array.stored.to_numpy()
        kind = HybridRowsParts if stored.is_listed else HybridParts
        return kind(stored, array.n_hint)
    if isinstance(array, Quantised24Array):
        return _parts_quantised(array)
    if not isinstance(array, Sparse24Array):
        raise ArgumentError(f"{argument} is a {type(array).__name__}, which no file holds")
    array.check()
    record = array._operand.stored
    values = np.ascontiguousarray(_arrays.to_numpy(record.values))
    metadata = np.ascontiguousarray(_arrays.to_numpy(array.metadata))
    return Parts(
        values.view(record.dtype.logical),
        metadata,
        record.shape,
        record.dtype,
        axis=array.axis,
        transposable=array.transposable,
    )


def file_bytes(parts: AnyParts) -> int:
    """Bytes of the arrays that a file holds of one; in memory a quantised matrix may have more."""
    return sum(piece.nbytes for piece in parts.pieces().values())


def _parts_n_m(array: NMArray) -> Parts:
    record = array if array.axis == -1 else array.mT
    values, indices = (_arrays.to_numpy(x) for x in (record._values, record._indices))
    dtype = array._dtype
    return Parts(
        np.ascontiguousarray(values).view(dtype.logical),
        np.ascontiguousarray(indices),
        record.shape,
        dtype,
        array.pattern,
        axis=array.axis,
        layout="places",
    )


def _parts_quantised(array: Quantised24Array) -> QuantisedParts:
    record = array.to_device("cpu")._operand.stored
    parts = _quantised.parts_of(record)
    return QuantisedParts(parts, record.shape, record.dtype, array.bits, array.axis)


def array_of(parts: AnyParts) -> SparseArray:
    """The array of checked parts, on the CPU."""
    if isinstance(parts, HybridParts):
        return HybridArray(parts.stored.map(np.array), parts.nnz, parts.n_hint)
    if isinstance(parts, QuantisedParts):
        quantised = of_parts(parts.stored, parts.shape, parts.bits, parts.dtype)
        return quantised if parts.axis == -1 else quantised.mT
    values, metadata = (np.array(x) for x in (parts.values, parts.metadata))
    if parts.layout == "places":
        return NMArray(values, metadata, parts.shape, parts.pattern, parts.dtype, parts.axis)
    record = Compressed24(values, metadata, None, parts.shape, parts.dtype)
    columns = _transposed(record) if parts.transposable else None
    operand = Operand24(record, columns, None, parts.shape, parts.dtype)
    return Sparse24Array(operand if parts.axis == -1 else operand.transposed())


def _transposed(record: Compressed24) -> Compressed24:
    """The record of the transposed matrix, which obeys 2:4 too."""
    from sparse24.kernels import cpu

    dense = _storage.decompress(record).swapaxes(-1, -2)
    values, metadata, status = cpu.compress(dense, "check")
    _excess.refuse(status, dense.shape, argument="its transpose")
    return Compressed24(values, metadata, None, dense.shape, record.dtype)
