"""Compile the CUDA sources of this package and hand out their kernels.

CuPy's disk cache keys on the source text and the options, not on included files,
so quoted headers are inlined here once: an edited header is an edited source.
Nothing here needs a GPU until `function` is called; `compile_cubin` compiles for
any architecture with NVRTC alone, which is how the kernels are checked without one.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import re
import threading
from importlib import resources
from typing import Any

from sparse24._arrays import cupy_module
from sparse24._errors import CompileError

Defines = tuple[tuple[str, Any], ...]

_INCLUDE = re.compile(r'^\s*#include\s+"([^"]+)"\s*$', re.MULTILINE)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_PYTHON_NOISE = re.compile(r'"""(?:.|\n)*?"""|#[^\n]*')
_BLANK = re.compile(r"\s+")


def _cuda_file(name: str):
    return resources.files("sparse24.kernels").joinpath("cuda", name)


@functools.cache
def source(stem: str) -> str:
    """Text of ``cuda/<stem>.cu`` with its quoted headers inlined, each once."""
    seen: set[str] = set()

    def expand(text: str) -> str:
        def replace(match):
            name = match.group(1)
            if name in seen:
                return ""
            seen.add(name)
            return expand(_cuda_file(f"include/{name}").read_text("utf-8"))

        return _INCLUDE.sub(replace, text).replace("#pragma once\n", "")

    return expand(_cuda_file(f"{stem}.cu").read_text("utf-8"))


@functools.cache
def digest(stem: str) -> str:
    """Digest of all that decides what a kernel does: CUDA source, headers, launcher, tile tables.

    Comments, docstrings and white space do not count.
    """
    parts = [_COMMENT.sub("", source(stem))]
    parts += [_PYTHON_NOISE.sub("", _launcher_text(name)) for name in _launchers(stem)]
    return hashlib.sha256(_BLANK.sub(" ", " ".join(parts)).encode()).hexdigest()[:16]


# Modules that launchers import, but that do not decide what their kernels do.
NOT_COUNTED = ("loader", "reference", "cast", "_numba")
# A .cu file whose launcher has another name.
LAUNCHER_OF = {"apply_epilogue": "dense"}


def _launcher_text(name: str) -> str:
    return resources.files("sparse24.kernels").joinpath(f"{name}.py").read_text("utf-8")


def _launchers(stem: str) -> list[str]:
    """The launcher of a kernel and the kernel modules that it imports, such as tile tables."""
    root = LAUNCHER_OF.get(stem, stem)
    found: set[str] = set()
    waiting = [root]
    while waiting:
        name = waiting.pop()
        if name in found or (name in NOT_COUNTED and name != root):
            continue
        found.add(name)
        for node in ast.walk(ast.parse(_launcher_text(name))):
            if isinstance(node, ast.ImportFrom) and node.module == "sparse24.kernels":
                waiting += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                package, _, module = node.module.rpartition(".")
                waiting += [module] if package == "sparse24.kernels" else []
    return sorted(found)


def architecture(compute_capability: int | str) -> str:
    """``sm_90a`` for 90, and so on: the suffix that unlocks the chip's own instructions."""
    number = int(compute_capability)
    return f"sm_{number}a" if number in (90, 100, 103) else f"sm_{number}"


def options(defines: Defines, arch: str) -> tuple[str, ...]:
    """NVRTC options of a kernel; the same with and without a GPU.

    CuPy adds ``--device-as-default-execution-space``, which NVRTC before 12.9 refuses twice.
    """
    return (f"-arch={arch}", "--std=c++17", *(f"-D{key}={value}" for key, value in defines))


OLDEST = 80  # compute capability with `mma.sp`, `cp.async` and `mbarrier`

_modules: dict[tuple, Any] = {}
_building: dict[tuple, threading.Lock] = {}  # one a kernel: different ones compile at once


