"""Checkpoints of compressed-tensors, whose matrices are packed, read as the dense ones they hold.

``layer.weight`` is there in several parts.  Packed by bit masks, these are ``layer.compressed``,
the kept elements, ``layer.bitmask``, which says where they are, and ``layer.shape``; early versions
keep ``.weight`` in these names.  Those of ``marlin-24`` are what `convert.from_marlin24` takes.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator

import numpy as np

from sparse24 import _marlin24, _raw_files, convert
from sparse24._errors import FormatError, PatternError, ShapeError
from sparse24._file_checks import Spec
from sparse24._raw_files import ArrayFile
from sparse24.formats.quantised import Quantised24Array
from sparse24.formats.two_four import Sparse24Array


def open_checkpoint(path: str | os.PathLike) -> ArrayFile:
    """Open what `_raw_files.open_arrays` opens, with packed matrices as the dense ones they hold.

    Raises
    ------
    ArgumentError, FormatError, FileNotFoundError
        As `_raw_files.open_arrays`; also if parts of a packed matrix do not fit together.
    """
    file = _raw_files.open_arrays(path)
    ours = any(one.header for one in file.files)
    return file if ours or not _packed_layers(file) else UnpackedFile(file)


def bits_of(file: ArrayFile, name: str) -> int | None:
    """Bits of the integers of a matrix that a checkpoint holds quantised; else None."""
    return file.bits(name) if isinstance(file, UnpackedFile) else None


def quantised_in(file: ArrayFile, name: str) -> Quantised24Array | None:
    """A matrix that a checkpoint holds quantised, by its integers and factors; else None."""
    if not isinstance(file, UnpackedFile) or file.bits(name) is None:
        return None
    return file.quantised(name)


class _Form:
    """A way to pack matrices.

    Attributes
    ----------
    parts : tuple of str
        Last names of the arrays; a matrix takes the place of the first of them.
    """

    parts: tuple[str, ...]

    def packs(self, file: ArrayFile, layer: str) -> bool:
        """Whether a layer that has parts of these names is packed in this way."""
        return True

    def spec(self, file: ArrayFile, layer: str) -> Spec:
        """Shape and type of the matrix, once the parts fit together."""
        raise NotImplementedError(type(self).__name__)

    def bits(self, file: ArrayFile, layer: str) -> int | None:
        """Bits of the integers that a quantised matrix has for elements; None for all others."""
        return None

    def read(self, parts: list[np.ndarray], shape: tuple[int, ...]) -> Sparse24Array:
        raise NotImplementedError(type(self).__name__)

    def quantised(self, parts: list[np.ndarray]) -> Quantised24Array:
        """The same matrix by its integers, if it has `bits`."""
        raise NotImplementedError(type(self).__name__)


class _Bitmask(_Form):
    parts = ("compressed", "bitmask", "shape")

    def packs(self, file: ArrayFile, layer: str) -> bool:
        # The unstructured form has the same parts, but a vector of elements; it stays as it is.
        return len(file.specs[f"{layer}.compressed"][0]) == 2

    def spec(self, file: ArrayFile, layer: str) -> Spec:
        sizes = file[f"{layer}.shape"]
        if sizes.size != 2 or sizes.dtype.kind not in "iu":
            raise FormatError(
                f"{file.path}: {layer}.shape must hold two whole numbers, got {sizes.dtype} of "
                f"shape {sizes.shape}"
            )
        m, k = map(int, sizes.reshape(-1))
        bits, dtype = file.specs[f"{layer}.bitmask"]
        if min(m, k) < 0 or (bits, dtype) != ((m, -(-k // 8)), np.uint8):
            raise FormatError(
                f"{file.path}: {layer}: bitmask must be uint8 of shape {(m, -(-k // 8))} for a "
                f"matrix of shape {(m, k)}, got {dtype} {bits}"
            )
        return (m, k), file.specs[f"{layer}.compressed"][1]

    def read(self, parts: list[np.ndarray], shape: tuple[int, ...]) -> Sparse24Array:
        values, bits, _ = parts
        return convert.from_bitmask(values, bits, shape)


class _Marlin24(_Form):
    parts = _marlin24.PARTS

    def spec(self, file: ArrayFile, layer: str) -> Spec:
        return self._layout(file, layer).shape, file.specs[f"{layer}.scale_packed"][1]

    def bits(self, file: ArrayFile, layer: str) -> int:
        return self._layout(file, layer).bits

    def _layout(self, file: ArrayFile, layer: str) -> _marlin24.Layout:
        specs = {part: file.specs[f"{layer}.{part}"] for part in self.parts}
        try:
            return _marlin24.layout(specs)
        except FormatError as error:
            raise FormatError(f"{file.path}: {layer}: {error}") from error

    def read(self, parts: list[np.ndarray], shape: tuple[int, ...]) -> Sparse24Array:
        return convert.from_marlin24(*parts)

    def quantised(self, parts: list[np.ndarray]) -> Quantised24Array:
        return convert.from_marlin24(*parts, quantised=True)


_FORMS = (_Bitmask(), _Marlin24())


def _packed_layers(file: ArrayFile) -> dict[str, _Form]:
    """What comes before ``.compressed`` and the like, and how that layer is packed."""
    return {
        layer: form
        for form in _FORMS
        for layer in _layers_with(form.parts, file)
        if _weight_of(layer) not in file and form.packs(file, layer)
    }


def _layers_with(parts: tuple[str, ...], file: ArrayFile) -> list[str]:
    last = f".{parts[0]}"
    layers = [name.removesuffix(last) for name in file if name.endswith(last)]
    return [layer for layer in layers if all(f"{layer}.{part}" in file for part in parts)]


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
        self._layers: dict[str, tuple[str, _Form]] = {}  # by the name of the matrix
        packed = _packed_layers(self._whole)
        layer_of = {f"{layer}.{form.parts[0]}": layer for layer, form in packed.items()}
        taken = {f"{layer}.{part}" for layer, form in packed.items() for part in form.parts}
        for name, spec in file.specs.items():
            if name in layer_of:
                layer = layer_of[name]
                weight, form = _weight_of(layer), packed[layer]
                self._layers[weight] = layer, form
                self.specs[weight] = form.spec(self._whole, layer)
            elif name not in taken:
                self.specs[name] = spec

    @functools.cached_property
    def files(self) -> tuple[ArrayFile, ...]:
        if self.index is None:
            return (self,)
        return tuple(UnpackedFile(shard, self._file) for shard in self._file.files)

    def check_unchanged(self) -> None:
        self._file.check_unchanged()

    def _read(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        if name not in self._layers:
            return self._file[name]
        layer, form = self._layers[name]
        with self._naming(layer):
            return form.read(self._parts(name), shape).toarray()

    def bits(self, name: str) -> int | None:
        """Bits of the integers of a quantised matrix; None for all other arrays."""
        if name not in self._layers:
            return None
        layer, form = self._layers[name]
        return form.bits(self._whole, layer)

    def quantised(self, name: str) -> Quantised24Array:
        """A matrix that has `bits`, by its integers and factors."""
        layer, form = self._layers[name]
        with self._naming(layer):
            return form.quantised(self._parts(name))

    def _parts(self, name: str) -> list[np.ndarray]:
        layer, form = self._layers[name]
        return [self._whole[f"{layer}.{part}"] for part in form.parts]

    @contextlib.contextmanager
    def _naming(self, layer: str) -> Iterator[None]:
        """Have errors of parts name the file and the layer."""
        try:
            yield
        except (FormatError, PatternError, ShapeError) as error:
            raise type(error)(f"{self.path}: {layer}: {error}") from error
