"""Checkpoints: which matrices of a file can be compressed, and the job that does it."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import sparse24 as s24
from sparse24 import _dtypes, _raw_files, _raw_writers, _whole_files
from sparse24._errors import ArgumentError, Sparse24Error
from sparse24._table import count
from sparse24.formats import stored
from sparse24.formats.two_four import Sparse24Array

# Tables that are looked up, and the small heads behind an encoder, are no products that
# sparsity speeds up.
DEFAULT_EXCLUDE = r"embed|position|token_type|\bwte\b|\bwpe\b|lm_head|pooler|classifier"
DEFAULT_MIN_SIZE = 32
NEED_INPUTS = ("wanda", "sparsegpt")


@dataclass(frozen=True)
class Selection:
    """Which arrays of a file are pruned.

    A matrix is eligible if it has two axes, an element type of sparse24, both sides of at
    least `min_size`, and a name that `include` matches and `exclude` does not.  With `stacks`
    so is an array of three axes, the matrices (e, m, k) of e experts; kernels of convolutions
    have three axes, too.  An npy file holds one array, which is meant: only axes and type count
    there.
    """

    include: str = ""
    exclude: str = DEFAULT_EXCLUDE
    min_size: int = DEFAULT_MIN_SIZE
    stacks: bool = False

    def refuses(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> str | None:
        """Why an array stays as it is, or None if it is eligible."""
        if len(shape) != 2 and not (self.stacks and len(shape) == 3):
            wanted = "two or three" if self.stacks else "two"
            return f"{len(shape)} {'axis' if len(shape) == 1 else 'axes'}, not {wanted}"
        if dtype not in [row.logical for row in _dtypes.TABLE.values()]:
            return f"type {dtype}"
        if min(shape[-2:]) < self.min_size:
            return f"smaller than {self.min_size}"
        if not _search("include", self.include, name):
            return "not included"
        if self.exclude and _search("exclude", self.exclude, name):
            return "excluded by name"
        return None

    def eligible(self, file: _raw_files.ArrayFile) -> list[str]:
        """Names of the eligible arrays of a file, in its order.

        Raises
        ------
        ArgumentError
            If the file holds compressed arrays: their parts must not be pruned again.
        """
        if file.header.get("arrays"):
            raise ArgumentError(
                f"{file.path} is compressed already; name the dense file that it was made from"
            )
        rule = self
        if isinstance(file, _raw_files.NpyFile):
            rule = Selection(include="", exclude="", min_size=0, stacks=self.stacks)
        return [name for name, spec in file.specs.items() if rule.refuses(name, *spec) is None]


def _search(argument: str, pattern: str, name: str) -> bool:
    try:
        return re.search(pattern, name) is not None
    except re.error as error:
        raise ArgumentError(
            f"{argument} must be a regular expression, got {pattern!r} ({error})"
        ) from error


@dataclass(frozen=True)
class Recipe:
    """How a matrix is pruned: the arguments of `sparse24.prune`."""

    pattern: tuple[int, int] = (2, 4)
    method: str = "magnitude"
    calibration: Mapping[str, np.ndarray] = field(default_factory=dict)

    def apply(self, name: str, matrix: Any):
        """The compressed array of a matrix."""
        if self.method == "magnitude":
            return s24.compress(matrix, pattern=self.pattern, on_excess="prune")
        inputs = self.calibration.get(name)
        if inputs is None and self.method in NEED_INPUTS:
            raise ArgumentError(
                f"{name}: the calibration has no inputs of this name, but "
                f"{', '.join(sorted(self.calibration)[:3]) or 'none'}; name inputs after their "
                "weights, or leave this one out with --include or --exclude"
            )
        try:
            pruned = s24.prune(
                matrix, pattern=self.pattern, method=self.method, calibration=inputs
            )
        except Sparse24Error as error:
            raise type(error)(f"{name}: {error}") from error
        return s24.compress(pruned, pattern=self.pattern)


@dataclass(frozen=True)
class Layer:
    """One matrix of a checkpoint after its compression."""

    name: str
    dense: np.ndarray
    array: Any
    kept_energy: float

    def histogram(self) -> list[int]:
        """How many groups hold 0, 1, … m non-zeros, as `sparse24.report` counts them."""
        n, m = (2, 4) if isinstance(self.array, Sparse24Array) else self.array.pattern
        counts = (self.array.values.reshape(-1, n) != 0).sum(-1)
        return np.bincount(counts, minlength=m + 1).tolist()

    def row(self) -> dict[str, Any]:
        """The layer's line of a report."""
        return {
            "name": self.name,
            "shape": list(self.array.shape),
            "dtype": self.array.dtype.name,
            "kept_energy": None if math.isnan(self.kept_energy) else round(self.kept_energy, 6),
            "histogram": self.histogram(),
            "bytes_before": self.dense.nbytes,
            "bytes_after": self.array.nbytes,
        }


