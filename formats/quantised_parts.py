"""The stored parts of a `Quantised24Array`, and checks that they are valid."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sparse24 import _dtypes, _quantised, _spec
from sparse24._errors import FormatError
from sparse24._quantised import FLOATS, GROUP
from sparse24._storage import MOST_OF_AN_AXIS
from sparse24.formats import parts
from sparse24.kernels.bricks import BITS

QUANTISED = "quantised"  # the layout's name in a header


@dataclass(frozen=True, slots=True)
class QuantisedParts:
    """What a file holds of one quantised array, as NumPy arrays.

    Attributes
    ----------
    stored : _quantised.Parts
        Integers of 4 bits, too, as int8; only a file has two of them in a byte.
    shape : tuple of int
        Logical shape (..., m, k), groups along the last axis.
    dtype : DType
    bits : int
        Of an integer: 4 or 8.
    axis : int
        -2 if the array that was saved is the transpose of this one, else -1.
    """

    stored: _quantised.Parts
    shape: tuple[int, ...]
    dtype: _dtypes.DType
    bits: int
    axis: int = -1

    PIECES: ClassVar[tuple[str, ...]] = ("integers", "metadata", "scales")

    @property
    def kind(self) -> str:
        return f"2:4, {self.bits} bits{'' if self.axis == -1 else f', axis {self.axis}'}"

    @property
    def array_shape(self) -> tuple[int, ...]:
        """The shape of the array that was saved."""
        *batch, m, k = self.shape
        return self.shape if self.axis == -1 else (*batch, k, m)

    def pieces(self) -> dict[str, np.ndarray]:
        """The arrays of the file by their last name."""
        integers, metadata, factors = self.stored
        held = _paired(integers) if self.bits == 4 else integers
        return dict(zip(self.PIECES, (held, metadata, factors), strict=True))

    def describe(self) -> dict[str, Any]:
        """The entry of the header."""
        return {
            "shape": list(self.shape),
            "dtype": self.dtype.name,
            "bits": self.bits,
            "axis": self.axis,
            "layout": QUANTISED,
        }

    @classmethod
    def from_entry(
        cls, entry: Mapping[str, Any], pieces: dict[str, np.ndarray], *, where: str
    ) -> QuantisedParts:
        """Parts of a header's entry and its arrays, checked; `where` begins each message."""
        shape, name, bits, axis = (entry.get(key) for key in ("shape", "dtype", "bits", "axis"))
        if not parts.is_sizes(shape) or len(shape) < 2:
            raise FormatError(f"{where}: the shape must be two or more sizes, got {shape!r}")
        if name not in FLOATS:
            raise FormatError(f"{where}: the dtype must be one of {FLOATS}, got {name!r}")
        if type(bits) is not int or bits not in BITS:
            raise FormatError(f"{where}: bits must be 4 or 8, got {bits!r}")
        if type(axis) is not int or axis not in (-1, -2):
            raise FormatError(f"{where}: axis must be -1 or -2, got {axis!r}")
        integers, metadata, factors = (pieces[key] for key in cls.PIECES)
        *rows, k = shape
        if bits == 4:
            _fit(where, "integers", integers, np.uint8, (*rows, _spec.values_per_row(k) // 2))
            integers = _single(integers)
        stored = _quantised.Parts(integers, metadata, factors)
        found = cls(stored, (*rows, k), _dtypes.TABLE[name], bits, axis)
        found.check(where)
        return found

    def check(self, where: str) -> None:
        """Raise `FormatError` unless shapes, types, codes and numbers are right."""
        *rows, k = self.shape
        matrices = math.prod(max(1, size) for size in self.shape[:-2])
        if max(matrices, *self.shape[-2:]) > MOST_OF_AN_AXIS:
            raise FormatError(
                f"{where}: a quantised array has up to {MOST_OF_AN_AXIS} rows and columns, and as "
                f"many matrices, got shape {self.shape}"
            )
        integers, metadata, factors = self.stored
        _fit(where, "integers", integers, np.int8, (*rows, _spec.values_per_row(k)))
        _fit(where, "metadata", metadata, np.uint8, (*rows, _spec.metadata_bytes_per_row(k)))
        _fit(where, "scales", factors, np.float32, (*rows, -(-k // GROUP)))
        # The other rules are those of any 2:4 array of whole numbers.
        int8 = _dtypes.TABLE["int8"]
        parts.Parts(integers, metadata, self.shape, int8, axis=self.axis).check(where)
        most = (1 << self.bits - 1) - 1
        _refuse_first(
            (integers > most) | (integers < -1 - most), integers, f"{where}: integers",
            f"beyond the {self.bits} bits of {-1 - most} to {most}",
        )  # fmt: skip
        _refuse_first(~np.isfinite(factors), factors, f"{where}: scales", "no finite number")


def _fit(where: str, name: str, array: np.ndarray, dtype: Any, shape: tuple[int, ...]) -> None:
    if array.dtype != dtype or array.shape != shape:
        raise FormatError(
            f"{where}: {name} must be {np.dtype(dtype)} of shape {shape}, got {array.dtype} of "
            f"shape {array.shape}"
        )


def _refuse_first(wrong: np.ndarray, array: np.ndarray, name: str, what: str) -> None:
    if wrong.any():
        index = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise FormatError(f"{name}{list(index)} is {array[index]}, {what}; the data are damaged")


def _paired(integers: np.ndarray) -> np.ndarray:
    """Integers of 4 bits two in a byte, the earlier one low."""
    bits = integers.view(np.uint8)
    return bits[..., ::2] & 15 | bits[..., 1::2] << 4


def _single(pairs: np.ndarray) -> np.ndarray:
    """The inverse of `_paired`."""
    *rows, width = pairs.shape
    high = np.stack([pairs << 4, pairs], axis=-1).view(np.int8)
    return (high >> 4).reshape(*rows, 2 * width)
