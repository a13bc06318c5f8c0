"""Records of quantised 2:4 matrices: made of their parts, taken apart, and dequantised."""

from __future__ import annotations

from typing import Any, NamedTuple

from sparse24 import _arrays, _check, _dtypes, _storage
from sparse24._dtypes import DType
from sparse24._records import DEQUANTISED, Compressed24, Operand24
from sparse24.kernels import bricks

GROUP = bricks.COLUMNS  # columns that share a factor
FLOATS = ("float16", "bfloat16", "float32", "float64")  # types of quantised matrices


class Parts(NamedTuple):
    """What a quantised matrix (m, k) is made of.

    Attributes
    ----------
    integers : array of int8, shape (m, values_per_row(k))
    metadata : array of uint8, shape (m, metadata_bytes_per_row(k))
        Canonical codes.
    factors : array of float32, shape (m, ceil(k / 128))
    """

    integers: Any
    metadata: Any
    factors: Any


def checked_bits(bits) -> int:
    """The argument `bits`, as an integer of Python: files write it."""
    _check.one_of(bits, bricks.BITS, argument="bits")
    return _check.whole(bits, argument="bits", least=min(bricks.BITS))


def record_of(parts: Parts, shape: tuple[int, ...], bits: int, dtype: DType) -> Compressed24:
    """The record of a matrix of these parts."""
    if not _arrays.is_cupy(parts.integers):
        from sparse24.kernels import cpu

        return with_bricks(cpu.pack_bricks(*parts, bits), shape, bits, dtype)
    whole = Compressed24(parts.integers, parts.metadata, None, shape, _dtypes.TABLE["float16"])
    codes = _storage.packed(whole)  # in the order for elements of 16 bits
    packed = bricks.pack(bricks.Parts(parts.integers, codes, parts.factors), bits)
    return with_bricks(packed, shape, bits, dtype)


def with_bricks(packed: Any, shape: tuple[int, ...], bits: int, dtype: DType) -> Compressed24:
    return Compressed24(packed, None, packed, shape, dtype, quantised=bits)


def parts_of(record: Compressed24) -> Parts:
    """The parts of a quantised record."""
    m, k = record.shape
    if not _arrays.is_cupy(record.values):
        from sparse24.kernels import cpu

        return Parts(*cpu.unpack_bricks(record.values, m, k, record.quantised))
    found = bricks.unpack(record.values, m, k, record.quantised)
    whole = Compressed24(found.integers, None, found.codes, (m, k), _dtypes.TABLE["float16"])
    return Parts(found.integers, _storage.canonical(whole), found.factors)


def row_blocks(record: Compressed24, start: int, stop: int) -> Compressed24:
    """Blocks start:stop of 16 rows, which share the memory of the record."""
    m, k = record.shape
    shape = (min(m, stop * bricks.ROWS) - start * bricks.ROWS, k)
    return with_bricks(record.values[start:stop], shape, record.quantised, record.dtype)


def column_blocks(record: Compressed24, start: int, stop: int) -> Compressed24:
    """Blocks start:stop of 128 columns; a copy, as rows of bricks lie together."""
    m, k = record.shape
    shape = (m, min(k, stop * bricks.COLUMNS) - start * bricks.COLUMNS)
    cut = record.values[:, start:stop].copy()
    return with_bricks(cut, shape, record.quantised, record.dtype)


def dequantised(record: Compressed24, dtype: DType) -> Compressed24:
    """The record with elements, integers times factors, rounded to float32 and then to `dtype`.

    In float64 they are exact.
    """
    if _arrays.is_cupy(record.values) and dtype.name in _dtypes.OF_16_BITS:
        from sparse24.kernels import dequantise

        return dequantise.launch(record, dtype)
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


class Dequantising(NamedTuple):
    """A product of a `Compressed24` that takes a quantised one."""

    product: Any
    dtype: DType

    def __call__(self, record: Compressed24, b, out, epilogue) -> None:
        self.product(dequantised(record, self.dtype), b, out, epilogue)


def reads_bricks(a: Operand24, b, dtype: DType, algorithm: str) -> bool:
    """Whether a product of type `dtype` on the CPU multiplies the bricks as they are."""
    from sparse24.kernels import cpu

    sparse = a.rows is not None and algorithm in ("auto", "cpu_sparse")
    return sparse and cpu.bricks_pay(a.stored.quantised, dtype, b)


class OfBricks(NamedTuple):
    """A product on the CPU that takes the bricks of a `Compressed24`, as elements of a type."""

    product: Any
    dtype: DType

    def __call__(self, record: Compressed24, b, out, epilogue) -> None:
        self.product(record.values, record.quantised, self.dtype, b, out, epilogue)
