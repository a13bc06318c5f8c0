"""Which kernels are compiled for which chips, and what their machine code must contain.

Each launcher lists its own rows, ``COMPILE_CHECKS = [(defines, arch, instruction)]``;
this module gathers them, compiles without a GPU and reads the machine code back.

================  ===========================================================
instruction       means
================  ===========================================================
``HGMMA.SP``      sparse warpgroup product, 16-bit and TF32, sm_90a
``QGMMA.SP``      the same for fp8
``IGMMA.SP``      the same for int8
``HMMA.SP``       sparse warp product, 16-bit, sm_80 and later
``IMMA.SP``       the same for int8
``QMMA.SP``       the same for fp8, sm_89 and sm_120
================  ===========================================================
"""

from __future__ import annotations

import functools
import importlib
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from sparse24._errors import CompileError
from sparse24.kernels import loader


@dataclass(frozen=True)
class Target:
    """One compilation: a kernel, its macros, a chip, and what must be in the code."""

    stem: str
    defines: loader.Defines
    arch: str
    instruction: str | None


def stems() -> list[str]:
    """Names of all CUDA sources."""
    folder = resources.files("sparse24.kernels").joinpath("cuda")
    return sorted(f.name.removesuffix(".cu") for f in folder.iterdir() if f.name.endswith(".cu"))


def targets() -> Iterator[Target]:
    """All rows of all launchers."""
    for stem in stems():
        launcher = importlib.import_module(f"sparse24.kernels.{loader.LAUNCHER_OF.get(stem, stem)}")
        for defines, arch, instruction in launcher.COMPILE_CHECKS:
            yield Target(stem, defines, arch, instruction)


@dataclass(frozen=True)
class Resources:
    """What a kernel takes: registers a thread, and bytes of stack and spilled registers."""

    registers: int
    stack: int
    local: int


def inspect(target: Target) -> tuple[str, dict[str, Resources]]:
    """Compile; return the machine code and the resources of each kernel.

    Without an instruction to look for, the code is not disassembled.
    """
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / f"{target.stem}.cubin"
        cubin.write_bytes(loader.compile_cubin(target.stem, target.defines, target.arch))
        disassemble = _tool("nvdisasm"), "-c", "--no-dataflow"  # a quarter of its time
        code = _run(*disassemble, str(cubin)) if target.instruction else ""
        usage = _run(_tool("cuobjdump"), "--dump-resource-usage", str(cubin))
    found = {}
    pattern = r"Function (\S+?):\s+REG:(\d+) STACK:(\d+).*?LOCAL:(\d+)"
    for name, registers, stack, local in re.findall(pattern, usage, re.DOTALL):
        found[name] = Resources(int(registers), int(stack), int(local))
    return code, found


# D, A if it is in registers, and the metadata if it is sparse, of a warpgroup instruction.
_RUNS = re.compile(
    r"[HQI]GMMA(?:\.SP)?\.64x(\d+)x\S+ R(\d+), (?:R(\d+), )?gdesc\S+ R\w+(?:, !?UPT)?(?:, R(\d+))?"
)
_WAIT = re.compile(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x(\d+)")
_WRITES = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z][\w.]*) R(\d+),")
_STORES = ("ST", "LDGSTS", "R2UR", "ATOM", "RED")


def overwritten(code: str) -> list[str]:
    """Instructions that write a register which a running warpgroup instruction still uses.

    Such an instruction uses its registers until its group has been waited for, and the
    compiler does not watch the metadata.  The code is read from top to bottom, whatever the
    branches.
    """
    groups: list[set[int]] = [set()]  # registers in use; the last group is not closed yet
    found = []
    for line in code.splitlines():
        if wait := _WAIT.search(line):
            done = len(groups) - 1 - int(wait[1])
            groups = groups[max(0, done) :]
        elif started := _RUNS.search(line):
            groups[-1] |= _registers(*started.groups())
            if "gsb0" in line:
                groups.append(set())
        elif (written := _WRITES.search(line)) and not written[1].startswith(_STORES):
            wide = 4 if ".128" in written[1] else 2 if re.search("64|WIDE|CS2R", written[1]) else 1
            first = int(written[2])
            if any(group & set(range(first, first + wide)) for group in groups):
                found.append(line.strip())
    return found


def _registers(n: str, d: str, a: str | None, metadata: str | None) -> set[int]:
    """Registers of an instruction with n columns."""
    of_a = set() if a is None else set(range(int(a), int(a) + 4))
    words = set() if metadata is None else {int(metadata)}
    return {*range(int(d), int(d) + int(n) // 2), *of_a, *words}


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompileError(f"{' '.join(command)} failed:\n{done.stderr}")
    return done.stdout


@functools.cache
def _tool(name: str) -> str:
    """A CUDA binary tool: on the PATH, or from its wheel."""
    found = shutil.which(name)
    if found:
        return found
    for key in ("purelib", "platlib"):
        for path in Path(sysconfig.get_path(key)).glob(f"nvidia/*/bin/{name}"):
            return str(path)
    raise CompileError(
        f"{name} was not found; pip install nvidia-cuda-nvdisasm nvidia-cuda-cuobjdump"
    )
