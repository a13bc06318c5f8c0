"""Launcher of ``cuda/sparse_matvec.cu``: the float32 2:4 product with few columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sparse24._records import PLAIN, Epilogue, Problem
from sparse24.kernels import epilogue as epilogues
from sparse24.kernels import loader, sparse_tile

NAME = "sparse_matvec"
MOST_COLUMNS = 256
WARPS = 8
STEP = 512  # columns of A that a warp takes at a time

# Constants of `predict`, from timings on an H200.
_LAUNCH = 3.0e-6  # seconds
_SHARE = 0.9  # of the copy bandwidth
_READS_PER_CLOCK = 24.0  # 4-byte words of b that a multiprocessor picks from shared memory


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


_ROWS = ((2, 1), (1, 1), (1, 4))  # pairs and parts


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
    found = [Config(columns, pairs, parts) for pairs, parts in _ROWS]
    chip = {"sms": 132, "bandwidth": 4.2e12, "clock_hz": 1.98e9}
    return sorted(found, key=lambda config: predict(problem, config, chip))


def _blocks(p: Problem, config: Config) -> int:
    whole = -(-p.m // 16) * 16  # pairs are of sixteen rows
    return -(-whole // config.rows) * -(-p.n // config.columns) * p.batch


def predict(problem: Problem, config: Config, chip: dict) -> float:
    """Seconds: the longer of memory and of what shared memory gives, in whole waves of blocks."""
    p, groups = problem, -(-problem.n // config.columns)
    waves = -(-_blocks(p, config) // (2 * chip["sms"]))  # of two blocks a multiprocessor
    picks = config.rows * p.k / 2 * config.columns + p.k * config.columns
    picking = 2 * waves * picks / (_READS_PER_CLOCK * chip["clock_hz"])
    moved = sparse_tile.bytes_moved(p) * (1 if groups == 1 else 1 + 0.25 * (groups - 1))
    latency = p.k / STEP / config.parts * 0.6e-6
    return _LAUNCH + max(moved / (_SHARE * chip["bandwidth"]), picking, waves * latency)


def prepare(problem: Problem, config: Config, epilogue: Epilogue) -> Callable:
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
