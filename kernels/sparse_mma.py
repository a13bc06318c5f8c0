"""Launcher of ``cuda/sparse_mma.cu``: the 2:4 product by ``mma.sp``, for every chip since sm_80."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from sparse24._arrays import cupy_module
from sparse24._dtypes import TABLE
from sparse24._records import Compressed24, Fused, Problem
from sparse24.kernels import chip_rates, loader, mma_ring, sparse_tile
from sparse24.kernels import epilogue as epilogues
from sparse24.kernels.sparse_tile import TileConfig

NAME = "sparse_mma"
Config = TileConfig
refuses = sparse_tile.refuses

# Tiles, and how many multiply-adds at 2:4 a multiprocessor reaches with them in a clock, of 16 bits
# on an H100: docs/benchmarks/log_gemm.rst.  Large tiles reuse operands, small ones fill the chip.
_TILES = {
    TileConfig(256, 128, 128, (4, 2, 1), 3): 1030,
    TileConfig(128, 128, 128, (2, 4, 1), 3): 915,
    TileConfig(128, 64, 128, (2, 2, 1), 3, blocks=2): 850,
    TileConfig(64, 64, 128, (2, 2, 1), 4, blocks=2): 610,
    TileConfig(64, 32, 256, (2, 1, 2), 4): 500,
    TileConfig(64, 16, 256, (2, 1, 2), 4): 300,
    # Where a block has 99 KiB:
    TileConfig(128, 64, 128, (2, 2, 1), 2): 750,
    TileConfig(64, 64, 128, (2, 2, 1), 2): 500,
}
MOST_OF_PEAK = 0.85  # on chips whose tensor cores are slower than what is above
EIGHT_BITS = 1.6  # times as many multiply-adds
EMULATED = 0.5  # times as many, of float8
CHIP = {"sms": 132, "bandwidth": 4.2e12, "clock_hz": 1.98e9}  # that `configs` sorts for
# Blocks that share a tile along K; only where each has four stages or more, and their number times
# that of all blocks is at most 528, four waves of an H200's 132 multiprocessors.
_SPLITS = (1, 2, 4, 8)
_RATES = {replace(tile, split=split): rate for tile, rate in _TILES.items() for split in _SPLITS}
COMPILE_CHECKS = tuple(
    (
        (("ELEMENT", dtype), ("B_ELEMENT", dtype), ("OUTPUT", out),
         ("TILE_M", 256), ("TILE_N", 128), ("TILE_K", 128),
         ("WARPS_M", 4), ("WARPS_N", 2), ("WARPS_K", 1), ("STAGES", 3),
         ("SPLIT", 1), ("BLOCKS", 1), ("WGMMA", 0), ("PROMOTE", 0),
         ("B_COLUMN", 1), ("B_ASYNC", 1), ("OUT_COLUMN", 0), ("OUT_ALIGNED", 1),
         ("EPILOGUE", 0), ("ACTIVATION", 0)),
        arch,
        mnemonic,
    )
    for dtype, out, mnemonic, archs in (
        ("float16", "float16", "HMMA.SP", ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_120")),
        ("bfloat16", "bfloat16", "HMMA.SP", ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_120")),
        ("int8", "int32", "IMMA.SP", ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_120")),
        ("float8_e4m3fn", "bfloat16", "QMMA.SP", ("sm_89", "sm_120")),
        ("float8_e5m2", "bfloat16", "QMMA.SP", ("sm_89", "sm_120")),
    )
    for arch in archs
)  # fmt: skip


def configs(problem: Problem) -> list[TileConfig]:
    """Candidates, best guess first."""
    found = [c for c in _RATES if mma_ring.suits(c, problem) and _splits(problem, c)]
    return sorted(found, key=lambda config: predict(problem, config, CHIP))


def _splits(problem: Problem, config: TileConfig) -> bool:
    """Whether tiles are whole, or large and few enough for the blocks that would share them."""
    if config.split == 1:
        return True
    enough_k = problem.k >= config.split * 4 * config.k
    return enough_k and sparse_tile.tiles(problem, config) * config.split <= 528


def predict(problem: Problem, config: TileConfig, chip: dict) -> float:
    """Seconds: the slower of memory and tensor cores, in whole waves of blocks.

    Memory delivers 0.8 of the copy bandwidth; a launch takes 4 µs.  If blocks share tiles, their
    sums, of 4 bytes, are written and read once more, by a second launch of 2 µs.
    """
    blocks = sparse_tile.tiles(problem, config)
    beside = max(1, min(config.blocks, math.ceil(blocks / chip["sms"])))  # no block: no columns
    waves = math.ceil(blocks / (chip["sms"] * beside))
    rate = _rate(problem, config) * chip["clock_hz"]
    work = waves * beside * config.m * config.n * (problem.k / config.split) / rate
    memory = sparse_tile.bytes_moved(problem) / (0.8 * chip["bandwidth"])
    extra = 0.0
    if config.split > 1:
        extra = 2e-6 + 8 * config.split * problem.m * problem.n * problem.batch / chip["bandwidth"]
    return max(work, memory) + extra + 4e-6


def _rate(problem: Problem, config: TileConfig) -> float:
    """Multiply-adds of a multiprocessor in a clock."""
    most = MOST_OF_PEAK * chip_rates.sparse_bfloat16(problem.compute_capability)
    rate = min(_RATES[config], most)
    if TABLE[problem.dtype].itemsize == 2:
        return rate
    return rate * (EMULATED if sparse_tile.emulates(problem) else EIGHT_BITS)


def prepare(problem: Problem, config: TileConfig, epilogue: Fused) -> Callable:
    """Compile, and return the callable ``(a, b, out, epilogue)`` that only launches."""
    cp = cupy_module()
    macros = sparse_tile.defines(problem, config, epilogue)
    dtype = TABLE[problem.dtype]
    memory = mma_ring.shared_memory(config, dtype.itemsize)
    kernel = loader.function(NAME, "sparse_mma", macros, shared_memory=memory)
    reduce = loader.function(NAME, "sparse_mma_reduce", macros) if config.split > 1 else None
    grid, block = (sparse_tile.tiles(problem, config),), (config.threads,)
    elements = problem.batch * problem.m * problem.n
    reduce_grid = (min(-(-elements // 256), 4096),)
    shapes = sparse_tile.Shapes()
    workspace_size = config.split * elements

    def launch(a: Compressed24, b, out, epilogue: Fused) -> None:
        if not elements:
            return
        shape, params = shapes(a, b, out), epilogues.params(epilogue)
        workspace = cp.empty(workspace_size, dtype.accumulator) if reduce else 0
        arguments = (a.values, a.packed, b, out, workspace, shape, params)
        kernel(grid, block, arguments, shared_mem=memory)
        if reduce:
            reduce(reduce_grid, (256,), (workspace, out, shape, params))

    return launch
