"""Convert checkpoints: prune and compress what is eligible, file by file, and write the rest."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from sparse24 import (
    _checkpoint,
    _convert_targets,
    _packed_checkpoint,
    _quantise_checkpoint,
    _raw_files,
    _raw_writers,
    _whole_files,
)
from sparse24._checkpoint import Recipe, Selection
from sparse24._errors import ArgumentError
from sparse24._table import count
from sparse24.formats import stored


def convert(
    source: str | os.PathLike,
    target: str | os.PathLike,
    *,
    selection: Selection | None = None,
    recipe: Recipe | None = None,
    dense: bool = False,
    progress: bool = True,
) -> dict[str, Any]:
    """Prune and compress the eligible matrices of a checkpoint and write all arrays to another.

    With `dense` the pruned matrices are written as plain arrays, which every program reads.
    Of a source in shards the target is a folder, which gets shards and an index of the same
    names; one shard at a time is in memory.  What is written appears only when all of it is whole;
    the source is never changed.

    A matrix that the source holds quantised keeps its integers if the recipe has as many bits.

    Returns
    -------
    dict
        The report: a row for each layer, the arrays left as they were, and totals.

    Raises
    ------
    ArgumentError
        If nothing is eligible, a weight has a mask beside it, or the target would replace the
        source or the calibration.
    FormatError
        If the source is damaged, or something changed it meanwhile.
    """
    selection, recipe = selection or Selection(), recipe or Recipe()
    file = _packed_checkpoint.open_checkpoint(source)
    outputs = _convert_targets.outputs_of(file, target)
    _convert_targets.check_kept(outputs, recipe.calibration)
    names = _eligible(file, selection)
    _checkpoint.check_unmasked(names, file.specs)
    _check_recipe(recipe, names, file)
    _convert_targets.check_arrays(
        file, outputs[0], () if dense else names, () if recipe.fitting else recipe.pieces
    )
    with progress_bar(None, len(names), shown=progress) as bar:
        job = _Job(file, outputs, names, recipe, dense, bar)
        write_all(file, Path(target), job)
    return {**_report(file, job.rows, recipe, Path(target), outputs), "unfit": sorted(job.unfit)}


def _check_recipe(recipe: Recipe, names: list[str], file: _raw_files.ArrayFile) -> None:
    """Refuse matrices for which the recipe lacks something."""
    if recipe.bits is None:
        recipe.check(names)
        return
    found = {name: _packed_checkpoint.bits_of(file, name) for name in names}
    held = {name: bits for name, bits in found.items() if bits is not None}
    _quantise_checkpoint.check(recipe, {name: file.specs[name] for name in names}, held)
    recipe.check(name for name in names if name not in held)


@dataclass
class _Job:
    """The compression of a checkpoint, file by file, and what it has come to so far."""

    whole: _raw_files.ArrayFile
    outputs: list[Path]
    names: list[str]  # of the eligible matrices
    recipe: Recipe
    dense: bool
    bar: Any
    rows: list[dict[str, Any]] = field(default_factory=list)  # of the report
    unfit: list[str] = field(default_factory=list)

    def run(self, file: _raw_files.ArrayFile) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The arrays of a file, as they are stored, and their header."""
        made = {name: self._made(name, file) for name in self.names if name in file}
        arrays = {name: file[name] if made.get(name) is None else made[name] for name in file}
        return (arrays, {}) if self.dense else stored.pack(arrays)

    def _made(self, name: str, file: _raw_files.ArrayFile) -> Any:
        """What is written of a matrix; None where it stays as it is, for which it is read again."""
        layer = self._layer(name, file)
        self.bar.set_postfix_str(name[-40:], refresh=False)
        self.bar.update()
        if layer is None:
            self.unfit.append(name)
            return None
        row = layer.row()
        self.rows.append({**row, "bytes_after": row["bytes_before"]} if self.dense else row)
        return layer.written.toarray() if self.dense else layer.written

    def _layer(self, name: str, file: _raw_files.ArrayFile) -> _checkpoint.Layer | None:
        if self.recipe.bits is not None:
            held = _packed_checkpoint.quantised_in(file, name)
            if held is not None:
                return _checkpoint.kept_layer(name, held)
        return _checkpoint.compress_layer(name, file[name], self.recipe)

    def check(self) -> None:
        """Refuse what only a look at all matrices could tell, before any file is in place."""
        if not self.recipe.fitting:
            return
        if not self.rows:
            n, m = self.recipe.pattern
            raise ArgumentError(
                f"none of the {count(len(self.names), 'eligible matrix', 'eligible matrices')} of "
                f"{self.whole.path} obeys {n}:{m} along axis {self.recipe.axis}; name another "
                "--pattern or --axis, or prune them, without --no-prune"
            )
        names = {*self.names} - {*self.unfit}
        _convert_targets.check_arrays(self.whole, self.outputs[0], names, self.recipe.pieces)


