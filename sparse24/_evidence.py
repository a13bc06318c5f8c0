"""Records of what was run on a GPU: who, when, on what, and which kernel text.

`docs/benchmarks/data` holds the records of one GPU, and a folder in it those of each other one; a
test compares their digests with the kernels as they are now.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

from sparse24 import _whole_files
from sparse24._arrays import cuda_available
from sparse24._errors import FormatError

PACKAGES = ("numpy", "scipy", "numba", "cupy-cuda12x", "cupy-cuda13x", "torch", "ml-dtypes")


FIRST_GPU = "NVIDIA H200"  # whose records lie in the folder itself
# Words of a GPU's name that its folder leaves out: makers, and how much memory of which kind.
LEFT_OUT = re.compile(r"NVIDIA|GeForce|Tesla|\d+GB|HBM\w*")


def short_name(gpu: str) -> str:
    """What a GPU's folder is called: ``h100`` for ``NVIDIA H100 80GB HBM3``."""
    words = re.split(r"[ -]", gpu)
    return "-".join(word for word in words if not LEFT_OUT.fullmatch(word)).lower()


def folder(data: Path, gpu: str | None) -> Path:
    """Where the records of a GPU lie, or those of a machine without one."""
    return data if gpu in (None, FIRST_GPU) else data / short_name(gpu)


def refuse_other_gpu(path: Path, gpu: str | None) -> None:
    """Raise if a file holds records of another GPU than this, which a merge would mix with its own.

    Raises
    ------
    FormatError
        If it does; the message names both, and the folder of this one.
    """
    if not path.exists():
        return
    record = json.loads(path.read_text())
    parts = [record.get("header", {}), *record.get("stems", {}).values()]
    named = [part["gpu"] for part in parts if isinstance(part, dict) and part.get("gpu")]
    others = {name for name in named if name != gpu}
    if others:
        own = "" if gpu is None else f"; those of this one belong in a folder {short_name(gpu)!r}"
        raise FormatError(
            f"{path} holds records of {', '.join(sorted(others))}, but this machine has "
            f"{gpu or 'no GPU'}{own}"
        )


def header() -> dict:
    """Date, machine, GPU, driver, CUDA and package versions of this run."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    from sparse24._version import __version__

    record = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "sparse24": __version__,
        "python": platform.python_version(),
        "cpu": f"{platform.machine()}, {os.cpu_count()} cores",
        "packages": versions,
    }
    if cuda_available():
        import cupy

        properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
        record |= {
            "gpu": properties["name"].decode(),
            "driver": cupy.cuda.runtime.driverGetVersion(),
            "cuda": cupy.cuda.runtime.runtimeGetVersion(),
        }
    return record


def write_json(path: Path, record: dict) -> None:
    """Write a record so that a reader sees either the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _whole_files.replacing(path) as fresh:
        fresh.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")


def merge_gpu_tests(
    path: Path, counts: Mapping[str, Mapping[str, int]], files: Mapping[str, Iterable[str]]
) -> None:
    """Put the outcome counts of these stems, and whose tests ran, into the record."""
    from sparse24.kernels import loader

    head = header()
    refuse_other_gpu(path, head.get("gpu"))
    record = json.loads(path.read_text()) if path.exists() else {"stems": {}}
    for stem, outcome in counts.items():
        record["stems"][stem] = {
            "digest": loader.digest(stem),
            "passed": outcome.get("passed", 0),
            "failed": outcome.get("failed", 0),
            "skipped": outcome.get("skipped", 0),
            "files": sorted(files[stem]),
            "date": head["date"],
            "gpu": head.get("gpu"),
        }
    record["header"] = head
    write_json(path, record)
