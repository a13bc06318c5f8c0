"""What the commands of the command line do; `_cli` reads their arguments.

Each returns the exit status.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from sparse24 import (
    _checkpoint,
    _convert_checkpoint,
    _convert_targets,
    _expand_checkpoint,
    _packed_checkpoint,
    _raw_files,
)
from sparse24._errors import ArgumentError
from sparse24._table import count, share, sides, size, table

# Options of `convert` that choose what is pruned, and how; with their defaults.
_OF_PRUNING = {
    "pattern": (2, 4), "axis": -1, "method": "magnitude", "calibration": None, "report": None,
    "include": "", "exclude": _checkpoint.DEFAULT_EXCLUDE,
    "min_size": _checkpoint.DEFAULT_MIN_SIZE, "stacks": False, "quantise": None,
}  # fmt: skip


def info(options) -> int:
    from sparse24._config import show_config

    show_config()
    return 0


def demo(options) -> int:
    from sparse24 import _demo

    passed = _demo.run(
        options.checkpoint, device=options.device, dtype=options.dtype, tokens=options.tokens
    )
    return 0 if passed else 1


def advise(options) -> int:
    from sparse24 import _advise

    file = _packed_checkpoint.open_checkpoint(options.file)
    selection = _selection(options)
    names = selection.eligible(file)
    stacks = len(replace(selection, stacks=True).eligible(file)) - len(names)
    of_stacks = _of_stacks(stacks, "not predicted", "convert --stacks", options.axis)
    if not names:
        other = "inspect lists what it holds; see --include, --exclude and --min-size"
        raise ArgumentError(
            f"{options.file} has no matrix that 2:4 would suit; {of_stacks if stacks else other}"
        )
    kinds = Counter((_numberless(name), file.specs[name][0]) for name in _by_number(names))
    advices = {
        shape: _advise.advise(
            shape if options.axis == -1 else shape[::-1], options.tokens, options.dtype
        )
        for _, shape in kinds
    }
    rows = []
    for (name, shape), layers in kinds.items():
        rows.append([name, str(layers), sides(shape), *advices[shape].ratios])
    dense, sparse = (
        [sum(n * getattr(advices[shape], which)[i] for (_, shape), n in kinds.items())
         for i in range(len(options.tokens))]
        for which in ("dense", "sparse")
    )  # fmt: skip
    totals = [f"{d / s:.2f}x" for d, s in zip(dense, sparse, strict=True)]
    rows.append(["all, one after another", str(len(names)), "", *totals])
    chip = next(iter(advices.values())).chip
    print(f"predicted speed-up over dense, {options.dtype}, {chip}, by tokens\n")
    print(table(["layer", "count", "shape", *map(str, options.tokens)], rows))
    if min(min(advice.dense) for advice in advices.values()) < _advise.SHORT_SECONDS:
        print(_advise.SHORT_NOTE)
    if stacks:
        print(of_stacks)
    return 0


def _of_stacks(number: int, fate: str, option: str, axis: int) -> str:
    return (
        f"{count(number, 'array')} of three axes {fate}; if these are weights "
        f"{'(e, m, k)' if axis == -1 else '(e, k, m)'} of experts, {option} prunes them for "
        "sparse24.grouped_linear"
    )


def _by_number(names: Sequence[str]) -> list[str]:
    """Names in the order of a person: layer 2 before layer 10."""
    return sorted(names, key=lambda name: [*map(_by_value, re.split(r"(\d+)", name))])


def _by_value(part: str) -> tuple[bool, int, str, str]:
    """A key for digits, of which Python makes no number of more than 4300, or for other text."""
    digits = part.lstrip("0") if part.isdecimal() else ""
    return part.isdecimal(), len(digits), digits, part


def _numberless(name: str) -> str:
    """A name with a star for each number between dots: what the layers of a model share."""
    return ".".join("*" if part.isdecimal() else part for part in name.split("."))


def bench(options) -> int:
    from sparse24 import _bench

    _bench.run(options.shape, device=options.device, dtype=options.dtype)
    return 0


def convert(options) -> int:
    if options.no_prune and (options.dense or options.method != "magnitude"):
        raise ArgumentError(
            "--no-prune compresses what obeys the pattern already, so it takes neither --method "
            "nor --dense; drop one of them"
        )
    file = _packed_checkpoint.open_checkpoint(options.source)
    if options.dense and _expand_checkpoint.is_compressed(file):
        return _expand(options, file)
    calibration = _calibration(options)
    if options.report is not None:
        given = _convert_targets.paths_of(calibration) if calibration is not None else []
        _convert_targets.check_report(options.report, options.source, options.target, *given)
    selection = replace(_selection(options), stacks=options.stacks)
    record = _convert_checkpoint.convert(
        options.source,
        options.target,
        selection=selection,
        recipe=_checkpoint.Recipe(
            options.pattern,
            options.method,
            calibration,
            options.axis,
            options.no_prune,
            options.quantise,
        ),
        dense=options.dense,
        progress=not options.quiet,
    )
    if options.report is not None:
        _convert_checkpoint.write_report(options.report, record)
    if not options.quiet:
        _print_report(record)
        eligible = replace(selection, stacks=True).eligible(file)
        _print_left_dense(record, len(eligible), options)
    return 0


def _print_left_dense(record: dict, eligible: int, options) -> None:
    """Say what a conversion left dense of the matrices that are `eligible` with ``--stacks``."""
    unfit = len(record["unfit"])
    if unfit:
        n, m = options.pattern
        print(f"{count(unfit, 'eligible matrix', 'eligible matrices')} left dense, as more "
              f"than {n} of {m} elements are non-zero in some group")  # fmt: skip
    stacks = eligible - unfit - len(record["layers"])
    if stacks:
        print(_of_stacks(stacks, "left dense", "--stacks", options.axis))


def _expand(options, file: _raw_files.ArrayFile) -> int:
    for option, default in _OF_PRUNING.items():
        if getattr(options, option) != default:
            raise ArgumentError(
                f"{options.source} is compressed already, and --dense makes all of it dense again "
                f"without pruning; drop --{option.replace('_', '-')}"
            )
    record = _expand_checkpoint.expand(file, options.target, progress=not options.quiet)
    if not options.quiet:
        _print_totals(record)
    return 0


def _selection(options) -> _checkpoint.Selection:
    return _checkpoint.Selection(options.include, options.exclude, options.min_size)


def _calibration(options) -> _raw_files.ArrayFile | None:
    """The inputs of the layers, if the method or rounding looks at them."""
    by_inputs = options.method in _checkpoint.NEED_INPUTS
    if options.calibration is None:
        if by_inputs:
            raise ArgumentError(
                f"--method {options.method} weighs elements by the layer's inputs; "
                "pass them with --calibration FILE"
            )
        return None
    if not by_inputs and options.quantise is None:
        raise ArgumentError(
            f"--method {options.method} does not use --calibration; drop it, or name "
            f"--method {' or '.join(_checkpoint.NEED_INPUTS)}, or --quantise, which rounds by it"
        )
    return _raw_files.open_arrays(options.calibration)  # each is read when its layer is


def _print_report(record: dict) -> None:
    rounded = [] if record["bits"] is None else ["rounding_error"]
    shares = ["kept_energy", *rounded]
    header = ["layer", "shape", "dtype", *(x.replace("_", " ") for x in shares), "before", "after"]
    rows = [
        [
            row["name"], sides(row["shape"]), row["dtype"], *(share(row[x]) for x in shares),
            size(row["bytes_before"]), size(row["bytes_after"]),
        ]
        for row in record["layers"]
    ]  # fmt: skip
    print(table(header, rows), end="\n\n")
    _print_totals(record)


def _print_totals(record: dict) -> None:
    totals = record["totals"]
    print(
        f"{count(totals['matrices'], 'matrix', 'matrices')}: {size(totals['bytes_before'])} -> "
        f"{size(totals['bytes_after'])}; file: {size(totals['file_before'])} -> "
        f"{size(totals['file_after'])}; {count(len(record['unchanged']), 'array')} unchanged"
    )


def inspect(options) -> int:
    file = _packed_checkpoint.open_checkpoint(options.file)
    converted = any(one.header for one in file.files)
    rows, taken = _checked_rows(file) if converted else ([], set())
    eligible = set() if rows else set(_checkpoint.Selection().eligible(file))
    for name, (shape, dtype) in file.specs.items():
        if name not in taken:
            kind = "dense, eligible" if name in eligible else "dense"
            nbytes = dtype.itemsize * math.prod(shape)
            rows.append([name, kind, sides(shape), dtype.name, size(nbytes)])
    print(table(["array", "kind", "shape", "dtype", "bytes"], rows))
    return 0


def _checked_rows(file: _raw_files.ArrayFile) -> tuple[list[list[str]], set[str]]:
    """Rows of the compressed arrays and names of their parts, if the file can be loaded."""
    from sparse24.formats import array_parts, stored

    rows: list[list[str]] = []
    taken: set[str] = set()
    names: set[str] = set()
    for one in file.files:
        here: set[str] = set()
        for name, entry in stored.entries_of(one).items():
            parts = stored.read_parts(one, name, entry)  # checks codes and checksums
            stored.checked_array(one, name, parts)
            nbytes = size(array_parts.file_bytes(parts))
            columns = [parts.kind, sides(parts.array_shape), parts.dtype.name, nbytes]
            rows.append([name, *columns])
            taken |= {f"{name}.{key}" for key in parts.pieces()}
            here.add(name)
        here |= stored.check_dense(one, taken)
        stored.check_single(one, here)
        stored.refuse_twice(one.path, here, names)
        names |= here
    return rows, taken