class Job(Protocol):
    """What is written of each file of a checkpoint."""

    def run(self, file: _raw_files.ArrayFile) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The arrays of a file, as they are stored, and their header."""

    def check(self) -> None:
        """Called once all files are read, before any that is written is in place."""


def write_all(file: _raw_files.ArrayFile, target: Path, job: Job) -> None:
    """Write what a job makes of a file, or of each shard; it appears when all of it is whole."""
    if file.index is not None:
        _write_shards(file, target, job)
        return
    raw, header = job.run(file)
    job.check()
    _raw_writers.write(target, raw, header, file.texts, last=file.check_unchanged)


def _write_shards(file: _raw_files.ArrayFile, folder: Path, job: Job) -> None:
    index, entries = file.path.name, file.index or {}
    weight_map: dict[str, str] = {}
    total = 0
    with _whole_files.replacing_all(folder, [*(x.path.name for x in file.files), index]) as fresh:
        for shard in file.files:
            raw, header = job.run(shard)
            _raw_writers.write_safetensors(fresh[shard.path.name], raw, header, shard.texts)
            weight_map |= dict.fromkeys(raw, shard.path.name)
            total += sum(array.nbytes for array in raw.values())
            del raw  # before the next shard is read
        job.check()
        file.check_unchanged()
        metadata = {**entries.get("metadata", {}), "total_size": total}
        text = json.dumps({**entries, "metadata": metadata, "weight_map": weight_map}, indent=2)
        with _whole_files.replacing(fresh[index]) as whole:
            whole.write_text(text + "\n")


def _eligible(file: _raw_files.ArrayFile, selection: Selection) -> list[str]:
    names = selection.eligible(file)
    if not names:
        raise ArgumentError(
            f"{file.path} has no eligible matrix among its {count(len(file), 'array')}: "
            f"{_why_none(file, selection)}; see --include, --exclude, --min-size and --stacks"
        )
    return names


def _why_none(file: _raw_files.ArrayFile, selection: Selection) -> str:
    if not file.specs:
        return "the file is empty"
    shapes = {name: shape for name, (shape, _) in file.specs.items()}
    likely = max(shapes, key=lambda name: (len(shapes[name]) == 2, math.prod(shapes[name])))
    why = selection.refuses(likely, *file.specs[likely], beside=file.specs)
    return f"for example {likely!r} of shape {shapes[likely]}: {why}"


def progress_bar(work: Iterable[Any] | None, total: int, *, shown: bool = True):
    """A bar over matrices: on a terminal, never in a log file."""
    from tqdm import tqdm

    # None: only if standard error is no terminal.  Where the caller has closed it, it is no file.
    disable = None if shown and sys.stderr is not None else True
    return tqdm(work, total=total, unit="matrix", disable=disable, leave=False)


def _report(
    file: _raw_files.ArrayFile,
    rows: list[dict[str, Any]],
    recipe: Recipe,
    target: Path,
    outputs: list[Path],
) -> dict[str, Any]:
    """What was done, as JSON takes it."""
    done = {row["name"] for row in rows}
    return {
        "source": str(file.path),
        "target": str(target),
        "pattern": list(recipe.pattern),
        "axis": recipe.axis,
        "method": None if recipe.fitting else recipe.method,  # which chose no element then
        "bits": recipe.bits,
        "layers": rows,
        "unchanged": [name for name in file if name not in done],
        "totals": {
            "matrices": len(rows),
            "bytes_before": sum(row["bytes_before"] for row in rows),
            "bytes_after": sum(row["bytes_after"] for row in rows),
            **file_sizes(file, outputs),
        },
    }


def file_sizes(file: _raw_files.ArrayFile, outputs: list[Path]) -> dict[str, int]:
    """How many bytes the files of a conversion take."""
    return {
        "file_before": sum(path.stat().st_size for path in _convert_targets.paths_of(file)),
        "file_after": sum(path.stat().st_size for path in outputs),
    }


def write_report(path: str | os.PathLike, record: dict[str, Any]) -> None:
    with _whole_files.replacing(path) as fresh:
        fresh.write_text(json.dumps(record, indent=1) + "\n")
