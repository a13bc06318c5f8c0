"""Launcher of ``cuda/split_skinny.cu``: float32 at 2:4 with few columns, on tensor cores."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from sparse24._records import PLAIN, Fused, Problem
from sparse24.kernels import chip_rates, loader, rings, sparse_tile
from sparse24.kernels import epilogue as epilogues

NAME = "split_skinny"
MOST_COLUMNS = 256  # beyond, A would become pieces more than eight times
STEP = 32  # columns of A of an instruction; a stage has a step for each warp
OF_A = 17 / 8  # bytes of a place of A

# Warps of a block, and blocks of a multiprocessor; sixteen warps gain up to 6 % in few cases.
_SHAPES = ((8, 1), (4, 2), (4, 3))

# Constants of `predict`, fitted to 270 timings on an H100 to 14 % root mean square.  What is put
# first takes 0.5 % longer than the fastest.  docs/benchmarks/log_few_tokens.rst.
_LAUNCH = 2.9e-6  # seconds
_READING = 1.15  # of the copy bandwidth: reading alone is faster
_L2_PER_SM = 6.1e10  # bytes a second from the L2 cache to each multiprocessor
_ROWS_OF_B = 1.76  # how much longer b takes by rows
_WAVE, _UNEVEN = 1.8e-6, 0.26  # seconds of each wave after the first, and how much more of them
_CLOCK = 1.98e9  # Hz, at which a stage takes the following seconds
_STAGE, _STAGE_COLUMNS = 0.115e-6, 0.14e-6  # of a step alone, and of it for each eight columns
_ROWS, _PRODUCTS = 0.024e-6, 0.058e-6  # of four steps at once, for 16 rows, and 16 x 8 sums
_PARTS, _STEPS = 2.2, 1.8  # powers of times that are only partly hidden behind one another


@dataclass(frozen=True, slots=True)
class Config:
    """One specialisation.

    Attributes
    ----------
    m, n : int
        Tile of a block.
    warps : int
        Of a block; they share k.
    blocks : int
        Blocks that are meant to run on one multiprocessor at a time.
    stages : int
        Depth of the ring of asynchronous copies.
    """

    m: int
    n: int
    warps: int
    blocks: int
    stages: int = 2

    @property
    def name(self) -> str:
        return f"{self.m}x{self.n}_w{self.warps}_b{self.blocks}_s{self.stages}"

    @property
    def threads(self) -> int:
        return 32 * self.warps

    def shared_memory(self, *, b_column: bool) -> int:
        """Bytes of the ring as the kernel lays it out, or of the sums that take its place."""
        k = STEP * self.warps
        of_b = self.n * (k + 8) if b_column else k * (self.n + 4)
        stage = self.m * (k // 2 + 8) + k // 128 * self.m * 4 + of_b
        return 4 * max(self.stages * stage, self.warps * self.m * (self.n + 8))


def refuses(problem: Problem) -> str | None:
    """Why the kernel cannot take a problem, or None."""
    p = problem
    if {p.dtype, p.b_dtype, p.out_dtype} != {"float32"} or p.tensor_float:
        return f"the kernel splits float32, not {p.dtype} and {p.b_dtype} to {p.out_dtype}"
    if p.compute_capability < 80:
        return f"mma.sp needs compute capability 8.0, the device has {p.compute_capability}"
    if 0 in (p.m, p.n, p.k, p.batch):
        return "an empty product needs no kernel"
    if p.n > MOST_COLUMNS:
        return f"split_skinny is for n <= {MOST_COLUMNS}, got {p.n}; split_mma takes any"
    if p.b_order == "strided" or not (p.aligned or p.b_aligned):
        return "lines of b must be contiguous, on 16-byte boundaries; copy it"
    return None


def configs(problem: Problem) -> list[Config]:
    """Candidates, best guess first."""
    n = next((n for n in (8, 16) if n >= problem.n), 32)
    room = sparse_tile.SHARED_MEMORY.get(problem.compute_capability, 99) << 10
    tiles = [Config(m, n, *shape) for m in (16, 32) for shape in _SHAPES]
    by_columns = _by_columns(problem)
    found = [config for tile in tiles if (config := _with_ring(tile, room, by_columns)) is not None]
    chip = {"sms": 132, "bandwidth": 4.2e12, "clock_hz": 1.98e9}
    return sorted(found, key=lambda config: predict(problem, config, chip))


def _with_ring(tile: Config, room: int, by_columns: bool) -> Config | None:
    """A tile with the deepest ring for so many bytes of shared memory, if two stages fit."""
    size = lambda stages: replace(tile, stages=stages).shared_memory(b_column=by_columns)  # noqa: E731
    ring = rings.deepest(size, tile.blocks, room)
    return replace(tile, stages=ring[0]) if ring is not None and ring[1] == tile.blocks else None


def _by_columns(problem: Problem) -> bool:
    return problem.b_order != "row"


def _blocks(p: Problem, config: Config) -> int:
    return -(-p.m // config.m) * -(-p.n // config.n) * p.batch


def predict(problem: Problem, config: Config, chip: dict[str, float]) -> float:
    """Seconds: reading from memory and from the L2 cache, and the steps of a multiprocessor."""
    p, sms, blocks = problem, int(chip["sms"]), _blocks(problem, config)
    by_rows = 1 if _by_columns(p) else _ROWS_OF_B
    hbm = sparse_tile.bytes_moved(p) / (_READING * chip["bandwidth"])
    l2 = blocks * p.k * (config.m * OF_A + 4 * config.n * by_rows) / (_L2_PER_SM * sms)
    exact = blocks / (sms * config.blocks)
    waves = min(exact + _UNEVEN, math.ceil(exact)) if exact > 1 else 1
    steps = waves * -(-p.k // (STEP * config.warps)) * _stage(p, config, -(-blocks // sms))
    parts = _together(_PARTS, hbm, l2, steps * _CLOCK / chip["clock_hz"])
    return _LAUNCH + parts + _WAVE * (waves - 1)


def _stage(p: Problem, config: Config, blocks: int) -> float:
    """Seconds of a stage, where a multiprocessor has so many blocks."""
    alone = _STAGE + _STAGE_COLUMNS * config.n / 8
    slower = chip_rates.bfloat16(90) / chip_rates.bfloat16(p.compute_capability)
    at_once = _ROWS * config.m / 16 + slower * _PRODUCTS * config.m * config.n / 128
    return _together(_STEPS, alone, config.warps / 4 * min(config.blocks, blocks) * at_once)


def _together(power: float, *times: float) -> float:
    """Seconds of steps that hide one another only in part: more than the longest, less than all."""
    return sum(x**power for x in times) ** (1 / power)


def defines(problem: Problem, config: Config, epilogue: Fused) -> loader.Defines:
    """The macros of one specialisation."""
    return (
        ("TILE_M", config.m), ("TILE_N", config.n), ("WARPS", config.warps),
        ("BLOCKS", config.blocks), ("STAGES", config.stages),
        ("B_COLUMN", int(_by_columns(problem))),
        ("OUT_COLUMN", int(problem.out_order == "column")), ("OUTPUT", "float32"),
        *epilogues.defines(epilogue),
    )  # fmt: skip


def prepare(problem: Problem, config: Config, epilogue: Fused) -> Callable:
    """Compile, and return the callable ``(a, b, out, epilogue)`` that only launches."""
    memory = config.shared_memory(b_column=_by_columns(problem))
    macros = defines(problem, config, epilogue)
    kernel = loader.function(NAME, NAME, macros, shared_memory=memory)
    early = problem.compute_capability >= 90
    grid = _blocks(problem, config)
    return sparse_tile.TileLauncher(kernel, grid, config.threads, memory, early=early)


def _compile_checks() -> list[tuple[loader.Defines, str, str]]:
    """Every tile for Hopper, and one for every chip, with columns and with rows of b."""
    cases = [Problem(64, 64, 512, 1, *["float32"] * 3, order, order) for order in ("column", "row")]  # type: ignore[call-arg,arg-type]
    chips = ("sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120")
    return [
        (defines(case, Config(m, n, warps, blocks), PLAIN), arch, "HMMA.SP")
        for case in cases
        for m, n, (warps, blocks) in ((16, 8, (8, 2)), (32, 16, (4, 3)), (32, 32, (8, 1)))
        for arch in (chips if n == 32 else ("sm_90a",))
    ]


COMPILE_CHECKS = _compile_checks()
