"""Records of quantised 2:4 matrices: made of their parts, taken apart, and dequantised.

The bricks of a stack are those of its matrices, one after another.  So a stack is read and written
as one matrix, in which zeros follow each of those that end within a brick.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sparse24 import _arrays, _check, _dtypes, _spec, _storage
from sparse24._dtypes import DType
from sparse24._records import DEQUANTISED, Compressed24, Operand24
from sparse24.kernels import bricks

GROUP = bricks.COLUMNS  # columns that share a factor
FLOATS = ("float16", "bfloat16", "float32", "float64")  # types of quantised matrices


class Parts(NamedTuple):
    """What quantised matrices (..., m, k) are made of.

    Attributes
    ----------
    integers : array of int8, shape (..., m, values_per_row(k))
    metadata : array of uint8, shape (..., m, metadata_bytes_per_row(k))
        Canonical codes.
    factors : array of float32, shape (..., m, ceil(k / 128))
    """

    integers: Any
    metadata: Any
    factors: Any


def checked_bits(bits) -> int:
    """The argument `bits`, as an integer of Python: files write it."""
    _check.one_of(bits, bricks.BITS, argument="bits")
    return _check.whole(bits, argument="bits", least=min(bricks.BITS))


def record_of(parts: Parts, shape: tuple[int, ...], bits: int, dtype: DType) -> Compressed24:
    """The record of a matrix, or a stack, of these parts."""
    *batch, m, k = shape
    if not batch:
        return with_bricks(_packed(parts, k, bits), shape, bits, dtype)
    counts = bricks.counts(m, k)
    whole = (*batch, *counts, bricks.size(bits))
    if 0 in shape:
        nothing = _arrays.namespace(parts.integers).empty(whole, np.uint8)
        return with_bricks(nothing, shape, bits, dtype)
    fillers = Parts(0, _spec.EMPTY_CODE * 0x11, 0)
    rows = counts[0] * bricks.ROWS
    one = Parts(*(_one_over_another(x, rows, y) for x, y in zip(parts, fillers, strict=True)))
    return with_bricks(_packed(one, k, bits).reshape(whole), shape, bits, dtype)


def _packed(parts: Parts, k: int, bits: int) -> Any:
    """The bricks of the parts of a matrix."""
    if not _arrays.is_cupy(parts.integers):
        from sparse24.kernels import cpu

        return cpu.pack_bricks(*parts, bits)
    shape = (len(parts.integers), k)
    whole = Compressed24(parts.integers, parts.metadata, None, shape, _dtypes.TABLE["float16"])
    codes = _storage.packed(whole)  # in the order for elements of 16 bits
    return bricks.pack(bricks.Parts(parts.integers, codes, parts.factors), bits)


def _one_over_another(x: Any, rows: int, filler: int) -> Any:
    """The matrices of a stack as one, each of them with so many rows, the last ones filler."""
    *batch, m, width = x.shape
    if m < rows:
        whole = _arrays.namespace(x).full((*batch, rows, width), filler, x.dtype)
        whole[..., :m, :] = x
        x = whole
    return x.reshape(math.prod(batch) * rows, width)


def _of_each(x: Any, shape: tuple[int, ...]) -> Any:
    """The inverse of `_one_over_another`, of a stack of this shape."""
    *batch, m, _ = shape
    rows = -(-m // bricks.ROWS) * bricks.ROWS
    return x.reshape(*batch, rows, x.shape[-1])[..., :m, :]


def _as_one(record: Compressed24) -> Compressed24:
    """A stack as one matrix, with filler as of `_one_over_another`; the bricks are a view."""
    *batch, blocks, atoms, size = record.values.shape
    one = record.values.reshape(math.prod(batch) * blocks, atoms, size)
    return with_bricks(one, (len(one) * bricks.ROWS, record.k), record.quantised, record.dtype)


def with_bricks(packed: Any, shape: tuple[int, ...], bits: int, dtype: DType) -> Compressed24:
    return Compressed24(packed, None, packed, shape, dtype, quantised=bits)


def parts_of(record: Compressed24) -> Parts:
    """The parts of a quantised record."""
    if len(record.shape) > 2:
        return Parts(*(_of_each(x, record.shape) for x in parts_of(_as_one(record))))
    m, k = record.shape
    if not _arrays.is_cupy(record.values):
        from sparse24.kernels import cpu

        return Parts(*cpu.unpack_bricks(record.values, m, k, record.quantised))
    found = bricks.unpack(record.values, m, k, record.quantised)
    whole = Compressed24(found.integers, None, found.codes, (m, k), _dtypes.TABLE["float16"])
    return Parts(found.integers, _storage.canonical(whole), found.factors)


def row_blocks(record: Compressed24, start: int, stop: int) -> Compressed24:
    """Blocks start:stop of 16 rows; those of a single matrix share the memory of the record."""
    *batch, m, k = record.shape
    shape = (*batch, min(m, stop * bricks.ROWS) - start * bricks.ROWS, k)
    cut = record.values[..., start:stop, :, :]
    cut = _arrays.namespace(cut).ascontiguousarray(cut)
    return with_bricks(cut, shape, record.quantised, record.dtype)


def column_blocks(record: Compressed24, start: int, stop: int) -> Compressed24:
    """Blocks start:stop of 128 columns; a copy, as rows of bricks lie together."""
    *rows, k = record.shape
    shape = (*rows, min(k, stop * bricks.COLUMNS) - start * bricks.COLUMNS)
    cut = record.values[..., start:stop, :].copy()
    return with_bricks(cut, shape, record.quantised, record.dtype)


def matrices(record: Compressed24, key: tuple) -> Compressed24:
    """Matrices of a stack, by a key of NumPy for its batch axes; views where they lie together."""
    picked = record.values[key]
    picked = _arrays.namespace(picked).ascontiguousarray(picked)
    shape = (*picked.shape[:-3], *record.shape[-2:])
    return with_bricks(picked, shape, record.quantised, record.dtype)


def stacked(records: Sequence[Compressed24], axis: int, *, new: bool) -> Compressed24:
    """Records one after another along a batch axis, counted from the end, or along a new one."""
    first, xp = records[0], _arrays.namespace(records[0].values)
    join = xp.stack if new else xp.concatenate
    joined = join([x.values for x in records], axis - 1)  # a matrix of bricks has three axes
    shape = (*joined.shape[:-3], *first.shape[-2:])
    return with_bricks(joined, shape, first.quantised, first.dtype)


def dequantised(record: Compressed24, dtype: DType) -> Compressed24:
    """The record with elements, integers times factors, rounded to float32 and then to `dtype`.

    In float64 they are exact.
    """
    if _arrays.is_cupy(record.values) and dtype.name in _dtypes.OF_16_BITS:
        from sparse24.kernels import dequantise

        return dequantise.launch(record, dtype)
    if len(record.shape) > 2:
        return _as_stack(dequantised(_as_one(record), dtype), record.shape)
    if not _arrays.is_cupy(record.values) and dtype.name in FLOATS:
        from sparse24.kernels import cpu

        bits = record.quantised
        if cpu.bricks_fit(record.values, bits, dtype):  # others NumPy warns of
            values, metadata = cpu.dequantise(record.values, record.shape, bits, dtype)
            return Compressed24(values, metadata, None, record.shape, dtype)
    parts = parts_of(record)
    xp = _arrays.namespace(parts.integers)
    stored = parts.integers.shape[1]
    # Up to 8 and 24 bits: exact in float64.  A GPU, too, makes 16 bits of products in float32.
    wide = _dtypes.TABLE["float64" if dtype.name == "float64" else "float32"]
    factors = xp.repeat(parts.factors.astype(wide.logical), bricks.STORED, axis=1)[:, :stored]
    values = _storage.in_rows(parts.integers * factors)
    whole = Compressed24(values, parts.metadata, None, record.shape, wide)
    return _storage.native(whole if dtype is wide else _storage.cast(whole, dtype))


def _as_stack(one: Compressed24, shape: tuple[int, ...]) -> Compressed24:
    """The stack of the matrices that are one over another."""
    values = _storage.in_rows(_of_each(one.values, shape))
    codes = _of_each(_storage.canonical(one), shape)
    codes = _arrays.namespace(codes).ascontiguousarray(codes)
    return _storage.native(Compressed24(values, codes, None, shape, one.dtype))


def as_converted(a: Operand24, dtype: DType, *, keep: bool = False) -> Operand24:
    """The operand of a quantised matrix with elements of type `dtype`; kept with it if `keep`."""

    def convert(record: Compressed24 | None) -> Compressed24 | None:
        if record is None:
            return None
        known = record.derived.setdefault(DEQUANTISED, {}) if keep else {}
        if dtype.name not in known:
            known[dtype.name] = dequantised(record, dtype)
        return known[dtype.name]

    return Operand24(convert(a.rows), convert(a.columns), None, a.shape, dtype)


def reads_bricks(a: Operand24, b, dtype: DType, algorithm: str) -> bool:
    """Whether a product of type `dtype` on the CPU multiplies the bricks as they are."""
    from sparse24.kernels import cpu

    if b.ndim > 2 and math.prod(a.shape[:-2]) == 1:  # one matrix for all matrices of b
        return False
    sparse = a.rows is not None and algorithm in ("auto", "cpu_sparse")
    return sparse and cpu.bricks_pay(a.stored.quantised, dtype, b)


class OfBricks(NamedTuple):
    """A product on the CPU that takes the bricks of a `Compressed24`, as elements of a type."""

    product: Any
    dtype: DType

    def __call__(self, record: Compressed24, b, out, epilogue) -> None:
        self.product(record.values, record.quantised, self.dtype, b, out, epilogue)
