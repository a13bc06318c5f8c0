"""Launcher of ``cuda/sparse_skinny.cu``: the 2:4 product with few columns."""

from __future__ import annotations

from collections.abc import Callable

from sparse24._dtypes import TABLE
from sparse24._records import Compressed24, Epilogue, Problem
from sparse24.kernels import epilogue as epilogues
from sparse24.kernels import loader, sparse_tile
from sparse24.kernels.sparse_tile import TileConfig

NAME = "sparse_skinny"
Config = TileConfig
MOST_COLUMNS = 256
SPLITS = (1, 2, 4, 8)  # sizes of a cluster

# (n of the tile, tile, K of a stage in 16-bit elements, warps, stages)
_TILES = (
    TileConfig(64, 8, 256, (2, 1, 2), 4, blocks=2),
    TileConfig(32, 8, 512, (1, 1, 4), 4, blocks=2),
    TileConfig(64, 16, 256, (2, 1, 2), 4, blocks=2),
    TileConfig(64, 32, 256, (2, 1, 2), 4, blocks=2),
    TileConfig(64, 64, 128, (2, 2, 1), 4, blocks=2),
    TileConfig(128, 64, 128, (4, 1, 1), 4),
    TileConfig(128, 128, 128, (4, 2, 1), 4),
    TileConfig(128, 256, 128, (4, 2, 1), 2),
)

COMPILE_CHECKS = tuple(
    (
        (("ELEMENT", dtype), ("B_ELEMENT", dtype), ("OUTPUT", out),
         ("TILE_M", 64), ("TILE_N", 8), ("TILE_K", 256),
         ("WARPS_M", 2), ("WARPS_N", 1), ("WARPS_K", 2), ("STAGES", 4),
         ("SPLIT", 4), ("BLOCKS", 2), ("B_COLUMN", 1), ("B_ASYNC", 1), ("OUT_COLUMN", 0),
         ("OUT_ALIGNED", 1), ("EPILOGUE", 0), ("ACTIVATION", 0)),
        arch,
        mnemonic,
    )
    for dtype, out, mnemonic, archs in (
        ("float16", "float16", "HMMA.SP", ("sm_90a", "sm_120")),
        ("bfloat16", "bfloat16", "HMMA.SP", ("sm_90a", "sm_120")),
        ("int8", "int32", "IMMA.SP", ("sm_90a", "sm_120")),
        ("float8_e4m3fn", "bfloat16", "QMMA.SP", ("sm_120",)),
        ("float8_e5m2", "bfloat16", "QMMA.SP", ("sm_120",)),
    )
    for arch in archs
)  # fmt: skip


def refuses(problem: Problem) -> str | None:
    """Why the kernel cannot take a problem, or None."""
    reason = sparse_tile.refuses(problem)
    if reason is None and problem.compute_capability < 90:
        reason = "sparse_skinny adds over a cluster of blocks, which needs compute capability 9.0"
    if reason is None and problem.n > MOST_COLUMNS:
        reason = f"sparse_skinny is for n <= {MOST_COLUMNS}, got {problem.n}; sparse_mma takes any"
    return reason


def configs(problem: Problem) -> list[TileConfig]:
    """Candidates, best guess first."""
    found = []
    for tile in _TILES:
        if not tile.suits(problem):
            continue
        for split in SPLITS:
            config = TileConfig(tile.m, tile.n, tile.k, tile.warps, tile.stages, split, tile.blocks)
            if split == 1 or problem.k >= 2 * split * tile.k:
                found.append(config)
    chip = {"sms": 132, "bandwidth": 4.2e12}
    return sorted(found, key=lambda config: predict(problem, config, chip))


def predict(problem: Problem, config: TileConfig, chip: dict) -> float:
    """Seconds: bytes at the measured fraction of the copy speed, or the tensor cores."""
    return sparse_tile.bytes_moved(problem) / chip["bandwidth"]


def prepare(problem: Problem, config: TileConfig, epilogue: Epilogue) -> Callable:
    """Compile, and return the callable ``(a, b, out, epilogue)`` that only launches."""
    macros = sparse_tile.defines(problem, config, epilogue)
    memory = config.shared_memory(TABLE[problem.dtype].itemsize)
    kernel = loader.function(NAME, "sparse_skinny", macros, shared_memory=memory)
    grid, block = (sparse_tile.tiles(problem, config),), (config.threads,)
    shapes = sparse_tile.Shapes()

    def launch(a: Compressed24, b, out, epilogue: Epilogue) -> None:
        if grid[0]:
            shape, params = shapes(a, b, out), epilogues.params(epilogue)
            kernel(grid, block, (a.values, a.packed, b, out, shape, params), shared_mem=memory)

    return launch
