"""The cost model of the GPU in use: measured once with `fit`, kept beside the tuning file.

Without a fit the shipped figures are used, those of an H200 or an H100, or scaled from them; on
other chips they rank the paths approximately, and a fit corrects them.
"""

from __future__ import annotations

import dataclasses
import json
import math
import threading
import warnings
from pathlib import Path

import numpy as np

from sparse24 import _chip_facts, _evidence, _tuning_cache
from sparse24._hybrid import lines as hybrid_lines
from sparse24._hybrid import samples as hybrid_samples
from sparse24._hybrid.lines import Line
from sparse24._version import __version__

STEMS = (
    "hybrid_stream", "hybrid_scatter", "hybrid_gather", "hybrid_rows", "hybrid_overflow",
    "hybrid_wgmma", "hybrid_panel", "hybrid_csr",
)  # fmt: skip
SHAPES = ((768, 768), (1024, 4096), (4096, 4096), (4096, 8192), (8192, 8192))
ZEROS = (0.6, 0.8, 0.95)

_lock = threading.Lock()
_known: dict[int, dict[str, Line]] = {}


def path(device: int) -> Path:
    """The file of a device's fit."""
    return _tuning_cache.path(device).with_name(
        _tuning_cache.path(device).name.replace("tuning-", "hybrid-")
    )


def _key() -> dict:
    from sparse24.kernels import loader

    return {"sparse24": __version__, "kernels": {stem: loader.digest(stem) for stem in STEMS}}


def lines(device: int) -> dict[str, Line]:
    """The figures of a device: its own fit where there is one, else those shipped."""
    with _lock:
        if device not in _known:
            _known[device] = _kept(device) or shipped(device)
        return _known[device]


def _kept(device: int) -> dict[str, Line] | None:
    """The fit of a device in its file; None also where there is no folder for it."""
    try:
        return _read(path(device))
    except FileNotFoundError:
        return None


def shipped(device: int) -> dict[str, Line]:
    """The figures of a device that was not measured."""
    from sparse24.kernels.chip import chip

    name, facts = _tuning_cache.gpu_name(device), _chip_facts.facts(device)
    return hybrid_lines.shipped(name, facts, chip(device).compute_capability)


def _read(file: Path) -> dict[str, Line] | None:
    """The fit in a file, or None if it is absent, damaged or of other kernels."""
    try:
        record = json.loads(file.read_text())
        if record["key"] != _key():
            return None
        found = {name: Line(**line) for name, line in record["lines"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    whole = found.keys() == hybrid_lines.H200_LINES.keys()
    return found if whole and all(map(_is_sound, found.values())) else None


def _is_sound(line: Line) -> bool:
    """True for figures that `solve` could have given."""
    figures = dataclasses.astuple(line)
    return all(type(x) in (int, float) and 0 <= x < math.inf for x in figures)


def solve(samples: list[tuple[float, float, float]]) -> Line:
    """Least squares for (elements, bytes, seconds); no figure is negative."""
    table = np.array(samples, np.float64)
    basis = np.column_stack([np.full(len(table), 1e6), table[:, 0], table[:, 1]]) * 1e-12
    weight = 1 / table[:, 2:]
    from scipy.optimize import nnls

    found, _ = nnls(basis * weight, np.ones(len(table)))
    return Line(float(found[0]) * 1e-6, float(found[1]) * 1e-12, float(found[2]) * 1e-12)


def fit(device: int | None = None) -> dict[str, Line]:
    """Measure the paths on a GPU and keep the figures for this and later processes.

    Takes some ten seconds, and a minute more where the kernels are not compiled yet; waits for the
    device.

    Parameters
    ----------
    device : int, optional
        Number of the GPU; by default the current one.

    Returns
    -------
    dict of str to Line
    """
    import cupy

    device = cupy.cuda.Device().id if device is None else device
    found = shipped(device)
    samples: dict[str, list] = {name: [] for name in found}
    pool = cupy.get_default_memory_pool()
    with cupy.cuda.Device(device), cupy.cuda.Stream(non_blocking=True) as stream:
        for shape in SHAPES:
            for zeros in ZEROS:
                hybrid_samples.sample(cupy, shape, zeros, samples)
                pool.free_all_blocks(stream)  # no other stream would get them
    found = found | {name: solve(rows) for name, rows in samples.items() if rows}
    _use(device, found)
    record = {"key": _key(), "lines": {name: dataclasses.asdict(x) for name, x in found.items()}}
    try:
        _evidence.write_json(path(device), record)
    except OSError as error:
        warnings.warn(
            f"the fit serves this process alone, as its file cannot be written: {error}; name "
            "another folder by SPARSE24_CACHE_DIR",
            RuntimeWarning,
            stacklevel=3,
        )
    return found


def forget(device: int) -> None:
    """Go back to the shipped figures in this process; the file of a fit stays."""
    _use(device, shipped(device))


def _use(device: int, figures: dict[str, Line]) -> None:
    with _lock:
        _known[device] = figures
    _tuning_cache.changed()  # choices that were made by other figures are out of date
