"""The stored parts of a `HybridArray`, of its tiles or of its rows, and checks of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from sparse24 import _dtypes
from sparse24._errors import FormatError
from sparse24.formats import hybrid_checks
from sparse24.formats import hybrid_tiles as ht
from sparse24.formats.hybrid_listed import ListedRows
from sparse24.formats.parts import is_sizes
from sparse24.kernels.csr import CsrRows

HYBRID = "hybrid"  # the layout's name in a header, where tiles are stored,
HYBRID_ROWS = "hybrid_rows"  # and where rows are
_ROW_TYPES: dict[str, Any] = {"starts": np.int64, "columns": np.uint32}
_TYPES: dict[str, Any] = {
    "kinds": np.uint8, "starts": np.int64, "slots": np.int32, "codes": np.uint64,
    "overflow_starts": np.int64, "overflow_places": np.uint16,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class HybridParts:
    """What a file holds of one hybrid matrix: its tiles as NumPy arrays."""

    stored: Any  # ht.Tiles, or ListedRows
    n_hint: int | None

    PIECES: ClassVar[tuple[str, ...]] = ht.ARRAYS

    @property
    def shape(self) -> tuple[int, int]:
        return self.stored.shape

    @property
    def array_shape(self) -> tuple[int, int]:
        return self.shape

    @property
    def dtype(self) -> _dtypes.DType:
        return self.stored.dtype

    @property
    def kind(self) -> str:
        return HYBRID

    @property
    def nnz(self) -> int:
        return ht.count_nonzero(self.stored)

    def pieces(self) -> dict[str, np.ndarray]:
        """The arrays of the file by their last name."""
        return {name: getattr(self.stored, name) for name in self.PIECES}

    def describe(self) -> dict[str, Any]:
        """The entry of the header."""
        return {
            "shape": list(self.shape),
            "dtype": self.dtype.name,
            "n_hint": self.n_hint,
            "layout": self.kind,
        }

    @classmethod
    def from_entry(
        cls, entry: Mapping[str, Any], pieces: dict[str, np.ndarray], *, where: str
    ) -> Self:
        """Parts of a header's entry and its arrays, checked; `where` begins each message."""
        shape, name, hint = (entry.get(key) for key in ("shape", "dtype", "n_hint"))
        if not is_sizes(shape) or len(shape) != 2:
            raise FormatError(f"{where}: the shape must be two sizes, got {shape!r}")
        if name not in ht.DTYPES:
            raise FormatError(f"{where}: the dtype must be one of {ht.DTYPES}, got {name!r}")
        if hint is not None and (type(hint) is not int or hint < 1):
            raise FormatError(f"{where}: n_hint must be a positive whole number, got {hint!r}")
        dtype = _dtypes.TABLE[name]
        for key, wanted in cls._types(dtype).items():
            if pieces[key].dtype != wanted:
                raise FormatError(
                    f"{where}: {key} must be {np.dtype(wanted)}, got {pieces[key].dtype}"
                )
        try:
            return cls(cls._checked((shape[0], shape[1]), dtype, pieces), hint)
        except FormatError as error:
            raise FormatError(f"{where}: {error}") from error

    @staticmethod
    def _types(dtype: _dtypes.DType) -> dict[str, Any]:
        """The types of the arrays by name."""
        return _TYPES | {"values": dtype.logical, "overflow_values": dtype.logical}

    @staticmethod
    def _checked(
        shape: tuple[int, int], dtype: _dtypes.DType, pieces: dict[str, np.ndarray]
    ) -> Any:
        """What the arrays store; raises `FormatError` unless they fit together."""
        tiles = ht.Tiles(shape, dtype, **pieces)
        hybrid_checks.check(tiles)
        return tiles


class HybridRowsParts(HybridParts):
    """The parts of a `HybridArray` of which only rows are stored."""

    __slots__ = ()

    PIECES = ("starts", "columns", "values")

    @property
    def kind(self) -> str:
        return HYBRID_ROWS

    @property
    def nnz(self) -> int:
        return self.stored.nnz

    def pieces(self) -> dict[str, np.ndarray]:
        starts, columns, _ = self.stored.csr
        arrays = (starts, columns, self.stored.elements[0])
        return dict(zip(self.PIECES, arrays, strict=True))

    @staticmethod
    def _types(dtype: _dtypes.DType) -> dict[str, Any]:
        return _ROW_TYPES | {"values": dtype.logical}

    @staticmethod
    def _checked(
        shape: tuple[int, int], dtype: _dtypes.DType, pieces: dict[str, np.ndarray]
    ) -> ListedRows:
        bits = pieces["values"].view(dtype.storage)
        listed = ListedRows(shape, dtype, CsrRows(pieces["starts"], pieces["columns"], bits))
        hybrid_checks.check_rows(listed)
        return listed
