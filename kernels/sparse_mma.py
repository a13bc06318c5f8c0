"""Launcher of ``cuda/sparse_mma.cu``: the 2:4 product by ``mma.sp``, for every chip since sm_80."""

from __future__ import annotations

from collections.abc import Callable

from sparse24._arrays import cupy_module
from sparse24._dtypes import TABLE
from sparse24._records import Compressed24, Fused, Problem
from sparse24.kernels import epilogue as epilogues
from sparse24.kernels import loader, sparse_tile
from sparse24.kernels.sparse_tile import TileConfig

NAME = "sparse_mma"
Config = TileConfig
refuses = sparse_tile.refuses

# Large tiles reuse operands, small ones fill the chip; see the explanation page.
_TILES = (
    TileConfig(128, 128, 128, (2, 4, 1), 3),
    TileConfig(128, 64, 128, (2, 2, 1), 4),
    TileConfig(64, 64, 128, (2, 2, 1), 4),
    TileConfig(64, 32, 256, (2, 1, 2), 4),
    TileConfig(64, 16, 256, (2, 1, 2), 4),
    TileConfig(64, 64, 128, (2, 2, 1), 2),  # fits where a block has 99 KiB
    TileConfig(128, 128, 128, (2, 4, 1), 2),
)
_SPLITS = (1, 2, 4, 8)
COMPILE_CHECKS = tuple(
    (
        (("ELEMENT", dtype), ("B_ELEMENT", dtype), ("OUTPUT", out),
         ("TILE_M", 128), ("TILE_N", 128), ("TILE_K", 128),
         ("WARPS_M", 2), ("WARPS_N", 4), ("WARPS_K", 1), ("STAGES", 3),
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
    found = []
    for tile in _TILES:
        if not tile.suits(problem):
            continue
        for split in _SPLITS:
            enough_k = problem.k >= split * 4 * tile.k
            if split == 1 or (enough_k and sparse_tile.tiles(problem, tile) * split <= 528):
                found.append(TileConfig(tile.m, tile.n, tile.k, tile.warps, tile.stages, split))
    chip = {"sms": 132, "bandwidth": 4.2e12}
    return sorted(found, key=lambda config: predict(problem, config, chip))


def predict(problem: Problem, config: TileConfig, chip: dict) -> float:
    """Seconds: the slower of memory and tensor cores, in whole waves of blocks."""
    item = TABLE[problem.dtype].itemsize
    blocks = sparse_tile.tiles(problem, config)
    waves = -(-blocks // (chip["sms"] * max(1, 220_000 // config.shared_memory(item) // 2)))
    slower = 0.25 if sparse_tile.emulates(problem) else 1.0
    # Measured on an H200: a block's tile advances at about this many multiply-adds a second.
    rate = 2.6e12 * (2 / item) * slower * min(1.0, config.m * config.n / 16384)
    work = waves * config.m * config.n * (problem.k / config.split) / rate
    memory = sparse_tile.bytes_moved(problem) / (0.8 * chip["bandwidth"])
    extra = 0.0
    if config.split > 1:
        extra = 2e-6 + 8 * config.split * problem.m * problem.n * problem.batch / chip["bandwidth"]
    return max(work, memory) + extra + 4e-6


def prepare(problem: Problem, config: TileConfig, epilogue: Fused) -> Callable:
    """Compile, and return the callable ``(a, b, out, epilogue)`` that only launches."""
    cp = cupy_module()
    macros = sparse_tile.defines(problem, config, epilogue)
    dtype = TABLE[problem.dtype]
    memory = config.shared_memory(dtype.itemsize)
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
