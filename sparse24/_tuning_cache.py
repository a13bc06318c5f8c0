"""Measured winners, kept in memory and in one JSON file a machine.

The file is keyed by GPU, driver, library version and kernel digests.  A file that
does not match is ignored and left alone until `save` is told to replace it; a
write is atomic, and what several processes write is merged.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import threading
from pathlib import Path
from typing import Any

from sparse24 import _check, _evidence, _whole_files
from sparse24._errors import ArgumentError
from sparse24._records import Problem
from sparse24._user_folder import user_folder
from sparse24._version import __version__

FORMAT = 1
FIELDS = tuple(field.name for field in dataclasses.fields(Problem))
# Measured over predicted time on an H200, where they are far apart: float32, 512 to 4096 columns,
# and 16 bits where blocks share k (docs/benchmarks/log_gemm.rst, "Odd sizes").  And where they are
# not, but decide: sparse_skinny with 1 to 16 tokens takes 0.93 of it there, 0.95 on an H100
# (few_tokens.json of both).
SCALES = {"sparse_fma": 4.0, "sparse_mma": 1.5, "sparse_skinny": 0.95}
_lock = threading.Lock()
_state: dict[int, dict] = {}  # by device: {"winners": {...}, "scales": {...}, "bandwidth": float}
_changes = 0  # how often what is known has changed


def generation() -> int:
    """A number that changes with what is known: choices made under another one are out of date."""
    return _changes


def changed() -> None:
    """Note that something on which choices depend has changed."""
    global _changes
    _changes += 1


def path(device: int) -> Path:
    """The tuning file of a device."""
    return user_folder() / f"tuning-{gpu_name(device).replace(' ', '-')}.json"


@functools.cache
def gpu_name(device: int) -> str:
    """The name of a GPU, as its driver gives it."""
    import cupy

    return cupy.cuda.runtime.getDeviceProperties(device)["name"].decode()


@functools.cache
def key(device: int) -> dict:
    """What a file must match to be used."""
    import cupy

    from sparse24._planner import KERNELS
    from sparse24.kernels import loader

    return {
        "format": FORMAT,
        "sparse24": __version__,
        "gpu": gpu_name(device),
        "driver": cupy.cuda.runtime.driverGetVersion(),
        "kernels": {stem: loader.digest(stem) for stem in KERNELS},
    }


def _empty() -> dict:
    return {"winners": {}, "scales": {}, "bandwidth": None}


def read(file: Path, device: int) -> dict | None:
    """The content of a tuning file, or None if it is absent, damaged or of another key."""
    try:
        return _content(file.read_bytes(), device)
    except OSError:
        return None


def _content(raw: bytes, device: int) -> dict | None:
    """What the bytes of a tuning file say, or None if they are damaged or of another key."""
    try:
        record = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or record.get("key") != key(device):
        return None
    content = record.get("content")
    return content if _is_sound(content) else None


def _is_sound(content: Any) -> bool:
    """True if everything that is looked up in a file's content is there and of its type."""
    if not isinstance(content, dict) or not _empty().keys() <= content.keys():
        return False
    winners, scales, bandwidth = content["winners"], content["scales"], content["bandwidth"]
    if not isinstance(winners, dict) or not _are_positive(scales):
        return False
    if bandwidth is not None and not _are_positive({"bandwidth": bandwidth}):
        return False
    return all(
        isinstance(row, dict)
        and _are_positive(row.get("seconds"))
        and row.get("name") in list(row["seconds"])
        for row in winners.values()
    )


def _are_positive(numbers: Any) -> bool:
    """True for a dict of finite numbers above 0."""
    return isinstance(numbers, dict) and all(
        type(x) in (int, float) and 0 < x < math.inf for x in numbers.values()
    )


def state(device: int) -> dict:
    """What is known of a device; read from its file at first use."""
    with _lock:
        if device not in _state:
            _state[device] = _kept(device) or _empty()
        return _state[device]


def _kept(device: int) -> dict | None:
    """What the file of a device holds; None also where there is no folder for it."""
    try:
        return read(path(device), device)
    except FileNotFoundError:
        return None


def problem_key(problem: Problem, *, dense: bool) -> str:
    """One line that names a problem; products of equal lines run alike."""
    parts = [f"{name}={getattr(problem, name)}" for name in FIELDS]
    return " ".join((*parts, f"dense={dense}"))


def winner(device: int, problem: Problem, *, dense: bool) -> str | None:
    """Name of the measured winner of a problem, if there is one."""
    winners = state(device)["winners"]
    found = winners.get(problem_key(problem, dense=dense)) if winners else None
    return found["name"] if found else None


def measured(device: int, problem: Problem, *, dense: bool) -> dict[str, float]:
    """Measured seconds by candidate name; empty if the problem was not tuned."""
    found = state(device)["winners"].get(problem_key(problem, dense=dense))
    return dict(found["seconds"]) if found else {}


def record_winner(device: int, problem: Problem, *, dense: bool, seconds: dict[str, float]) -> None:
    """Remember the measured times of a problem's candidates."""
    best = min(seconds, key=seconds.__getitem__)
    content = state(device)
    with _lock:
        content["winners"][problem_key(problem, dense=dense)] = {"name": best, "seconds": seconds}
        changed()


def scale(device: int, kernel: str) -> float:
    """Measured over predicted time of a kernel on this device; of an H200 if not calibrated."""
    return state(device)["scales"].get(kernel, SCALES.get(kernel, 1.0))


def bandwidth(device: int) -> float | None:
    """Measured copy bandwidth in bytes a second, if calibrated."""
    return state(device)["bandwidth"]


def record_model(device: int, *, bandwidth: float, scales: dict[str, float]) -> None:
    """Remember the fitted cost model of a device."""
    content = state(device)
    with _lock:
        content["bandwidth"] = bandwidth
        content["scales"].update(scales)
        changed()


def named(file) -> Path:
    """The path of a tuning file, which is refused if none can be written to; its folder may be new.

    Raises
    ------
    ArgumentError
        If no file can be written there, or `file` is not a path.
    """
    try:
        found = Path(file)
    except TypeError:
        raise ArgumentError(
            f"a tuning file must be named by a path, got {_check.shown(file)}"
        ) from None
    if found.parent.is_dir():
        _whole_files.check_target(found)
    return found


def write(file: Path, device: int, *, replace: bool) -> bool:
    """Merge what is known into a file; False if it holds another key and `replace` is not set."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with _whole_files.alone_in(file.parent):
        return _merge_into(file, device, replace=replace)


def _merge_into(file: Path, device: int, *, replace: bool) -> bool:
    try:  # One look: a file that another process makes after it must not pass for a strange one.
        known = _content(file.read_bytes(), device)
        strange = known is None
    except FileNotFoundError:
        known, strange = None, False
    if strange and not replace:
        return False
    content = state(device)
    with _lock:
        merged = known or _empty()
        merged = {
            "winners": merged["winners"] | content["winners"],
            "scales": merged["scales"] | content["scales"],
            "bandwidth": content["bandwidth"] or merged["bandwidth"],
        }
    _evidence.write_json(file, {"key": key(device), "content": merged})
    return True


def merge(file: Path, device: int) -> bool:
    """Take over a file's content; False if it does not match this machine."""
    content = read(file, device)
    if content is None:
        return False
    mine = state(device)
    with _lock:
        mine["winners"].update(content["winners"])
        mine["scales"].update(content["scales"])
        mine["bandwidth"] = content["bandwidth"] or mine["bandwidth"]
        changed()
    return True


def forget(device: int) -> None:
    """Drop what is known in memory."""
    with _lock:
        _state[device] = _empty()
        changed()
