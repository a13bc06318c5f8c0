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
import itertools
import re
import shutil
import struct
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
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
    return inspect_all([target])[0]


def inspect_all(targets: Sequence[Target]) -> list[tuple[str, dict[str, Resources]]]:
    """`inspect` for several targets of one chip, which are disassembled together.

    The disassembler takes ten times as long to start as to read a cubin.
    """
    cubins = [loader.compile_cubin(t.stem, t.defines, t.arch) for t in targets]
    wanted = [_machine_code(c) if t.instruction else b"" for t, c in zip(targets, cubins)]
    (arch,) = {target.arch for target in targets}
    return list(zip(_disassembled(wanted, arch), map(_resources, cubins)))


def _resources(cubin: bytes) -> dict[str, Resources]:
    """What each kernel takes."""
    usage = _run(_tool("cuobjdump"), "--dump-resource-usage", of=cubin)
    found = {}
    pattern = r"Function (\S+?):\s+REG:(\d+) STACK:(\d+).*?LOCAL:(\d+)"
    for name, registers, stack, local in re.findall(pattern, usage, re.DOTALL):
        found[name] = Resources(int(registers), int(stack), int(local))
    return found


def _machine_code(cubin: bytes) -> bytes:
    """The instructions of all kernels: the sections ``.text.*`` of a 64-bit ELF file."""
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<3H", cubin, 0x3A)
    sections = [struct.unpack_from("<2I4Q", cubin, table + i * size) for i in range(count)]
    first_name = sections[names][4]
    return b"".join(
        cubin[offset : offset + length]
        for name, _, _, _, offset, length in sections
        if cubin.startswith(b".text.", first_name + name)
    )


_INSTRUCTION_BYTES = 16


def _disassembled(codes: Sequence[bytes], arch: str) -> list[str]:
    """The text of each of several pieces of machine code."""
    if not any(codes):
        return [""] * len(codes)
    text = _run(_tool("nvdisasm"), "--binary", arch.replace("sm_", "SM"), of=b"".join(codes))
    lines = [line for line in text.splitlines() if line.lstrip().startswith("/*")]
    ends = list(itertools.accumulate(len(code) // _INSTRUCTION_BYTES for code in codes))
    if len(lines) != ends[-1]:
        raise CompileError(f"nvdisasm wrote {len(lines)} lines for {ends[-1]} instructions")
    return ["\n".join(lines[start:end]) for start, end in zip([0, *ends], ends)]


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


def _run(*command: str, of: bytes) -> str:
    """What a tool says of the content of a file."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(of)
        file.flush()
        done = subprocess.run([*command, file.name], capture_output=True, text=True, check=False)
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