def compress_layers(
    file: _raw_files.ArrayFile, names: list[str], recipe: Recipe
) -> Iterator[Layer]:
    """Prune and compress the named matrices of a file, one at a time."""
    for name in names:
        dense = file[name]
        array = recipe.apply(name, dense)
        # Where the method changed values, what the dense matrix had in their places counts.
        kept = dense[array.mask()] if recipe.method == "sparsegpt" else array.values
        yield Layer(name, dense, array, kept_energy(kept, dense))


def kept_energy(kept: np.ndarray, dense: np.ndarray) -> float:
    """Share of the sum of squares that the kept elements carry; 1 for a matrix of zeros.

    NaN where the matrix holds inf or NaN.
    """
    whole = _energy(dense)
    if not math.isfinite(whole):
        return math.nan
    return _energy(kept) / whole if whole else 1.0


def _energy(x: np.ndarray) -> float:
    wide = x.astype(np.float64).ravel()
    return float(wide @ wide)


def convert(
    source: str | os.PathLike,
    target: str | os.PathLike,
    *,
    selection: Selection | None = None,
    recipe: Recipe | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Prune and compress the eligible matrices of a file and write all arrays to another.

    The target appears only when it is whole; the source is never changed.

    Returns
    -------
    dict
        The report: a row for each layer, the arrays left as they were, and totals.

    Raises
    ------
    ArgumentError
        If nothing is eligible, or source and target are the same file.
    FormatError
        If the source is damaged.
    """
    selection, recipe = selection or Selection(), recipe or Recipe()
    if Path(target).suffix.lower() not in (".safetensors", ".npz"):
        raise ArgumentError(
            f"OUT must end in .safetensors or .npz, as compressed arrays have parts, "
            f"got {str(target)!r}"
        )
    if _same_file(source, target):
        raise ArgumentError(f"OUT must not be IN, {str(source)!r}: pruning cannot be undone")
    _whole_files.check_target(target)
    file = _raw_files.open_arrays(source)
    names = selection.eligible(file)
    if not names:
        raise ArgumentError(
            f"{source} has no eligible matrix among its {count(len(file), 'array')}: "
            f"{_why_none(file, selection)}; see --include, --exclude and --min-size"
        )
    _raw_writers.check(target, {name: file.specs[name][1] for name in file if name not in names})
    layers = list(_with_progress(compress_layers(file, names, recipe), len(names), progress))
    compressed = {layer.name: layer.array for layer in layers}
    arrays = {name: compressed[name] if name in compressed else file[name] for name in file}
    _raw_writers.write(target, *stored.pack(arrays), file.texts)
    return report(file, layers, recipe, Path(target))


def _same_file(first: str | os.PathLike, second: str | os.PathLike) -> bool:
    """True if two paths name one file, whether it is there or not."""
    return os.path.realpath(first) == os.path.realpath(second) or (
        os.path.exists(first) and os.path.exists(second) and os.path.samefile(first, second)
    )


def check_report(path: str | os.PathLike, *others: str | os.PathLike) -> None:
    """Refuse a report that cannot be written, or that would replace another file of the job."""
    _whole_files.check_target(path)
    for other in others:
        if _same_file(path, other):
            raise ArgumentError(
                f"the report must not replace {str(other)!r}; name another file, such as "
                "report.json"
            )


def _why_none(file: _raw_files.ArrayFile, selection: Selection) -> str:
    if not file.specs:
        return "the file is empty"
    first = min(file.specs, key=lambda name: len(file.specs[name][0]) != 2)  # a matrix, if any
    why = selection.refuses(first, *file.specs[first])
    return f"for example {first!r} of shape {file.specs[first][0]}: {why}"


def progress_bar(work: Iterable[Any], total: int, *, shown: bool = True):
    """A bar over matrices: on a terminal, never in a log file."""
    from tqdm import tqdm

    disable = None if shown else True  # None: only if standard error is no terminal
    return tqdm(work, total=total, unit="matrix", disable=disable, leave=False)


def _with_progress(layers: Iterator[Layer], total: int, progress: bool) -> Iterator[Layer]:
    with progress_bar(layers, total, shown=progress) as bar:
        for layer in bar:
            bar.set_postfix_str(layer.name[-40:], refresh=False)
            yield layer


def report(
    file: _raw_files.ArrayFile, layers: list[Layer], recipe: Recipe, target: Path
) -> dict[str, Any]:
    """What was done, as JSON takes it."""
    done = {layer.name for layer in layers}
    rows = [layer.row() for layer in layers]
    return {
        "source": str(file.path),
        "target": str(target),
        "pattern": list(recipe.pattern),
        "method": recipe.method,
        "layers": rows,
        "unchanged": [name for name in file if name not in done],
        "totals": {
            "matrices": len(rows),
            "bytes_before": sum(row["bytes_before"] for row in rows),
            "bytes_after": sum(row["bytes_after"] for row in rows),
            "file_before": file.path.stat().st_size,
            "file_after": target.stat().st_size,
        },
    }


def write_report(path: str | os.PathLike, record: dict[str, Any]) -> None:
    with _whole_files.replacing(path) as fresh:
        fresh.write_text(json.dumps(record, indent=1) + "\n")
