"""Launcher of ``cuda/sparse_matvec.cu``: the float32 2:4 product with few columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sparse24._records import PLAIN, Fused, Problem
from sparse24.kernels import epilogue as epilogues
from sparse24.kernels import loader, sparse_tile

NAME = "sparse_matvec"
MOST_COLUMNS = 256
WARPS = 8
STEP = 512  # columns of A that a warp takes at a time

# Constants of `predict`, fitted to 70 timings on an H200 to 12 % root mean square.
_LAUNCH = 4.2e-6  # seconds
_READING = 1.02  # of the copy bandwidth
_NOT_HIDDEN = 0.1  # share of the shorter of reading and multiplying
_STEP = 1.3e-6  # seconds of a step, whose loads were issued one step before
_PIECE = 39e-9  # seconds for what a warp has to do for a pair of rows in a step
_PICK = 9.5e-9  # the same for a column of b
_STAGE = 3.7e-9  # seconds to bring one of 16 places of a column of b to shared memory


@dataclass(frozen=True, slots=True)
class Config:
    """One specialisation.

    Attributes
    ----------
    columns : {1, 2, 4, 8}
        Columns of b that a block multiplies.
    pairs : int
        Pairs of rows of a warp.
    parts : int
        Warps of a block that share rows, each with a part of K.
    """

    columns: int
    pairs: int
    parts: int = 1

    @property
    def name(self) -> str:
        return f"{self.columns}c{self.pairs}r{self.parts}k"

    @property
    def rows(self) -> int:
        """Rows of A that a block multiplies, in pairs (g, g + 8)."""
        return 2 * self.pairs * WARPS // self.parts

    @property
    def shared_memory(self) -> int:
        return 2 * self.parts * STEP * self.columns * 4


# Pairs and parts, by columns; other combinations never were the fastest.
_ROWS = {
    1: ((2, 1), (1, 1), (1, 2), (2, 2), (1, 4)),
    2: ((1, 1), (1, 2), (2, 2), (1, 4)),
    4: ((1, 1), (1, 2), (1, 4)),
    8: ((2, 1), (1, 1), (1, 4)),
}


def _macros(config: Config, *, b_column: bool, out: str, epilogue) -> tuple:
    return (
        ("COLUMNS", config.columns), ("PAIRS", config.pairs), ("PARTS", config.parts),
        ("B_COLUMN", int(b_column)), ("OUTPUT", out), *epilogues.defines(epilogue),
    )  # fmt: skip


def _compile_checks() -> Iterator[tuple]:
    for config in (Config(1, 2), Config(8, 2), Config(8, 1, 4)):
        for arch in ("sm_80", "sm_90a", "sm_120"):
            yield _macros(config, b_column=True, out="float32", epilogue=PLAIN), arch, "FFMA"


def refuses(problem: Problem) -> str | None:
    """Why the kernel cannot take a problem, or None."""
    if problem.dtype != "float32" or problem.b_dtype != "float32":
        return f"sparse_matvec multiplies float32, not {problem.dtype} by {problem.b_dtype}"
    if problem.n > MOST_COLUMNS:
        return f"sparse_matvec is for n <= {MOST_COLUMNS}, got {problem.n}; sparse_fma takes any"
    return None


def configs(problem: Problem) -> list[Config]:
    """Candidates, best guess first."""
    columns = next((c for c in (1, 2, 4, 8) if c >= problem.n), 8)
    room = sparse_tile.SHARED_MEMORY.get(problem.compute_capability, 99) << 10
    made = (Config(columns, pairs, parts) for pairs, parts in _ROWS[columns])
    found = [config for config in made if config.shared_memory <= room]
    chip = {"sms": 132, "bandwidth": 4.2e12, "clock_hz": 1.98e9}
    return sorted(found, key=lambda config: predict(problem, config, chip))


def _blocks(p: Problem, config: Config) -> int:
    whole = -(-p.m // 16) * 16  # pairs are of sixteen rows
    return -(-whole // config.rows) * -(-p.n // config.columns) * p.batch


def _resident(config: Config) -> int:
    """Blocks that the registers of a multiprocessor hold."""
    if config.pairs == 1:
        return 3 if config.columns <= 2 else 2
    return 2 if config.columns <= config.parts else 1


def predict(problem: Problem, config: Config, chip: dict) -> float:
    """Seconds: the longer of reading, and of blocks that go through K step by step."""
    sms, blocks = chip["sms"], _blocks(problem, config)
    waves = -(-blocks // (sms * _resident(config)))
    beside = min(_resident(config), -(-blocks // sms))
    work = WARPS * config.pairs * (_PIECE + _PICK * config.columns)
    work += _STAGE * 16 * config.parts * config.columns
    steps = -(-problem.k // (STEP * config.parts))
    multiplying = waves * steps * max(_STEP, beside * work)
    reading = sparse_tile.bytes_moved(problem) / (_READING * chip["bandwidth"])
    return _LAUNCH + max(reading, multiplying) + _NOT_HIDDEN * min(reading, multiplying)


def prepare(problem: Problem, config: Config, epilogue: Fused) -> Callable:
    """Compile, and return the callable ``(a, b, out, epilogue)`` that only launches."""
    b_column = problem.aligned and problem.b_order == "column"
    macros = _macros(config, b_column=b_column, out=problem.out_dtype, epilogue=epilogue)
    memory = config.shared_memory
    kernel = loader.function(NAME, NAME, macros, shared_memory=memory)
    early = problem.compute_capability >= 90
    return sparse_tile.TileLauncher(
        kernel, _blocks(problem, config), 32 * WARPS, memory, early=early
    )


COMPILE_CHECKS = tuple(_compile_checks())
