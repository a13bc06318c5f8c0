"""Checkpoints in shards: several safetensors files, and an index that says what is in which.

The index, ``model.safetensors.index.json``, lies beside the shards::

    {"metadata": {"total_size": ...}, "weight_map": {NAME: "model-00001-of-00003.safetensors", ...}}
"""

from __future__ import annotations

import errno
import fnmatch
import json
import os
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np

from sparse24 import _check
from sparse24._errors import ArgumentError, FormatError
from sparse24._file_checks import AS_SAFETENSORS, PICKLES, damaged
from sparse24._raw_files import ArrayFile, SafetensorsFile

# A variant of a model has a name of its own: model.safetensors.index.fp16.json.
_INDEX, _INDEX_OF_PICKLES = "*.safetensors.index*.json", "*.bin.index*.json"


def may_be_sharded(path: str | os.PathLike) -> bool:
    """True for a folder and for an index, by their names alone."""
    return Path(path).suffix.lower() == ".json" or Path(path).is_dir()


def open_sharded(path: str | os.PathLike) -> ArrayFile:
    """Open the checkpoint of an index, or of a folder with one index or one safetensors file.

    Raises
    ------
    ArgumentError
        If the folder holds several, or none.
    FormatError
        If the index or a shard is damaged, or they do not fit together.
    """
    path = Path(path)
    found = _only_one_in(path) if path.is_dir() else path
    return ShardedFile(found) if found.suffix.lower() == ".json" else SafetensorsFile(found)


def indexes(folder: Path) -> list[Path]:
    """The indexes of safetensors files in a folder."""
    return _shown(folder, _INDEX)


def _shown(folder: Path, pattern: str) -> list[Path]:
    # Not of `glob`, which finds nothing in a folder that may not be read.
    names = fnmatch.filter(os.listdir(folder), pattern)
    return sorted(folder / name for name in names if not name.startswith("."))


def _only_one_in(folder: Path) -> Path:
    for pattern in (_INDEX, "*.safetensors"):
        found = _shown(folder, pattern)
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(path.name for path in found[:3]) + (", …" if len(found) > 3 else "")
            without = "" if pattern == _INDEX else " and no index of them"
            raise ArgumentError(
                f"{str(folder)!r} is a folder with {len(found)} files {names}{without}; name one"
            )
    for pattern in (_INDEX_OF_PICKLES, *(f"*{suffix}" for suffix in PICKLES)):
        for path in folder.glob(pattern):
            raise _pickles(path)
    raise ArgumentError(
        f"{str(folder)!r} is a folder without model.safetensors.index.json or a safetensors file; "
        "name a file in it"
    )


def _pickles(path: Path) -> FormatError:
    return FormatError(
        f"{path} is a checkpoint of pickles, which sparse24 never reads, as they may run any "
        f"program; {AS_SAFETENSORS}"
    )


class ShardedFile(ArrayFile):
    """The arrays of all shards of an index by name; only headers are read before they are asked.

    Attributes
    ----------
    index : dict
        What the index holds, ``weight_map`` and ``metadata`` among it.
    """

    index: dict[str, Any]

    def __init__(self, path: Path):
        super().__init__(path)
        self.index = _read_index(path)
        names: dict[str, list[str]] = {}
        for name, shard in self.index["weight_map"].items():
            names.setdefault(_checked_shard(path, name, shard), []).append(name)
        self._shards = tuple(_open_shard(path, shard) for shard in sorted(names))
        for file in self._shards:
            for name in names[file.path.name]:
                if name not in file:
                    raise damaged(path, f"array {name!r} is not in its shard, {file.path.name}")
        for file in self._shards:
            for name in file.keys() - set(names[file.path.name]):
                raise self._surplus(file, name)
            self.specs |= file.specs
        self._homes = {name: file for file in self._shards for name in file}

    @property
    def files(self) -> tuple[SafetensorsFile, ...]:
        """The shards, in the order of their names."""
        return self._shards

    def check_unchanged(self) -> None:
        for file in self._shards:
            file.check_unchanged()

    def _surplus(self, file: SafetensorsFile, name: str) -> FormatError:
        home, shard = self.index["weight_map"].get(name), file.path.name
        if home is not None:
            return damaged(self.path, f"array {name!r} is in two shards, {home} and {shard}")
        return FormatError(
            f"{self.path} does not list the array {name!r} of the shard {shard}; add it to the "
            "weight_map, or fetch or save the checkpoint again"
        )

    def _read(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        return self._homes[name][name]


def _read_index(path: Path) -> dict[str, Any]:
    if ".bin.index" in path.name.lower():
        raise _pickles(path)
    try:
        index = json.loads(path.read_bytes(), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"it is not JSON ({error})") from error
    if not isinstance(index, dict) or not isinstance(index.get("weight_map"), dict):
        raise damaged(path, "it is not an index of shards, which has a weight_map")
    if not isinstance(index.get("metadata", {}), dict):
        raise damaged(path, "its metadata is not a JSON object")
    if not index["weight_map"]:
        raise damaged(path, "its weight_map is empty")
    return index


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, of which the usual reader would keep the last of two like names."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"it has {name!r} twice")
        found[name] = value
    return found


def _checked_shard(path: Path, name: str, shard: Any) -> str:
    """The name of a shard, if it is one of a file beside the index."""
    plain = isinstance(shard, str) and shard not in ("", ".", "..")
    if not plain or {PurePosixPath(shard).name, PureWindowsPath(shard).name} != {shard}:
        raise FormatError(
            f"{path} has the array {name!r} in {_check.shown(shard)}; a shard must be named by "
            "the plain name of a file beside the index"
        )
    if shard.lower().endswith(PICKLES):
        raise _pickles(path.parent / shard)
    if not shard.lower().endswith(".safetensors"):
        raise FormatError(
            f"{path} has the array {name!r} in {_check.shown(shard)}, which is not a safetensors "
            "file; save the model as safetensors"
        )
    return shard


def _open_shard(path: Path, shard: str) -> SafetensorsFile:
    try:
        there = (path.parent / shard).is_file()
    except OSError as error:  # not of one that may not be read, which is there
        if error.errno != errno.ENAMETOOLONG:
            raise
        there = False
    if not there:
        raise FormatError(
            f"{path} names the shard {shard!r}, but no such file is beside it; fetch all shards"
        )
    return SafetensorsFile(path.parent / shard)
