"""Launcher of ``cuda/sparse_skinny.cu``: the 2:4 product with few columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from sparse24._dtypes import TABLE
from sparse24._records import PLAIN, Fused, Problem
from sparse24.kernels import loader, sparse_tile
from sparse24.kernels.sparse_tile import TileConfig

NAME = "sparse_skinny"
Config = TileConfig
MOST_COLUMNS = 256
SPLITS = (1, 2, 4, 8)  # sizes of a cluster
# Elements of K whose fp8 sums the instructions may add up without fast accumulation: four
# instructions, as in cuBLAS.  With it a stage is the limit, which costs nothing here.
PROMOTED = 256

# K of a stage is in 16-bit elements; 8-bit types take twice as many.  Found by a sweep on an H200
# (see the explanation page): up to 8 columns by mma.sp, more, and fp8, by warpgroup instructions.
_TILES = (
    TileConfig(64, 8, 256, (2, 1, 2), 4),
    TileConfig(32, 8, 512, (1, 1, 4), 4),
    TileConfig(64, 8, 256, (4, 1, 1), 4, wgmma=True),
    TileConfig(64, 16, 256, (4, 1, 1), 3, wgmma=True),
    TileConfig(64, 16, 256, (4, 1, 1), 4, wgmma=True),
    TileConfig(64, 32, 256, (4, 1, 1), 3, wgmma=True),
    TileConfig(64, 32, 256, (4, 1, 1), 4, wgmma=True),
    TileConfig(128, 32, 128, (8, 1, 1), 4, wgmma=True),
    TileConfig(64, 64, 128, (4, 1, 1), 4, wgmma=True),
    TileConfig(128, 64, 128, (8, 1, 1), 6, wgmma=True),
    TileConfig(128, 64, 128, (8, 1, 1), 3, wgmma=True),
    TileConfig(256, 64, 128, (16, 1, 1), 4, wgmma=True),
    TileConfig(128, 128, 128, (8, 1, 1), 4, wgmma=True),
)
# Where there are no warpgroup instructions, and for 8-bit b with n contiguous.
_WARP_TILES = (
    TileConfig(64, 8, 256, (2, 1, 2), 3),
    TileConfig(64, 16, 256, (2, 1, 2), 3),
    TileConfig(64, 32, 256, (2, 1, 2), 3),
    TileConfig(64, 64, 128, (2, 2, 1), 4),
    TileConfig(64, 64, 128, (2, 2, 1), 3),
    TileConfig(128, 128, 128, (2, 4, 1), 4),
)

# Constants of `predict`, fitted to the timings of a sweep on an H200, to 10 % root mean square.
# Where the configuration put first was timed, it took at most 10 % longer than the fastest.
_LAUNCH = 2.0e-6  # seconds
_CLUSTER = 2.6e-6  # seconds to meet and part in a cluster
_LATENCY = 0.81e-6  # seconds from a copy's issue to its arrival under load
_PER_BLOCK = 8.7e10  # bytes a second that the threads of one block can copy
_PER_SM = 1.22e11  # the same for the blocks of one multiprocessor
_L2_PER_SM = 8.2e12 / 132  # the same when all of them read
_HBM = 1.09  # of the copy bandwidth: reading alone is faster
_STAGE = 0.03e-6  # seconds of synchronisation in a stage
_FLOPS_PER_SM = 2.9e15 / 132  # 16-bit, by warpgroup instructions; about half of it is hidden
_WARP_FLOPS_PER_SM = 3.5e14 / 132  # the same by mma.sp, where copies hide less
_STORE = 1.8e10  # bytes a second of sums through shared memory, of one block
_OVERLAP_LOSS = 0.41  # share of the shortest of the three times that is not hidden
_USABLE = {1: 1.0, 2: 1.0, 4: 0.91, 8: 0.73}  # clusters do not fill every group of multiprocessors


def _macros(tile: TileConfig, dtype: str, out: str) -> tuple:
    problem = Problem(4096, tile.n, 4096, 1, dtype, dtype, out, "column", "row")
    return sparse_tile.defines(problem, _placed(tile, problem), PLAIN)


def _compile_checks() -> Iterator[tuple]:
    warp, narrow, wide = _WARP_TILES[0], _TILES[3], _TILES[-1]
    sixteen, eight = ("float16", "bfloat16"), ("float8_e4m3fn", "float8_e5m2")
    for arch in ("sm_90a", "sm_120"):
        yield from ((_macros(warp, dtype, dtype), arch, "HMMA.SP") for dtype in sixteen)
        yield _macros(warp, "int8", "int32"), arch, "IMMA.SP"
    yield from ((_macros(warp, dtype, "bfloat16"), "sm_120", "QMMA.SP") for dtype in eight)
    for tile in (narrow, wide):
        yield from ((_macros(tile, dtype, dtype), "sm_90a", "HGMMA.SP") for dtype in sixteen)
        yield from ((_macros(tile, dtype, "bfloat16"), "sm_90a", "QGMMA.SP") for dtype in eight)
        yield _macros(tile, "int8", "int32"), "sm_90a", "IGMMA.SP"


def refuses(problem: Problem) -> str | None:
    """Why the kernel cannot take a problem, or None."""
    reason = sparse_tile.refuses(problem)
    if reason is None and problem.compute_capability < 90:
        reason = "sparse_skinny adds over a cluster of blocks, which needs compute capability 9.0"
    if reason is None and problem.n > MOST_COLUMNS:
        reason = f"sparse_skinny is for n <= {MOST_COLUMNS}, got {problem.n}; sparse_mma takes any"
    return reason


def _placed(tile: TileConfig, problem: Problem, split: int = 1) -> TileConfig:
    """The tile for the problem's element size, with as many blocks a multiprocessor as fit.

    They share its memory, of which each block takes 1024 bytes beside its own, and its 65536
    registers, of which a thread shall have 128 or 168.
    """
    itemsize = TABLE[problem.dtype].itemsize
    tile = replace(tile, k=tile.k * 2 // itemsize, split=split)
    if tile.wgmma and problem.dtype in sparse_tile.FLOAT8 and not problem.fast_accumulation:
        tile = replace(tile, k=min(tile.k, PROMOTED))
    room = sparse_tile.SHARED_MEMORY.get(problem.compute_capability, 99) << 10
    registers = 128 if tile.wgmma and tile.n < 128 else 168
    by_memory = room // (tile.shared_memory(itemsize) + 1024)
    by_registers = 65536 // (registers * tile.threads)
    return replace(tile, blocks=max(1, min(4, by_memory, by_registers)))


def configs(problem: Problem) -> list[TileConfig]:
    """Candidates, best guess first."""
    itemsize = TABLE[problem.dtype].itemsize
    bytes_in_rows = itemsize == 1 and problem.b_order == "row"
    by_groups = problem.compute_capability == 90 and not bytes_in_rows
    # A narrower tile would read A more than once, a wider one would multiply nothing.
    narrowest = min(64, max(16 if bytes_in_rows else 8, problem.n))
    found = []
    for tile in _TILES if by_groups else _WARP_TILES:
        if not narrowest <= tile.n < 2 * max(narrowest, problem.n):
            continue
        for split in SPLITS:
            config = _placed(tile, problem, split)
            if config.suits(problem) and (split == 1 or problem.k >= 2 * split * config.k):
                found.append(config)
    chip = {"sms": 132, "bandwidth": 4.2e12}
    return sorted(found, key=lambda config: predict(problem, config, chip))


def predict(problem: Problem, config: TileConfig, chip: dict) -> float:
    """Seconds: the longest of HBM, L2 and the blocks of one multiprocessor one after another."""
    item, sms = TABLE[problem.dtype].itemsize, chip["sms"]
    blocks = sparse_tile.tiles(problem, config)
    usable = int(sms * _USABLE[config.split])
    waves = math.ceil(blocks / (usable * config.blocks))
    beside = max(1, min(config.blocks, math.ceil(blocks / usable)))
    stages = problem.k / config.k / config.split
    stage = config.stage_bytes(item)
    rate = min((config.stages - 1) * stage / _LATENCY, _PER_BLOCK, _PER_SM / beside)
    block = stages * (stage / rate + _STAGE)
    flops = (_FLOPS_PER_SM if config.wgmma else _WARP_FLOPS_PER_SM) * 2 / item / beside
    if not config.wgmma and sparse_tile.emulates(problem):
        flops /= 4
    block += 2 * config.m * config.n * stages * config.k / flops
    block += (1 + (config.split > 1)) * 4 * config.m * config.n / _STORE
    hbm = sparse_tile.bytes_moved(problem) / (_HBM * chip["bandwidth"])
    times = (hbm, stages * stage * blocks / (_L2_PER_SM * sms), waves * block)
    overhead = _LAUNCH + (_CLUSTER if config.split > 1 else 0.0)
    return overhead + max(times) + _OVERLAP_LOSS * min(times)


def prepare(problem: Problem, config: TileConfig, epilogue: Fused) -> Callable:
    """Compile, and return the callable ``(a, b, out, epilogue)`` that only launches."""
    macros = sparse_tile.defines(problem, config, epilogue)
    memory = config.shared_memory(TABLE[problem.dtype].itemsize)
    kernel = loader.function(NAME, "sparse_skinny", macros, shared_memory=memory)
    grid = sparse_tile.tiles(problem, config)
    return sparse_tile.TileLauncher(kernel, grid, config.threads, memory, early=True)


COMPILE_CHECKS = tuple(_compile_checks())
