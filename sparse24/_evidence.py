"""Records of what was run on a GPU: who, when, on what, and which kernel text.

`docs/benchmarks/data` holds the records; a test compares their digests with the
kernels as they are now.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
from importlib import metadata
from pathlib import Path

from sparse24 import _whole_files
from sparse24._arrays import cuda_available

PACKAGES = ("numpy", "scipy", "numba", "cupy-cuda12x", "cupy-cuda13x", "torch", "ml-dtypes")


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


def merge_gpu_tests(path: Path, counts: dict[str, dict[str, int]]) -> None:
    """Put the outcome counts of these stems into the record, with their digests."""
    from sparse24.kernels import loader

    record = json.loads(path.read_text()) if path.exists() else {"stems": {}}
    head = header()
    for stem, outcome in counts.items():
        record["stems"][stem] = {
            "digest": loader.digest(stem),
            "passed": outcome.get("passed", 0),
            "failed": outcome.get("failed", 0),
            "skipped": outcome.get("skipped", 0),
            "date": head["date"],
            "gpu": head.get("gpu"),
        }
    record["header"] = head
    write_json(path, record)
