"""What is installed, what device is there, and where files are kept."""

from __future__ import annotations

import platform
import sys
import tempfile
from importlib import metadata
from typing import Any

from sparse24 import _arrays, _check
from sparse24._user_folder import user_folder
from sparse24._version import __version__

_PACKAGES = (
    "numpy", "scipy", "numba", "ml_dtypes", "safetensors", "cupy-cuda12x", "cupy-cuda13x", "cupy",
    "cuda-toolkit", "torch", "jax", "matplotlib",
)  # fmt: skip


def show_config(*, mode: str = "print") -> dict[str, dict[str, Any]] | None:
    """Print versions, devices and folders, as a bug report should include them.

    Parameters
    ----------
    mode : {"print", "dict"}
        Print, or return the same as a dictionary.

    Returns
    -------
    dict or None
        Sections of names and values, with ``mode="dict"``.

    Raises
    ------
    ArgumentError
        If `mode` is unknown.

    Examples
    --------
    >>> import sparse24 as s24
    >>> s24.show_config(mode="dict")["sparse24"]["version"] == s24.__version__
    True
    """
    _check.one_of(mode, ("print", "dict"), argument="mode")
    sections = {
        "sparse24": {"version": __version__, "cache folder": _folder()},
        "machine": _machine(),
        "packages": _packages(),
        "CUDA": _cuda(),
    }
    if mode == "dict":
        return sections
    width = max(len(name) for section in sections.values() for name in section)
    for title, section in sections.items():
        print(title)
        for name, value in section.items():
            print(f"  {name:{width}}  {value}")
    return None


def _folder() -> str:
    """The cache folder, and why nothing can be kept there if that is so."""
    try:
        folder = user_folder()
    except FileNotFoundError as error:
        return f"none: {error}"
    try:
        there = next(path for path in (folder, *folder.parents) if path.exists())
        tempfile.TemporaryFile(dir=there).close()  # permissions alone do not tell of all that fails
    except OSError as error:
        return f"none: {folder} cannot be written to ({error.strerror}); see SPARSE24_CACHE_DIR"
    return str(folder)


def _machine() -> dict[str, Any]:
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "threads of CPU kernels": _threads(),
    }


def _threads() -> int | str:
    """Threads of the CPU kernels, or why these cannot run."""
    try:
        import numba

        from sparse24.kernels import _numba
    except (ImportError, ValueError) as error:  # of versions, and of NUMBA_NUM_THREADS
        return f"none: Numba cannot be imported ({error})"
    if numba.config.DISABLE_JIT:
        return "none: Numba was told not to compile; unset NUMBA_DISABLE_JIT"
    return _numba.threads()


def _packages() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _cuda() -> dict[str, Any]:
    """Driver, runtime and devices, or why there are none."""
    try:
        import cupy
    except (ImportError, OSError):
        return {"status": _arrays.why_no_cuda()}
    if not _arrays.cuda_available():
        return {"status": "CuPy is installed, but finds no CUDA device or driver"}
    runtime = cupy.cuda.runtime
    facts: dict[str, Any] = {
        "driver": _cuda_version(runtime.driverGetVersion()),
        "runtime": _cuda_version(runtime.runtimeGetVersion()),
        "NVRTC": ".".join(map(str, cupy.cuda.nvrtc.getVersion())),
    }
    for index in range(runtime.getDeviceCount()):
        properties = runtime.getDeviceProperties(index)
        name = properties["name"].decode()
        memory = properties["totalGlobalMem"] / 2**30
        capability = f"{properties['major']}.{properties['minor']}"
        facts[f"device {index}"] = f"{name}, compute capability {capability}, {memory:.0f} GiB"
        facts[f"kernels on device {index}"] = ", ".join(_kernels(properties))
    return facts


def _kernels(properties: dict[str, Any]) -> list[str]:
    """The product kernels that run on such a device, for few or many columns in 16 or 32 bits."""
    from sparse24 import _planner
    from sparse24._records import Problem

    capability = 10 * properties["major"] + properties["minor"]
    problems = [
        Problem(4096, n, 4096, 1, dtype, dtype, dtype, "column", compute_capability=capability)
        for n in (1, 4096)
        for dtype in ("float16", "float32")
    ]
    return [
        name for name in _planner.SPARSE_KERNELS
        if any(_planner.kernel_module(name).refuses(problem) is None for problem in problems)
    ]  # fmt: skip


def _cuda_version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
