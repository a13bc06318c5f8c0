"""Save and load a `HybridArray` as ``.npz``; nothing is ever unpickled."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from sparse24 import _dtypes, _spec
from sparse24._errors import DTypeError, FormatError
from sparse24.formats import hybrid_tiles as ht
from sparse24.formats.hybrid import HybridArray

LAYOUT = "sparse24-hybrid"
WANTED: dict[str, Any] = {
    "kinds": np.uint8, "starts": np.int64, "slots": np.int32, "codes": np.uint64,
    "overflow_starts": np.int64, "overflow_places": np.uint16,
}  # fmt: skip


def save(path, h: HybridArray, *, compressed: bool = False) -> None:
    """Write `h` to a ``.npz`` file; elements are stored as their bits.

    Parameters
    ----------
    path : str or Path
        Written as it stands; NumPy adds ``.npz`` if it is missing.
    h : HybridArray
        On either device; one on the GPU is copied, which waits.
    compressed : bool, default False
        Smaller and slower.
    """
    tiles = h.tiles.to_numpy()
    arrays = {name: getattr(tiles, name) for name in ht.ARRAYS}
    for name in ("values", "overflow_values"):
        arrays[name] = arrays[name].view(tiles.dtype.storage)
    header: dict[str, Any] = {
        "layout": LAYOUT, "version": _spec.FORMAT_VERSION, "shape": np.array(tiles.shape),
        "dtype": tiles.dtype.name, "n_hint": h.n_hint or 0,
    }  # fmt: skip
    writer = np.savez_compressed if compressed else np.savez
    writer(path, **header, **arrays)


def load(path) -> HybridArray:
    """Read a file that `save` wrote, to the CPU.

    Raises
    ------
    FormatError
        If the file is not ours, is newer than this library, or is damaged.
    """
    try:
        with np.load(Path(path), allow_pickle=False) as file:
            parts = {name: file[name] for name in file.files}
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise FormatError(f"{path} is not a readable .npz file: {error}") from error
    missing = {"layout", "version", "shape", "dtype", "n_hint", *ht.ARRAYS} - parts.keys()
    if missing or str(parts["layout"]) != LAYOUT:
        raise FormatError(f"{path} does not hold a hybrid matrix; missing: {sorted(missing)}")
    if int(parts["version"]) > _spec.FORMAT_VERSION:
        raise FormatError(
            f"{path} has format version {int(parts['version'])}, newer than "
            f"{_spec.FORMAT_VERSION}; update sparse24"
        )
    return HybridArray.from_tiles(_tiles(path, parts), int(parts["n_hint"]) or None)


def _tiles(path, parts) -> ht.Tiles:
    try:
        dtype = _dtypes.lookup(str(parts["dtype"]))
    except DTypeError as error:
        raise FormatError(f"{path}: {error}") from error
    wanted = {**WANTED, "values": dtype.storage, "overflow_values": dtype.storage}
    for name, expected in wanted.items():
        if parts[name].dtype != expected:
            raise FormatError(
                f"{path}: {name} must be {np.dtype(expected)}, got {parts[name].dtype}"
            )
    shape = parts["shape"]
    if shape.shape != (2,) or shape.dtype.kind != "i" or (shape < 0).any():
        raise FormatError(f"{path}: shape must be two whole numbers, got {shape!r}")
    arrays = {name: parts[name] for name in ht.ARRAYS}
    for name in ("values", "overflow_values"):
        arrays[name] = arrays[name].view(dtype.logical)
    return ht.Tiles((int(shape[0]), int(shape[1])), dtype, **arrays)


