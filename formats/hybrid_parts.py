"""The stored parts of a `HybridArray`, and checks that they are valid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparse24 import _dtypes
from sparse24._errors import FormatError
from sparse24.formats import hybrid_checks
from sparse24.formats import hybrid_tiles as ht
from sparse24.formats.parts import is_sizes

HYBRID = "hybrid"  # the layout's name in a header
_TYPES: dict[str, Any] = {
    "kinds": np.uint8, "starts": np.int64, "slots": np.int32, "codes": np.uint64,
    "overflow_starts": np.int64, "overflow_places": np.uint16,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class HybridParts:
    """What a file holds of one hybrid matrix: its tiles as NumPy arrays."""

    tiles: ht.Tiles
    n_hint: int | None

    PIECES = ht.ARRAYS

    @property
    def shape(self) -> tuple[int, int]:
        return self.tiles.shape

    @property
    def array_shape(self) -> tuple[int, int]:
        return self.shape

    @property
    def dtype(self) -> _dtypes.DType:
        return self.tiles.dtype

    @property
    def kind(self) -> str:
        return HYBRID

    def pieces(self) -> dict[str, np.ndarray]:
        """The arrays of the file by their last name."""
        return {name: getattr(self.tiles, name) for name in self.PIECES}

    def describe(self) -> dict[str, Any]:
        """The entry of the header."""
        return {
            "shape": list(self.shape),
            "dtype": self.dtype.name,
            "n_hint": self.n_hint,
            "layout": HYBRID,
        }

    @classmethod
    def from_entry(
        cls, entry: Mapping[str, Any], pieces: dict[str, np.ndarray], *, where: str
    ) -> HybridParts:
        """Parts of a header's entry and its arrays, checked; `where` begins each message."""
        shape, name, hint = (entry.get(key) for key in ("shape", "dtype", "n_hint"))
        if not is_sizes(shape) or len(shape) != 2:
            raise FormatError(f"{where}: the shape must be two sizes, got {shape!r}")
        if name not in ht.DTYPES:
            raise FormatError(f"{where}: the dtype must be one of {ht.DTYPES}, got {name!r}")
        if hint is not None and (type(hint) is not int or hint < 1):
            raise FormatError(f"{where}: n_hint must be a positive whole number, got {hint!r}")
        dtype = _dtypes.TABLE[name]
        elements = {"values": dtype.logical, "overflow_values": dtype.logical}
        for key, wanted in (_TYPES | elements).items():
            if pieces[key].dtype != wanted:
                raise FormatError(
                    f"{where}: {key} must be {np.dtype(wanted)}, got {pieces[key].dtype}"
                )
        tiles = ht.Tiles((shape[0], shape[1]), dtype, **pieces)
        try:
            hybrid_checks.check(tiles)
        except FormatError as error:
            raise FormatError(f"{where}: {error}") from error
        return cls(tiles, hint)
