"""The stored parts of a compressed array, and checks that they are valid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np

from sparse24 import _dtypes, _spec
from sparse24._errors import FormatError

_LEGAL_BYTE = np.zeros(256, bool)
_LEGAL_BYTE[[low | high << 4 for low in _spec.LEGAL_CODES for high in _spec.LEGAL_CODES]] = True


@dataclass(frozen=True, slots=True)
class Parts:
    """What a file holds of one compressed array, as NumPy arrays.

    Attributes
    ----------
    values, metadata : ndarray
        As in :ref:`layout`; with ``layout="places"`` `metadata` has the shape of `values`
        and holds the place of each in its group.
    shape : tuple of int
        Logical shape (..., m, k), groups along the last axis.
    dtype : DType
    pattern : tuple of int
        ``(n, m)``.
    axis : int
        -2 if the array that was saved is the transpose of this one, else -1.
    transposable : bool
        True if the other orientation is to be made as well.
    layout : {"codes", "places"}
        Of a `Sparse24Array` or an `NMArray`.
    """

    values: np.ndarray
    metadata: np.ndarray
    shape: tuple[int, ...]
    dtype: _dtypes.DType
    pattern: tuple[int, int] = (2, 4)
    axis: int = -1
    transposable: bool = False
    layout: str = "codes"

    PIECES = ("values", "metadata")

    @property
    def kind(self) -> str:
        pattern = "{}:{}".format(*self.pattern)
        return pattern if self.axis == -1 else f"{pattern}, axis {self.axis}"

    @property
    def array_shape(self) -> tuple[int, ...]:
        """The shape of the array that was saved."""
        *batch, m, k = self.shape
        return self.shape if self.axis == -1 else (*batch, k, m)

    def pieces(self) -> dict[str, np.ndarray]:
        """The arrays of the file by their last name."""
        return {"values": self.values, "metadata": self.metadata}

    def describe(self) -> dict[str, Any]:
        """The entry of the header."""
        return {
            "pattern": list(self.pattern),
            "shape": list(self.shape),
            "dtype": self.dtype.name,
            "axis": self.axis,
            "transposable": self.transposable,
            "layout": self.layout,
        }

    @classmethod
    def from_entry(
        cls, entry: Mapping[str, Any], pieces: dict[str, np.ndarray], *, where: str
    ) -> Parts:
        """Parts of a header's entry and its arrays, checked; `where` begins each message."""
        fields = _fields(entry, where)
        name = entry.get("dtype")
        if not isinstance(name, str) or name not in _dtypes.TABLE:
            raise FormatError(f"{where}: the dtype must be one of sparse24's, got {name!r}")
        dtype = _dtypes.TABLE[name]
        parts = cls(pieces["values"], pieces["metadata"], dtype=dtype, **fields)
        parts.check(where)
        return parts

    def check(self, where: str) -> None:
        """Raise `FormatError` unless shapes, types and codes are right."""
        if self.values.dtype != self.dtype.logical or self.metadata.dtype != np.uint8:
            raise FormatError(
                f"{where}: values must be {self.dtype.name} and metadata uint8, got "
                f"{self.values.dtype} and {self.metadata.dtype}"
            )
        (n, m), k = self.pattern, self.shape[-1]
        stored = n * -(-k // m)
        codes = _spec.metadata_bytes_per_row(k) if self.layout == "codes" else stored
        widths = (("values", self.values, stored), ("metadata", self.metadata, codes))
        for name, array, width in widths:
            wanted = (*self.shape[:-1], width)
            if array.shape != wanted:
                raise FormatError(
                    f"{where}: {name} of a {n}:{m} array of shape {self.shape} must have shape "
                    f"{wanted}, got {array.shape}"
                )
        places = self._places_24(where) if self.layout == "codes" else self._places_n_m(where)
        self._nothing_past_the_edge(places, where)

    def _places_24(self, where: str) -> np.ndarray:
        """Place in its group of each value of the last group, once all codes are legal."""
        legal = _LEGAL_BYTE[self.metadata]
        if not legal.all():
            index = tuple(int(i) for i in np.argwhere(~legal)[0])
            raise FormatError(
                f"{where}: metadata{list(index)} is 0x{int(self.metadata[index]):02X}, which holds "
                "an illegal code; the data are damaged"
            )
        groups = _spec.groups(self.shape[-1])
        if groups % 2 and self.metadata.size:
            spare = self.metadata[..., -1] >> 4
            if (spare != _spec.EMPTY_CODE).any():
                raise FormatError(f"{where}: the spare code of a row is not that of an empty group")
        if not self.metadata.size:
            return np.empty((*self.shape[:-1], 0), np.uint8)
        last = self.metadata[..., -1]
        code = last & 15 if groups % 2 else last >> 4
        return np.stack([code & 3, code >> 2], axis=-1)

    def _places_n_m(self, where: str) -> np.ndarray:
        n, m = self.pattern
        groups = self.metadata.shape[-1] // n
        grouped = self.metadata.reshape(*self.metadata.shape[:-1], groups, n)
        rising = (np.diff(grouped.astype(np.int16), axis=-1) > 0).all() and (grouped < m).all()
        if not rising:
            raise FormatError(
                f"{where}: the places of a group must rise and stay below {m}; the file is damaged"
            )
        return grouped[..., -1, :] if groups else grouped.reshape(*self.shape[:-1], 0)

    def _nothing_past_the_edge(self, places: np.ndarray, where: str) -> None:
        n, m = self.pattern
        k = self.shape[-1]
        if k % m and places.size:
            last = self.values[..., -n:]
            if (last[places >= k % m] != 0).any():
                raise FormatError(f"{where}: a value lies beyond the last of {k} columns")


def _fields(entry: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Shape, pattern, axis, transposable and layout of a header's entry."""
    shape, pattern = entry.get("shape"), entry.get("pattern")
    axis, transposable = entry.get("axis", -1), entry.get("transposable", False)
    layout = entry.get("layout", "codes")
    if not is_sizes(shape) or len(shape) < 2:
        raise FormatError(f"{where}: the shape must be two or more sizes, got {shape!r}")
    if not is_sizes(pattern) or len(pattern) != 2 or not 0 < pattern[0] < pattern[1] <= 32:
        raise FormatError(f"{where}: the pattern must be a pair such as [2, 4], got {pattern!r}")
    if type(axis) is not int or axis not in (-1, -2) or not isinstance(transposable, bool):
        raise FormatError(f"{where}: axis must be -1 or -2, and transposable true or false")
    if layout != "places" and (layout != "codes" or pattern != [2, 4]):
        raise FormatError(f"{where}: no array of pattern {pattern} has the layout {layout!r}")
    return {
        "shape": tuple(shape),
        "pattern": tuple(pattern),
        "axis": axis,
        "transposable": transposable,
        "layout": layout,
    }


def is_sizes(value: Any) -> TypeGuard[list[int]]:
    """True for a list of whole numbers that can be sizes of an array."""
    return isinstance(value, list) and all(type(x) is int and 0 <= x < 1 << 63 for x in value)
