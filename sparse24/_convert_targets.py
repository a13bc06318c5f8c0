"""What a conversion writes: paths and arrays that are refused before any work is done."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sparse24 import _packed_checkpoint, _raw_files, _raw_writers, _shards, _whole_files
from sparse24._errors import ArgumentError
from sparse24._table import count


def outputs_of(file: _raw_files.ArrayFile, target: str | os.PathLike) -> list[Path]:
    """The files that a job writes, checked; an index is the last."""
    if file.index is not None:
        return _outputs_of_shards(file, Path(target))
    if Path(target).suffix.lower() not in (".safetensors", ".npz"):
        raise ArgumentError(
            f"OUT must end in .safetensors or .npz, as IN is one file, {str(file.path)!r}, and "
            f"compressed arrays have parts, got {str(target)!r}"
        )
    if _same_file(file.path, target):
        raise ArgumentError(f"OUT must not be IN, {str(file.path)!r}: pruning cannot be undone")
    _whole_files.check_writable(target)
    return [Path(target)]


def _outputs_of_shards(file: _raw_files.ArrayFile, folder: Path) -> list[Path]:
    if folder.suffix.lower() in (*_raw_files.SUFFIXES, ".json") and not folder.is_dir():
        raise ArgumentError(
            f"OUT must be a folder, as IN has {count(len(file.files), 'shard')}, got "
            f"{str(folder)!r}; name one for as many shards and their index"
        )
    _whole_files.check_folder(folder)
    sources = [*(shard.path for shard in file.files), file.path]
    outputs = [folder / path.name for path in sources]
    real = {os.path.realpath(path) for path in outputs}
    if _same_file(folder, file.path.parent) or real & {os.path.realpath(x) for x in sources}:
        raise ArgumentError(
            f"OUT must not be the folder of IN, {str(file.path.parent)!r}, nor lead to files in "
            "it: pruning cannot be undone"
        )
    if len(real) < len(outputs):
        raise ArgumentError(
            f"OUT, {str(folder)!r}, has links to one file under two names; name a new folder"
        )
    for other in _shards.indexes(folder) if folder.is_dir() else ():
        if other.name != file.path.name:
            raise ArgumentError(
                f"OUT must not hold another checkpoint, got {str(folder)!r} with {other.name}; "
                "name a new folder"
            )
    return outputs


def check_kept(outputs: Iterable[Path], calibration: Any) -> None:
    """Refuse to replace the files of the calibration, which may also be a mapping in memory."""
    kept = paths_of(calibration) if isinstance(calibration, _raw_files.ArrayFile) else []
    for output in outputs:
        for path in kept:
            if _same_file(output, path):
                raise ArgumentError(
                    f"OUT must not replace a file of the calibration, {str(path)!r}, got "
                    f"{str(output)!r}; name another"
                )


def paths_of(file: _raw_files.ArrayFile) -> list[Path]:
    """The paths of a file, or of shards and their index; each once."""
    return list(dict.fromkeys(one.path for one in (*file.files, file)))


def check_arrays(
    file: _raw_files.ArrayFile, output: Path, names: Iterable[str], pieces: Sequence[str] = ()
) -> None:
    """Refuse what cannot be written: the named matrices compressed, all other arrays as they are.

    `pieces` are the last names of the parts of one.  Before it is known which of the named ones are
    compressed, there are none, and only the others are looked at.
    """
    chosen = frozenset(names)
    others = {name: dtype for name, (_, dtype) in file.specs.items() if name not in chosen}
    parts = {f"{name}.{part}" for name in chosen for part in pieces}
    _raw_writers.check(output, {**dict.fromkeys(sorted(parts), np.dtype(np.uint8)), **others})
    for name in others:
        if name in parts:  # in this shard or in another
            raise ArgumentError(
                f"two arrays would be saved as {name!r}; rename one, or leave the matrix out with "
                "--include or --exclude"
            )


def _same_file(first: str | os.PathLike, second: str | os.PathLike) -> bool:
    """True if two paths name one file, whether it is there or not."""
    return os.path.realpath(first) == os.path.realpath(second) or (
        os.path.exists(first) and os.path.exists(second) and os.path.samefile(first, second)
    )


def check_report(
    path: str | os.PathLike,
    source: str | os.PathLike,
    target: str | os.PathLike,
    *others: str | os.PathLike,
) -> None:
    """Refuse a report that cannot be written, or that would replace another file of the job."""
    _whole_files.check_writable(path)
    file = _packed_checkpoint.open_checkpoint(source)
    taken: list[str | os.PathLike] = [source, target, *others]
    for one in paths_of(file):
        taken += [one, *([Path(target, one.name)] if file.index is not None else [])]
    for other in taken:
        if _same_file(path, other):
            raise ArgumentError(
                f"the report must not replace {str(other)!r}; name another file, such as "
                "report.json"
            )
