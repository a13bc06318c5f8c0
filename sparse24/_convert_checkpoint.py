"""Convert checkpoints: prune and compress what is eligible, file by file, and write the rest."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from sparse24 import (
    _checkpoint,
    _packed_checkpoint,
    _raw_files,
    _raw_writers,
    _shards,
    _whole_files,
)
from sparse24._checkpoint import Recipe, Selection
from sparse24._errors import ArgumentError
from sparse24._table import count
from sparse24.formats import stored
from sparse24.formats.parts import Parts

# Prunes the matrices of a file: `_pruned` with all but its first argument.
Job = Callable[[_raw_files.ArrayFile], tuple[dict[str, np.ndarray], dict[str, Any]]]


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

    Returns
    -------
    dict
        The report: a row for each layer, the arrays left as they were, and totals.

    Raises
    ------
    ArgumentError
        If nothing is eligible, or the target would replace the source or the calibration.
    FormatError
        If the source is damaged.
    """
    selection, recipe = selection or Selection(), recipe or Recipe()
    file = _packed_checkpoint.open_checkpoint(source)
    outputs = _outputs(file, target)
    _check_kept(outputs, recipe.calibration)
    eligible = _eligible(file, selection)
    names = _taken(file, eligible, recipe)
    recipe.check(names)
    _check_others(file, () if dense else names, outputs[0])
    rows: list[dict[str, Any]] = []
    with progress_bar(None, len(names), shown=progress) as bar:
        job = functools.partial(
            _pruned, names=names, recipe=recipe, dense=dense, bar=bar, rows=rows
        )
        if file.index is not None:
            _write_shards(file, Path(target), job)
        else:
            raw, header = job(file)
            _raw_writers.write(target, raw, header, file.texts)
    return {
        **_report(file, rows, recipe, Path(target), outputs),
        "unfit": sorted({*eligible} - {*names}),
    }


def _pruned(file: _raw_files.ArrayFile, *, names, recipe: Recipe, dense: bool, bar, rows):
    """The arrays of a file, as they are stored, and their header; rows of a report are added."""
    made = {}
    for layer in _checkpoint.compress_layers(file, [x for x in names if x in file], recipe):
        bar.set_postfix_str(layer.name[-40:], refresh=False)
        bar.update()
        row = layer.row()
        rows.append({**row, "bytes_after": row["bytes_before"]} if dense else row)
        made[layer.name] = layer.array.toarray() if dense else layer.array
    arrays = {name: made[name] if name in made else file[name] for name in file}
    return (arrays, {}) if dense else stored.pack(arrays)


def _write_shards(file: _raw_files.ArrayFile, folder: Path, job: Job) -> None:
    index, entries = file.path.name, file.index or {}
    weight_map: dict[str, str] = {}
    total = 0
    with _whole_files.replacing_all(folder, [*(x.path.name for x in file.files), index]) as fresh:
        for shard in file.files:
            raw, header = job(shard)
            _raw_writers.write_safetensors(fresh[shard.path.name], raw, header, shard.texts)
            weight_map |= dict.fromkeys(raw, shard.path.name)
            total += sum(array.nbytes for array in raw.values())
            del raw  # before the next shard is read
        metadata = {**entries.get("metadata", {}), "total_size": total}
        text = json.dumps({**entries, "metadata": metadata, "weight_map": weight_map}, indent=2)
        with _whole_files.replacing(fresh[index]) as whole:
            whole.write_text(text + "\n")


def _outputs(file: _raw_files.ArrayFile, target: str | os.PathLike) -> list[Path]:
    """The files that a job writes, checked; an index is the last."""
    if file.index is not None:
        return _outputs_of_shards(file, Path(target))
    if Path(target).suffix.lower() not in (".safetensors", ".npz"):
        raise ArgumentError(
            f"OUT must end in .safetensors or .npz, as compressed arrays have parts, "
            f"got {str(target)!r}"
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


def _check_kept(outputs: Iterable[Path], calibration: Any) -> None:
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


def _eligible(file: _raw_files.ArrayFile, selection: Selection) -> list[str]:
    names = selection.eligible(file)
    if not names:
        raise ArgumentError(
            f"{file.path} has no eligible matrix among its {count(len(file), 'array')}: "
            f"{_why_none(file, selection)}; see --include, --exclude, --min-size and --stacks"
        )
    return names


def _taken(file: _raw_files.ArrayFile, eligible: list[str], recipe: Recipe) -> list[str]:
    """The eligible matrices that are compressed."""
    if not recipe.fitting:
        return eligible  # without reading them
    names = [name for name in eligible if recipe.fits(file[name])]
    if not names:
        n, m = recipe.pattern
        raise ArgumentError(
            f"none of the {count(len(eligible), 'eligible matrix', 'eligible matrices')} of "
            f"{file.path} obeys {n}:{m} along axis {recipe.axis}; name another --pattern or "
            "--axis, or prune them, without --no-prune"
        )
    return names


def _why_none(file: _raw_files.ArrayFile, selection: Selection) -> str:
    if not file.specs:
        return "the file is empty"
    first = min(file.specs, key=lambda name: len(file.specs[name][0]) != 2)  # a matrix, if any
    why = selection.refuses(first, *file.specs[first])
    return f"for example {first!r} of shape {file.specs[first][0]}: {why}"


def _check_others(file: _raw_files.ArrayFile, names: Iterable[str], output: Path) -> None:
    """Refuse what cannot be written, compressed or as it is, before the work."""
    chosen = frozenset(names)
    others = {name: dtype for name, (_, dtype) in file.specs.items() if name not in chosen}
    parts = {f"{name}.{part}" for name in chosen for part in Parts.PIECES}
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


def progress_bar(work: Iterable[Any] | None, total: int, *, shown: bool = True):
    """A bar over matrices: on a terminal, never in a log file."""
    from tqdm import tqdm

    disable = None if shown else True  # None: only if standard error is no terminal
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
        "method": recipe.method,
        "layers": rows,
        "unchanged": [name for name in file if name not in done],
        "totals": {
            "matrices": len(rows),
            "bytes_before": sum(row["bytes_before"] for row in rows),
            "bytes_after": sum(row["bytes_after"] for row in rows),
            "file_before": sum(path.stat().st_size for path in paths_of(file)),
            "file_after": sum(path.stat().st_size for path in outputs),
        },
    }


def write_report(path: str | os.PathLike, record: dict[str, Any]) -> None:
    with _whole_files.replacing(path) as fresh:
        fresh.write_text(json.dumps(record, indent=1) + "\n")
