"""Products that make something else of their sparse operand at each call."""

from __future__ import annotations

from typing import Any, NamedTuple

from sparse24 import _quantised, _storage
from sparse24._dtypes import DType
from sparse24._records import Compressed24, Fused


class Converting(NamedTuple):
    """A product of a `Compressed24` that takes one of another type, or a quantised one."""

    product: Any
    dtype: DType

    def __call__(self, record: Compressed24, b, out, epilogue: Fused) -> None:
        make = _quantised.dequantised if record.quantised else _storage.cast
        self.product(_storage.with_packed(make(record, self.dtype)), b, out, epilogue)


class MadeDense(NamedTuple):
    """A product that takes a `Compressed24` and makes it, or its transpose, dense."""

    product: Any
    transposed: bool

    def __call__(self, record: Compressed24, b, out, epilogue: Fused) -> None:
        dense = _storage.decompress(record)
        self.product(dense.swapaxes(-1, -2) if self.transposed else dense, b, out, epilogue)


class OfRecord(NamedTuple):
    """A CPU product that takes a `Compressed24` instead of its parts."""

    product: Any

    def __call__(self, record: Compressed24, b, out, epilogue: Fused) -> None:
        self.product(record.values, _storage.canonical(record), record.k, b, out, epilogue)
