"""Launcher of ``cuda/sparse_decode.cu``: the 2:4 product with the columns of a decoding step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from sparse24._dtypes import OF_16_BITS, TABLE
from sparse24._records import PLAIN, Compressed24, Fused, Problem
from sparse24.kernels import epilogue as epilogues
from sparse24.kernels import loader, sparse_tile, tensor_map
from sparse24.kernels.launch import Launch, Launcher, pointer
from sparse24.kernels.sparse_tile import TileConfig

NAME = "sparse_decode"
DTYPES = ("float16", "bfloat16", "int8")  # those that mma.sp takes on every chip with a TMA
WIDENED = ("int8", "float8_e4m3fn", "float8_e5m2")  # types of A that may meet a b of 16 bits
Tile = tuple[int, int, int, tuple[int, int, int], int]
LINE = 128  # bytes of a row of A, or of a column of b, in a box of the TMA
LEAST_STAGES = 2
# Stages of a settled A that are asked for before b may be read, by columns of a tile: with more, b
# waits behind them (docs/benchmarks/log_few_tokens.rst, "Weights that are settled").
AHEAD = {8: 4, 16: 3, 24: 3, 32: 2, 40: 2, 48: 2, 64: 2}
FEW_BLOCKS = 2  # on a multiprocessor; see `configs`
ROWS_OF_B = 16, 32  # bytes of rows of b that are multiplied as they lie; of 64 they meet in banks
BESIDE = 1 << 10  # bytes of shared memory that each block takes beside its own


@dataclass(frozen=True, slots=True)
class Config:
    """One specialisation, and how many of its blocks a multiprocessor has room for.

    Attributes
    ----------
    m, n, k : int
        Tile of a block, and the K extent of a stage.
    warps : tuple of int
        Warps along M, n and K.
    stages : int
        Of the ring.
    blocks : int
        Of a multiprocessor.
    by_rows : bool
        Whether rows of b are contiguous, not columns.
    """

    m: int
    n: int
    k: int
    warps: tuple[int, int, int]
    stages: int
    blocks: int
    by_rows: bool = False

    @property
    def name(self) -> str:
        warps = "x".join(map(str, self.warps))
        by = "r" * self.by_rows
        return f"{self.m}x{self.n}x{self.k}_w{warps}_s{self.stages}_b{self.blocks}{by}"

    @property
    def tile(self) -> TileConfig:
        """The tile as `sparse_tile` describes tiles."""
        return TileConfig(self.m, self.n, self.k, self.warps, self.stages, blocks=self.blocks)

    @property
    def threads(self) -> int:
        return self.tile.threads + 32

    def stage_bytes(self, problem: Problem) -> int:
        """Shared memory of a stage: A and its codes, and b."""
        a, b = _itemsizes(problem)
        return self.m * self.k // 2 * a + self.m * self.k // 8 + self.n * self.k * b

    def sums_at(self, problem: Problem) -> int:
        """Where sums lie in shared memory: behind the stages."""
        return self.stages * self.stage_bytes(problem)

    def shared_memory(self, problem: Problem) -> int:
        """Bytes of stages, sums and barriers."""
        return self.sums_at(problem) + self.warps[2] * self.m * (self.n + 8) * 4 + 16 * self.stages


def _itemsizes(problem: Problem) -> tuple[int, int]:
    return TABLE[problem.dtype].itemsize, TABLE[problem.b_dtype].itemsize


def widens(problem: Problem) -> bool:
    """Whether elements of A are widened to the type of b as they are multiplied."""
    return problem.dtype in WIDENED and problem.b_dtype in OF_16_BITS


# m, n, k, warps and blocks of each; k is in 16-bit elements, 8-bit types take twice as many.  The
# best of sweeps on an H200 (docs/benchmarks/log_few_tokens.rst, "A kernel for decoding" and "17 to
# 48 columns").
_TILES: tuple[Tile, ...] = (
    (16, 8, 512, (1, 1, 4), 2),
    (16, 8, 512, (1, 1, 4), 3),
    (16, 16, 512, (1, 1, 4), 2),
    (16, 16, 512, (1, 1, 4), 3),
    (32, 16, 512, (1, 1, 4), 1),
    (32, 16, 256, (1, 1, 2), 2),
    (32, 16, 256, (1, 1, 2), 3),
    (16, 24, 512, (1, 1, 4), 1),
    (32, 24, 512, (1, 1, 4), 1),
    (16, 32, 512, (1, 1, 4), 1),
    (32, 32, 512, (1, 1, 4), 1),
    (16, 40, 512, (1, 1, 4), 1),
    (32, 40, 512, (1, 1, 4), 1),
    (16, 48, 512, (1, 2, 4), 1),
    (32, 48, 256, (2, 1, 2), 1),
)
_COLUMNS = sorted({columns for _, columns, *_ in _TILES})
MOST_COLUMNS = _COLUMNS[-1]

# Constants of `predict`, fitted to the timings of those sweeps, to 7 % root mean square.
_LAUNCH = 1.77e-6  # seconds
_PER_SM = 2.4e11  # bytes a second that a multiprocessor reads once others have nothing left to do
_INTO_SM = 3.6e11  # bytes a second that its shared memory takes in
_STAGE = 0.02e-6  # seconds that a block needs for a stage, beside
_LATENCY = 0.6e-6  # seconds, shared by the stages of a ring


def refuses(problem: Problem) -> str | None:
    """Why the kernel cannot take a problem, or None."""
    p = problem
    reason = sparse_tile.refuses(_multiplied(p))
    if reason is not None:
        return reason
    if p.compute_capability < 90:
        return f"the TMA needs compute capability 9.0, the device has {p.compute_capability}"
    if p.dtype not in DTYPES and not widens(p):
        return f"the kernel multiplies {', '.join(DTYPES)}, not {p.dtype}"
    if p.n > MOST_COLUMNS and not widens(p):
        return f"{NAME} is for n <= {MOST_COLUMNS}, got {p.n}"
    if 0 in (p.m, p.n, p.k, p.batch):
        return "an empty product needs no kernel"
    if not (p.aligned or p.b_aligned) or not (p.b_order == "column" or _rows_fit(p)):
        return "b needs columns that are contiguous and begin on 16 bytes; copy it"
    if not _fitting(p):
        return f"shared memory has no room for {LEAST_STAGES} stages of {p.n} columns"
    return None


def _multiplied(problem: Problem) -> Problem:
    """The problem with A in the type in which it is multiplied."""
    return replace(problem, dtype=problem.b_dtype) if widens(problem) else problem


def _rows_fit(problem: Problem) -> bool:
    """Whether the rows of b have the columns of a tile, and follow one another."""
    row = problem.n * TABLE[problem.b_dtype].itemsize
    return problem.b_order == "row" and problem.b_packed and row in ROWS_OF_B


def _fitting(problem: Problem) -> list[Config]:
    """Tiles with the least columns that hold those of b, where the ring of each block has room."""
    columns = next((wide for wide in _COLUMNS if problem.n <= wide), MOST_COLUMNS)
    placed = (_placed(tile, problem) for tile in _TILES if tile[1] == columns)
    return [config for config in placed if config.stages >= LEAST_STAGES]


def configs(problem: Problem) -> list[Config]:
    """Candidates, best guess first."""
    chip = {"sms": 132, "bandwidth": 4.2e12}
    at_once = lambda c, blocks: tiles(problem, c) <= chip["sms"] * blocks  # noqa: E731
    # The more room beside the blocks of a launch, the more uneven the shares that multiprocessors
    # get of the next one.  So there are three blocks only where all tiles run at once by that.
    found = [
        c
        for c in _fitting(problem)
        if c.blocks <= FEW_BLOCKS or (at_once(c, c.blocks) and not at_once(c, FEW_BLOCKS))
    ]
    return sorted(found, key=lambda config: predict(problem, config, chip))


def _placed(tile: Tile, problem: Problem) -> Config:
    """A tile, with k for the size of elements, and as many stages as its blocks have room for."""
    m, n, k, warps, blocks = tile
    _, itemsize = _itemsizes(problem)
    config = Config(m, n, k * 2 // itemsize, warps, 0, blocks, problem.b_order == "row")
    room = (sparse_tile.SHARED_MEMORY.get(problem.compute_capability, 99) << 10) + BESIDE
    left = room // blocks - BESIDE - config.shared_memory(problem)
    each = replace(config, stages=1).shared_memory(problem) - config.shared_memory(problem)
    return replace(config, stages=left // each)


def tiles(problem: Problem, config: Config) -> int:
    """Tiles of the result."""
    return -(-problem.m // config.m) * -(-problem.n // config.n) * problem.batch


def stages_ahead(problem: Problem, config: Config) -> int:
    """Stages of a settled A that are read before b; fewer than a tile has, if it has several."""
    return max(1, min(AHEAD[config.n], -(-problem.k // config.k) - 1))


def predict(problem: Problem, config: Config, chip: dict) -> float:
    """Seconds: a launch, and a time of memory's and of a block's, neither of which hides the other.

    Memory's ends with what the busiest multiprocessor has to read more than others.
    """
    number, sms = tiles(problem, config), int(chip["sms"])
    blocks = min(number, sms * config.blocks)
    busiest = sum(-(-(number - first) // blocks) for first in range(0, blocks, sms))
    stages = -(-problem.k // config.k)
    stage_bytes = config.stage_bytes(problem)
    memory = _bytes_moved(problem) / chip["bandwidth"]
    memory += max(0.0, busiest - number / sms) * stages * stage_bytes / _PER_SM
    beside = -(-blocks // sms)
    stage = _STAGE + _LATENCY / config.stages + beside * stage_bytes / _INTO_SM
    return _LAUNCH + math.hypot(memory, -(-number // blocks) * stages * stage)


def _bytes_moved(problem: Problem) -> int:
    products = problem.batch if problem.a_batched else 1
    saved = TABLE[_multiplied(problem).dtype].itemsize - TABLE[problem.dtype].itemsize
    elements = products * problem.m * problem.k // 2
    return sparse_tile.bytes_moved(_multiplied(problem)) - elements * saved


def prepare(problem: Problem, config: Config, epilogue: Fused) -> Callable:
    """Compile, and return the callable ``(a, b, out, epilogue)`` that only launches."""
    return _Launcher(problem, config, epilogue)


def defines(problem: Problem, config: Config, epilogue: Fused) -> loader.Defines:
    """The macros of one specialisation."""
    p = problem
    regular_out = (p.aligned or p.out_aligned) and p.out_order != "strided"
    macros = dict(sparse_tile.defines(_multiplied(p), config.tile, epilogue))
    macros |= {"B_ASYNC": 1, "OUT_ALIGNED": int(regular_out), "SUMS_AT": config.sums_at(p)}
    macros |= {"STORED": p.dtype, "MIXED": int(widens(p))}
    return tuple(macros.items())


class _Launcher(Launcher):
    """A compiled specialisation."""

    reads_early = True  # what is settled, while the kernel before it ends

    def __init__(self, problem: Problem, config: Config, epilogue: Fused):
        from sparse24._arrays import cupy_module

        super().__init__()
        self._problem, self._config = problem, config
        self._ahead = stages_ahead(problem, config)
        size = config.shared_memory(problem)
        kernel = loader.function(NAME, NAME, defines(problem, config, epilogue), shared_memory=size)
        sms = cupy_module().cuda.Device().attributes["MultiProcessorCount"]
        grid = min(tiles(problem, config), sms * config.blocks)
        self._sizes = kernel, grid, config.threads, size

    def bind(self, a: Compressed24, b, out, stream: int) -> Launch:
        shape = sparse_tile.shape_block(a, b, out)
        maps = self._values_map(a.values), pointer(b) if self._config.by_rows else self._b_map(b)
        ahead = np.array([self._ahead if a.settled else 0], np.int32)
        others = pointer(a.packed), pointer(out), ahead, shape, epilogues.NO_PARAMS
        return Launch(*self._sizes, (*maps, *others), early=True)

    def _values_map(self, values) -> np.ndarray:
        return self._map(values, -1, -2, self._config.m)

    def _b_map(self, b) -> np.ndarray:
        return self._map(b, -2, -1, min(self._problem.n, self._config.n))

    def _map(self, x, inner: int, outer: int, lines: int) -> np.ndarray:
        """The map of a matrix, or a batch of them, by boxes of so many lines of 128 bytes."""
        itemsize = x.dtype.itemsize
        pitch, box = x.strides[outer], (LINE // itemsize, lines)
        if x.shape[outer] == 1:  # its stride may be anything
            pitch = -(-x.shape[inner] * itemsize // 16) * 16
        batch = x.shape[0] if x.ndim > 2 else 1
        apart = x.strides[0] if batch > 1 else pitch * x.shape[outer]
        extents = x.shape[inner], x.shape[outer], batch
        return tensor_map.tiled(x.data.ptr, extents, (pitch, apart), box, itemsize)


def _compile_checks():
    """Every tile with float16, and one for each number of columns with the other types."""
    one_of_each = {tile[1]: tile for tile in _TILES}.values()
    for dtype, out, instruction, tiles_of_type in (
        ("float16", "float16", "HMMA.SP", _TILES), ("bfloat16", "float32", "HMMA.SP", one_of_each),
        ("int8", "int32", "IMMA.SP", one_of_each),
    ):  # fmt: skip
        for tile in tiles_of_type:
            problem = Problem(4096, tile[1], 4096, 1, dtype, dtype, out, "column", "column")
            yield defines(problem, _placed(tile, problem), PLAIN), "sm_90a", instruction
            rows = replace(problem, b_order="row")
            if _rows_fit(rows):
                yield defines(rows, _placed(tile, rows), PLAIN), "sm_90a", instruction


COMPILE_CHECKS = tuple(_compile_checks())
