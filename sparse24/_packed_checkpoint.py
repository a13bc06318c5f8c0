"""Checkpoints of compressed-tensors, whose matrices are packed by bit masks, read as dense ones.

``layer.weight`` is there as ``layer.compressed``, the kept elements, ``layer.bitmask``, which says
where they are, and ``layer.shape``; early versions keep ``.weight`` in these names.
"""

from __future__ import annotations

import functools
import os

import numpy as np

from sparse24 import _raw_files, convert
from sparse24._errors import FormatError, PatternError, ShapeError
from sparse24._raw_files import ArrayFile

_PARTS = ("compressed", "bitmask", "shape")


def open_checkpoint(path: str | os.PathLike) -> ArrayFile:
    """Open what `_raw_files.open_arrays` opens, with packed matrices as the dense ones they hold.

    Raises
    ------
    ArgumentError, FormatError, FileNotFoundError
        As `_raw_files.open_arrays`; also if the shape of a packed matrix is none.
    """
    file = _raw_files.open_arrays(path)
    ours = any(one.header for one in file.files)
    return file if ours or not _packed_layers(file) else UnpackedFile(file)


def _packed_layers(file: ArrayFile) -> list[str]:
    """What comes before ``.compressed`` and the like.

    The unstructured form has the same parts, but a vector of elements; it stays as it is.
    """
    layers = [name.removesuffix(".bitmask") for name in file if name.endswith(".bitmask")]
    return [
        layer
        for layer in layers
        if all(f"{layer}.{part}" in file for part in _PARTS)
        and len(file.specs[f"{layer}.compressed"][0]) == 2
        and _weight_of(layer) not in file
    ]


def _weight_of(layer: str) -> str:
    return layer if layer.endswith(".weight") else f"{layer}.weight"


class UnpackedFile(ArrayFile):
    """The arrays of a file, or of one shard of it, with packed matrices in place of their parts.

    A matrix belongs to the shard of its elements; its other parts may lie in another one.
    """

    def __init__(self, file: ArrayFile, whole: ArrayFile | None = None):
        super().__init__(file.path)
        self.header, self.texts, self.index = file.header, file.texts, file.index
        self._file, self._whole = file, whole or file
        self._layers: dict[str, str] = {}
        packed = _packed_layers(self._whole)
        layer_of = {f"{layer}.compressed": layer for layer in packed}
        taken = {f"{layer}.{part}" for layer in packed for part in _PARTS}
        for name, spec in file.specs.items():
            if name in layer_of:
                weight = _weight_of(layer_of[name])
                self._layers[weight] = layer_of[name]
                self.specs[weight] = self._shape(layer_of[name]), spec[1]
            elif name not in taken:
                self.specs[name] = spec

    @functools.cached_property
    def files(self) -> tuple[ArrayFile, ...]:
        if self.index is None:
            return (self,)
        return tuple(UnpackedFile(shard, self._file) for shard in self._file.files)

    def check_unchanged(self) -> None:
        self._file.check_unchanged()

    def _shape(self, layer: str) -> tuple[int, int]:
        sizes = self._whole[f"{layer}.shape"]
        if sizes.size != 2 or sizes.dtype.kind not in "iu":
            raise FormatError(
                f"{self.path}: {layer}.shape must hold two whole numbers, got {sizes.dtype} of "
                f"shape {sizes.shape}"
            )
        m, k = map(int, sizes.reshape(-1))
        bits, dtype = self._whole.specs[f"{layer}.bitmask"]
        if min(m, k) < 0 or (bits, dtype) != ((m, -(-k // 8)), np.uint8):
            raise FormatError(
                f"{self.path}: {layer}: bitmask must be uint8 of shape {(m, -(-k // 8))} for a "
                f"matrix of shape {(m, k)}, got {dtype} {bits}"
            )
        return m, k

    def _read(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        if name not in self._layers:
            return self._file[name]
        values, bits = (self._whole[f"{self._layers[name]}.{part}"] for part in _PARTS[:2])
        try:
            return convert.from_bitmask(values, bits, shape).toarray()
        except (FormatError, PatternError, ShapeError) as error:
            raise type(error)(f"{self.path}: {self._layers[name]}: {error}") from error