def function(stem: str, name: str, defines: Defines = (), *, shared_memory: int = 0):
    """Return kernel `name` of ``cuda/<stem>.cu``, compiled for the current device.

    Parameters
    ----------
    stem, name : str
        File and ``extern "C"`` kernel.
    defines : tuple of (macro, value)
        The configuration; every value must be hashable.
    shared_memory : int
        Dynamic shared memory in bytes that launches will ask for.

    Raises
    ------
    CompileError
        With NVRTC's log and the options.
    """
    cupy = cupy_module()
    device = cupy.cuda.Device()
    key = (device.id, stem, name, defines)
    kernel = _modules.get(key)
    if kernel is None:
        with _building.setdefault(key, threading.Lock()):
            kernel = _modules.get(key) or _build(cupy, device, stem, name, defines)
            _modules[key] = kernel
    if shared_memory > 48 * 1024:
        with _building[key]:  # another thread may ask for less
            if kernel.max_dynamic_shared_size_bytes < shared_memory:
                kernel.max_dynamic_shared_size_bytes = shared_memory
    return kernel


def by_value(block):
    """A structured block of size 1 as the kernel argument that CuPy passes by value.

    As opaque bytes: CuPy describes every field of a structured dtype at every launch,
    15 µs of Python for 30 fields.
    """
    return block.view(f"V{block.dtype.itemsize}")


_first_compile = threading.Lock()


def _load_compiler(nvrtc) -> None:
    """Have one thread compile alone before several do.

    NVRTC opens a library of its own with the first program, and fails programs that other threads
    compile meanwhile: "failed to open libnvrtc-builtins.so" (seen with 13.0).
    """
    with _first_compile:
        _compile_nothing(nvrtc)


@functools.cache
def _compile_nothing(nvrtc) -> None:
    program = nvrtc.createProgram("", "nothing", (), ())
    nvrtc.compileProgram(program, ())
    nvrtc.destroyProgram(program)


def _build(cupy, device, stem: str, name: str, defines: Defines):
    _load_compiler(cupy.cuda.nvrtc)
    opts = options(defines, architecture(device.compute_capability))
    module = cupy.RawModule(code=source(stem), options=opts)
    try:
        return module.get_function(name)
    except cupy.cuda.compiler.CompileException as error:
        why = _unsupported(cupy.cuda.nvrtc, int(device.compute_capability))
        raise CompileError(
            f"{stem}.cu did not compile with {' '.join(opts)}{why}:\n{error}"
        ) from error


def _unsupported(nvrtc, capability: int) -> str:
    """What to say where a chip is too old for the kernels, or too new for the compiler."""
    if capability < OLDEST:
        return f"; the kernels are for compute capability {OLDEST} and later, this is {capability}"
    known = nvrtc.getSupportedArchs()
    if capability in known:
        return ""
    version = ".".join(map(str, nvrtc.getVersion()))
    return f"; NVRTC {version} knows chips up to {max(known)}: install that of a newer CUDA toolkit"


def compile_cubin(stem: str, defines: Defines, arch: str) -> bytes:
    """Compile for `arch` (such as ``"sm_90a"``) without a GPU or a driver."""
    nvrtc = cupy_module().cuda.nvrtc
    _load_compiler(nvrtc)
    opts = (*options(defines, arch), "-ftz=true", "--device-as-default-execution-space")
    opts += tuple(f"-I{path}" for path in _include_directories())
    program = nvrtc.createProgram(source(stem), f"{stem}.cu", (), ())
    try:
        nvrtc.compileProgram(program, opts)
        # CuPy's binding drops the last byte of a cubin; it is a NUL.
        return nvrtc.getCUBIN(program) + b"\0"
    except nvrtc.NVRTCError as error:
        log = nvrtc.getProgramLog(program)
        raise CompileError(f"{stem}.cu did not compile with {' '.join(opts)}:\n{log}") from error
    finally:
        nvrtc.destroyProgram(program)


@functools.cache
def _include_directories() -> tuple[str, ...]:
    from cuda.pathfinder import find_nvidia_header_directory

    found = find_nvidia_header_directory("cudart")
    if found is None:
        raise CompileError("the CUDA headers were not found; install the extra cuda12 or cuda13")
    return (found,)
