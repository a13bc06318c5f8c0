"""Converted checkpoints made dense again: all arrays with their zeros, for programs of any kind."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sparse24 import _convert_checkpoint, _convert_targets, _raw_files
from sparse24.formats import array_parts, stored
from sparse24.formats.base import SparseArray


def is_compressed(file: _raw_files.ArrayFile) -> bool:
    """True if the file, or a shard of it, has arrays that sparse24 has compressed."""
    return any(one.header.get("arrays") for one in file.files)


def expand(
    file: _raw_files.ArrayFile, target: str | os.PathLike, *, progress: bool = True
) -> dict[str, Any]:
    """Write all arrays of a converted checkpoint to another, the compressed ones dense.

    Nothing is pruned, and no element changes.

    Returns
    -------
    dict
        Of a conversion's report the totals, and the arrays that were dense before.

    Raises
    ------
    ArgumentError, DTypeError
        If the target would replace the source, or cannot hold an array.
    FormatError
        If the source is damaged.
    """
    outputs = _convert_targets.outputs_of(file, target)
    total = sum(len(stored.entries_of(one)) for one in file.files)
    with _convert_checkpoint.progress_bar(None, total, shown=progress) as bar:
        job = _Expansion(bar)
        _convert_checkpoint.write_all(file, Path(target), job)
    sizes = _convert_checkpoint.file_sizes(file, outputs)
    return {"unchanged": job.unchanged, "totals": {**job.totals, **sizes}}


@dataclass
class _Expansion:
    """The expansion of a checkpoint, file by file, and what it has come to so far."""

    bar: Any
    unchanged: list[str] = field(default_factory=list)
    totals: dict[str, int] = field(
        default_factory=lambda: {"matrices": 0, "bytes_before": 0, "bytes_after": 0}
    )
    names: set[str] = field(default_factory=set)

    def run(self, file: _raw_files.ArrayFile) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The arrays of a file, all dense, and no header."""
        loaded = stored.by_name(stored.unpack(file))
        stored.refuse_twice(file.path, loaded, self.names)
        self.names |= loaded.keys()
        return {name: self._dense(name, array) for name, array in loaded.items()}, {}

    def _dense(self, name: str, array: Any) -> np.ndarray:
        if not isinstance(array, SparseArray):
            self.unchanged.append(name)
            return array
        dense = array.toarray()
        self.totals["matrices"] += 1
        self.totals["bytes_before"] += array_parts.file_bytes(array_parts.parts_of(array))
        self.totals["bytes_after"] += dense.nbytes
        self.bar.update()
        return dense

    def check(self) -> None:
        """Every file was checked when it was read."""
